"""Payloads of one float32 step per bucket and a packed code per coordinate: shared by QSGD and sign.

steps   4 bytes a bucket, little-endian float32
codes   packed, see kernels/packing.py
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, NonFiniteVector
from qafel.params import Vector
from qafel.quantizers.kernels.decode import ADD, ASSIGN, BAD_STEP, OK, apply_levels
from qafel.quantizers.kernels.numeric import GROUP, packed_bytes
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

# What comes in is what was agreed: vectors of float32, payloads of the right length.


Bytes: TypeAlias = NDArray[np.uint8]


_FLOAT32 = np.dtype(np.float32)


_UINT8 = np.dtype(np.uint8)


_MAX_SIZE = 2**31  # counters and indices are 32-bit


_SIGN = 2**63


def as_vector(vector: Vector) -> Vector:
    """The vector as a kernel takes it: one-dimensional, contiguous, float32."""
    if type(vector) is np.ndarray and vector.dtype is _FLOAT32 and vector.ndim == 1 and vector.flags.c_contiguous:
        return vector  # the common case, in a fraction of a microsecond
    return _converted(vector)


def _converted(vector: Vector) -> Vector:
    if not isinstance(vector, np.ndarray) or vector.dtype != _FLOAT32:
        kind = vector.dtype if isinstance(vector, np.ndarray) else type(vector).__name__
        raise TypeError(f"expected a float32 vector, found {kind}: convert with numpy.asarray(x, numpy.float32)")
    if vector.ndim != 1:
        raise ValueError(f"expected a flat vector, found shape {vector.shape}: flatten it, as Layout.flatten does")
    return np.ascontiguousarray(vector, _FLOAT32)


def as_target(target: Vector) -> Vector:
    """The target of an addition, which must be writable in place."""
    if type(target) is np.ndarray and target.dtype is _FLOAT32 and target.ndim == 1 and target.flags.carray:
        return target  # the common case, in a fraction of a microsecond
    if as_vector(target) is not target or not target.flags.writeable:
        raise ValueError("the target must be a contiguous, writable vector: it is changed in place")
    return target


def as_bytes(payload: Payload, expected: int) -> Bytes:
    """The payload as a read-only array of exactly `expected` bytes."""
    if len(payload) != expected:
        raise MalformedPayload(f"expected a payload of {expected} bytes, found {len(payload)}: made for another size?")
    array = np.frombuffer(payload, _UINT8)
    if type(payload) is not bytes and not memoryview(payload).readonly:
        array.flags.writeable = False  # one type of array, one compiled kernel
    return array


def check_size(size: int) -> int:
    if not 0 <= size < _MAX_SIZE:
        raise ValueError(f"a size must lie between 0 and {_MAX_SIZE - 1}, found {size}")
    return size


def non_finite(vector: Vector) -> NonFiniteVector:
    """The error for a vector that holds NaN or infinity, with the first place."""
    bad = np.flatnonzero(~np.isfinite(vector))
    return NonFiniteVector(
        f"expected finite coordinates, found {bad.size} of {vector.size} NaN or infinite, the first "
        f"({vector[bad[0]]}) at {bad[0]}: lower the learning rate, or drop this update"
    )


def signed(word: int) -> int:
    """A 64-bit word as int64, the one integer type that kernels are compiled for."""
    return (word ^ _SIGN) - _SIGN


def signed_words(stream: Stream) -> tuple[int, int]:
    first, second = stream.words
    return (first ^ _SIGN) - _SIGN, (second ^ _SIGN) - _SIGN


def seed_of(stream: Stream) -> bytes:
    """Eight bytes to send along, from which both ends make the same random numbers."""
    return (stream.words[0] ^ stream.words[1]).to_bytes(8, "little")


# Where an encoder writes: straight into the bytes that it returns, where a copy would cost as much as the encoding.
#
# At 25 million coordinates a second buffer and its copy take longer than quantizing: the memory is new each time,
# and the
# system hands it out page by page.


_LARGE = 1 << 18  # bytes; below, a plain copy is cheaper than making the view


_CONTENT = bytes.__basicsize__ - 1  # where CPython keeps a bytes object's content, before its final zero


_IS_CPYTHON = platform.python_implementation() == "CPython"


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize if _IS_CPYTHON else None


if _new_bytes is not None:
    _new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)


def new_output(size: int) -> tuple[Bytes, bytes | None]:
    """A buffer to fill; with it, where it is large, the bytes object whose content it is. `finish` wants both."""
    if size < _LARGE or _new_bytes is None:
        return np.empty(size, np.uint8), None
    data: bytes = _new_bytes(None, size)  # uninitialised, as C extensions make them
    memory = (ctypes.c_uint8 * size).from_address(id(data) + _CONTENT)
    return np.frombuffer(memoryview(memory), np.uint8), data


def finish(array: Bytes, data: bytes | None) -> bytes:
    """What was written. Nobody has seen the bytes object before."""
    return array.tobytes() if data is None else data


_SPAN: Final = 4096  # coordinates: 16 kB, so that the second pass over a span finds it in the first-level cache


def bucket_count(size: int, bucket: int | None) -> int:
    return -(-size // (bucket or max(size, 1)))


@lru_cache(1024)
def plan(size: int, bucket: int | None, bits: int) -> tuple[int, int, int, int]:
    """Bucket length, span length, number of spans, payload bytes.

    A span shares neither a bucket nor a byte with its neighbours.
    """
    check_size(size)
    length = bucket or max(size, 1)
    unit = math.lcm(length, GROUP)
    span = unit * max(1, _SPAN // unit)
    return length, span, -(-size // span), 4 * bucket_count(size, bucket) + packed_bytes(size, bits)


def encode_payload(
    kernel: Callable[..., bool],
    vector: Vector,
    stream: Stream,
    bucket: int | None,
    levels: float,
    bits: int,
    norm: int,
    gain: float,
    prefix: bytes = b"",
) -> bytes:
    """Quantize a vector into prefix, steps and codes; kernel is `encode_spans` or one with the same arguments."""
    vector = as_vector(vector)
    size = vector.size
    length, span, spans, total = plan(size, bucket, bits)
    skip = len(prefix)
    out, data = new_output(skip + total)
    if skip:
        out[:skip] = np.frombuffer(prefix, np.uint8)
    word0, word1 = signed_words(stream)
    if size < SERIAL_BELOW or is_serial(size):
        sound = kernel(vector, out, word0, word1, length, span, float(levels), bits, norm, gain, skip, 0, spans)
    else:
        common = (vector, out, word0, word1, length, span, float(levels), bits, norm, gain, skip)
        sound = not over_spans(lambda first, last: not kernel(*common, first, last), spans)
    if not sound:
        raise non_finite(vector)
    return finish(out, data)


def apply_payload(
    target: Vector, payload: Payload, weight: float | None, bucket: int | None, levels: int, bits: int
) -> None:
    """Assign (weight None) or add weight · decoded to the target; on an error, leave it as it was."""
    size = as_target(target).size
    length, span, spans, total = plan(size, bucket, bits)
    data = as_bytes(payload, total)
    mode, factor = (ASSIGN, 1.0) if weight is None else (ADD, float(weight))
    if size < SERIAL_BELOW or is_serial(size):
        status = apply_levels(target, data, mode, factor, length, span, levels, bits, True, 0, spans)
    else:
        common = (target, data, mode, factor, length, span, levels, bits)
        status = apply_levels(*common, True, 0, 0)
        if status == OK:
            over_spans(lambda first, last: apply_levels(*common, False, first, last), spans)
    if status == BAD_STEP:
        raise MalformedPayload("expected finite, non-negative steps, found another: the payload is damaged or forged")
    if status:
        raise MalformedPayload(f"expected codes up to {2 * levels}, found a larger one: made by another quantizer?")


# How many threads the kernels use.
#
# Kernels release the GIL and work on spans that share no byte, so plain threads suffice and the result never depends on
# how many there are. Numba's own parallel loops would take seconds more to compile and do not survive a fork.


SERIAL_BELOW = 1 << 19  # coordinates; below, a second thread costs more than it brings


_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use at most `count` threads inside the block (for benchmarks, and for workers that share a machine)."""
    global _threads  # noqa: PLW0603 — one process, one setting
    before, _threads = _threads, max(1, count)
    try:
        yield
    finally:
        _threads = before


def set_threads(count: int) -> None:
    """Use at most `count` threads from now on."""
    global _threads  # noqa: PLW0603 — one process, one setting
    _threads = max(1, count)


def is_serial(size: int) -> bool:
    return _threads == 1 or size < SERIAL_BELOW


def over_spans(work: Callable[[int, int], int], spans: int) -> int:
    """Run work(first, last) over all spans; the first status that is not zero, else zero."""
    count = min(_threads, spans)
    if count <= 1:
        return work(0, spans)
    key = (os.getpid(), count)  # a forked child has no threads of its parent's pool
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(count, thread_name_prefix="qafel-kernel")
    pieces = min(spans, 4 * count)  # a few each, so that a busy core does not hold up the others
    edges = [spans * i // pieces for i in range(pieces + 1)]
    return next((status for status in _pools[key].map(work, edges[:-1], edges[1:]) if status), 0)
