"""What comes in is what was agreed: vectors of float32, payloads of the right length."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, NonFiniteVector
from qafel.params import Vector
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

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
