"""What the quantizer families share: checks on what comes in, payloads of steps and codes, and threads.

A payload of QSGD, sign and dither:

    seed    8 bytes, dither only
    steps   4 bytes a bucket, little-endian float32
    codes   packed, see kernels/__init__.py

Kernels release the GIL and work on spans that share no byte, so plain threads suffice and the result never depends on
how many there are. docs/decisions/quantizers-kernels.md says why not Numba's own parallel loops.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, NonFiniteVector, SpecError
from qafel.params import Vector
from qafel.quantizers import kernels
from qafel.quantizers.kernels import ADD, ASSIGN, BAD_STEP, GROUP, OK, SEED_BYTES, packed_bytes
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

Bytes: TypeAlias = NDArray[np.uint8]

DEFAULT_BUCKET: Final = 512
MAX_BUCKET: Final = 2**24 - 1

_FLOAT32 = np.dtype(np.float32)
_UINT8 = np.dtype(np.uint8)
_MAX_SIZE = 2**31  # counters and indices are 32-bit
_SIGN = 2**63
_LARGE = 1 << 18  # bytes; below, copying a payload is cheaper than keeping its buffer
_SPAN = 4096  # coordinates: 16 kB, so that the second pass over a span finds it in the first-level cache
_SERIAL_BELOW = 1 << 19  # coordinates; below, a second thread costs more than it brings

_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def as_vector(vector: Vector) -> Vector:
    """The vector as a kernel takes it: one-dimensional, contiguous, float32."""
    if type(vector) is np.ndarray and vector.dtype is _FLOAT32 and vector.ndim == 1 and vector.flags.c_contiguous:
        return vector  # the common case, in a fraction of a microsecond
    if not isinstance(vector, np.ndarray) or vector.dtype != _FLOAT32:
        kind = vector.dtype if isinstance(vector, np.ndarray) else type(vector).__name__
        raise TypeError(f"expected a float32 vector, found {kind}: convert with numpy.asarray(x, numpy.float32)")
    if vector.ndim != 1:
        raise ValueError(f"expected a flat vector, found shape {vector.shape}: flatten it, as Layout.flatten does")
    return np.ascontiguousarray(vector, _FLOAT32)


def as_finite_vector(vector: Vector) -> Vector:
    """`as_vector`, after making sure that no coordinate is NaN or infinite."""
    vector = as_vector(vector)
    if not kernels.shared.is_finite(vector):
        raise non_finite(vector)
    return vector


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
    if type(payload) is not bytes and array.flags.writeable:
        array.flags.writeable = False  # one type of array, one compiled kernel
    return array


def as_payload(written: Bytes) -> Payload:
    """What an encoder wrote into a buffer of its own, for others to read and nobody to change.

    A large buffer is handed out as it is: new memory comes page by page, so that at 25 million coordinates a copy takes
    longer than quantizing.
    """
    return written.tobytes() if written.size < _LARGE else written.data.toreadonly()


def as_sent(number: float) -> float:
    """A parameter after it crossed as a float32: its shortest decimal, so that 0.01 stays 0.01."""
    return float(str(np.float32(number)))


def check_size(size: int) -> int:
    """The size, if vectors of so many coordinates can be quantized."""
    if not 0 <= size < _MAX_SIZE:
        raise ValueError(f"a size must lie between 0 and {_MAX_SIZE - 1}, found {size}")
    return size


def check_bucket(bucket: int | None) -> None:
    """Refuse a bucket that no payload can name. `bucket` None: the whole vector is one."""
    if bucket is not None and not 1 <= bucket <= MAX_BUCKET:
        raise SpecError(f"a bucket holds 1 to {MAX_BUCKET} coordinates, or none for the whole vector, found {bucket}")


def bucket_text(bucket: int | None, separator: str = ",") -> str:
    """The bucket as a spec names it, after the separator: nothing for the default."""
    return "" if bucket == DEFAULT_BUCKET else f"{separator}bucket={'none' if bucket is None else bucket}"


def step_bytes(size: int, bucket: int | None) -> int:
    """The bytes of one float32 step per bucket of `size` coordinates."""
    return 4 * -(-check_size(size) // (bucket or max(size, 1)))


def non_finite(vector: Vector) -> NonFiniteVector:
    """The error for a vector that holds NaN or infinity, with the first place."""
    bad = np.flatnonzero(~np.isfinite(vector))
    return NonFiniteVector(
        f"expected finite coordinates, found {bad.size} of {vector.size} NaN or infinite, the first "
        f"({vector[bad[0]]}) at {bad[0]}: lower the learning rate, or drop this update"
    )


def bad_scale(what: str) -> MalformedPayload:
    """The error for a step or scale that no encoder writes."""
    return MalformedPayload(f"expected finite, non-negative {what}, found another: the payload is damaged or forged")


def seed_of(stream: Stream) -> bytes:
    """Eight bytes to send along, from which both ends make the same random numbers."""
    return (stream.words[0] ^ stream.words[1]).to_bytes(SEED_BYTES, "little")


def seed_word(seed: bytes) -> int:
    """The seed as int64, the one integer type that kernels are compiled for."""
    return int.from_bytes(seed, "little", signed=True)


class FixedRate(ABC):
    """What follows from a payload's length and from one way to apply it: the rest of a fixed-rate quantizer."""

    __slots__ = ()

    @abstractmethod
    def payload_bytes(self, size: int) -> int:
        """The length of every payload for `size` coordinates."""

    @abstractmethod
    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        """Assign (mode ASSIGN) or add (mode ADD) weight · decoded to the target; on an error, leave it as it was."""

    def decode(self, payload: Payload, size: int) -> Vector:
        target = np.empty(check_size(size), _FLOAT32)
        self._apply(target, payload, ASSIGN, 1.0)
        return target

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        self._apply(as_target(target), payload, ADD, float(weight))

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)


class Unbiased(FixedRate):
    """A fixed-rate quantizer with E Q(x) = x that can shrink what it sends: δ = 1 − ω."""

    __slots__ = ()

    def unbiased(self, size: int) -> bool:
        return True

    @abstractmethod
    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        """A payload that decodes to gain · Q(vector)."""

    @abstractmethod
    def omega(self, size: int) -> float:
        """Worst-case relative variance."""

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return self.encode_scaled(vector, stream, 1.0)

    def delta(self, size: int) -> float:
        return 1.0 - self.omega(size)


@lru_cache(1024)
def spans_of(size: int, bucket: int | None, bits: int) -> tuple[int, int, int, int]:
    """Bucket length, span length, number of spans, bytes of steps and codes.

    A span shares neither a bucket nor a byte with its neighbours.
    """
    length = bucket or max(size, 1)
    unit = math.lcm(length, GROUP)
    span = unit * max(1, _SPAN // unit)
    return length, span, -(-size // span), step_bytes(size, bucket) + packed_bytes(size, bits)


def encode(
    kernel: Callable[..., bool],
    vector: Vector,
    words: tuple[int, int],
    bucket: int | None,
    levels: float,
    bits: int,
    norm: int,
    gain: float,
    prefix: bytes = b"",
) -> Payload:
    """Quantize a vector into prefix, steps and codes; kernel is `encode_spans` or one with the same arguments."""
    vector = as_vector(vector)
    length, span, spans, total = spans_of(vector.size, bucket, bits)
    skip = len(prefix)
    out = np.empty(skip + total, _UINT8)
    if skip:
        out[:skip] = np.frombuffer(prefix, _UINT8)
    word0, word1 = (words[0] ^ _SIGN) - _SIGN, (words[1] ^ _SIGN) - _SIGN
    if vector.size >= _SERIAL_BELOW:
        common = (vector, out, word0, word1, length, span, float(levels), bits, norm, gain, skip)
        encode_spanwise(kernel, vector, common, spans)
    elif not kernel(vector, out, word0, word1, length, span, float(levels), bits, norm, gain, skip, 0, spans):
        raise non_finite(vector)  # the common case, without a tuple of arguments, which costs a tenth of the call
    return as_payload(out)


def encode_spanwise(kernel: Callable[..., bool], vector: Vector, common: tuple[Any, ...], spans: int) -> None:
    """Call kernel(*common, first, last) over all spans of a vector; it must say of all that they are finite."""
    if not true_spanwise(kernel, vector.size, common, spans):
        raise non_finite(vector)


def true_spanwise(kernel: Callable[..., bool], size: int, common: tuple[Any, ...], spans: int) -> bool:
    """Call kernel(*common, first, last) over all spans, on threads if that pays; whether it is true of all."""
    if size < _SERIAL_BELOW:
        return kernel(*common, 0, spans)
    return not _over_spans(lambda first, last: not kernel(*common, first, last), spans)


def apply_spanwise(kernel: Callable[..., int], size: int, common: tuple[Any, ...], spans: int) -> int:
    """Call kernel(*common, check, first, last) over all spans, on threads if that pays; the status of the check."""
    if size < _SERIAL_BELOW or _threads == 1:
        return kernel(*common, True, 0, spans)
    status = kernel(*common, True, 0, 0)
    if status == OK:
        _over_spans(lambda first, last: kernel(*common, False, first, last), spans)
    return status


def apply(
    target: Vector, payload: Payload, mode: int, weight: float, bucket: int | None, levels: int, bits: int
) -> None:
    """Assign or add weight · decoded to the target, from steps and codes that are centred on zero (QSGD, sign)."""
    size = target.size
    length, span, spans, total = spans_of(size, bucket, bits)
    data = as_bytes(payload, total)
    if size < _SERIAL_BELOW:  # the common case, without a tuple of arguments
        status = kernels.levels.apply_levels(target, data, mode, weight, length, span, levels, bits, True, 0, spans)
    else:
        common = (target, data, mode, weight, length, span, levels, bits)
        status = apply_spanwise(kernels.levels.apply_levels, size, common, spans)
    if status == BAD_STEP:
        raise bad_scale("steps")
    if status:
        raise MalformedPayload(f"expected codes up to {2 * levels}, found a larger one: made by another quantizer?")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use at most `count` threads inside the block (for benchmarks, and for workers that share a machine)."""
    before = _threads
    set_threads(count)
    try:
        yield
    finally:
        set_threads(before)


def set_threads(count: int) -> None:
    """Use at most `count` threads from now on."""
    global _threads  # noqa: PLW0603 — one process, one setting
    _threads = max(1, count)


def _over_spans(work: Callable[[int, int], int], spans: int) -> int:
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
