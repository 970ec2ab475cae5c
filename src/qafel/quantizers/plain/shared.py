"""What the NumPy kernels share: 16 random bits for every coordinate, packing, and the end of every decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qafel.params import Vector
from qafel.quantizers.kernels import ASSIGN, GROUP, LARGEST
from qafel.quantizers.trellis.plain import Keys, hash_pair

Array = NDArray[Any]

_WIDTHS = (1, 2, 4, 8)


def is_finite(x: Vector) -> bool:
    """Whether no coordinate is NaN or infinite."""
    return bool(np.isfinite(x).all())


def uniform16(start: int, count: int, keys: Keys) -> Array:
    """The 16 random bits of coordinates start … start + count − 1, where `start` begins a group.

    A hash is shared by one coordinate of each quarter of its group.
    """
    groups, rest = divmod(count, GROUP)
    result = np.empty(count, np.int32)
    counters = start + GROUP * np.arange(groups)[:, None] + np.arange(GROUP // 4)
    first, second = hash_pair(counters, keys)
    words = np.concatenate([first, second], axis=1)
    result[: groups * GROUP] = np.concatenate([words & 0xFFFF, words >> 16], axis=1).ravel()
    if rest:
        half = (rest + 1) // 2
        quarter = (half + 1) // 2
        first, second = hash_pair(start + groups * GROUP + np.arange(quarter), keys)
        last = np.concatenate([first, second[: half - quarter]])
        result[groups * GROUP :] = np.concatenate([last & 0xFFFF, (last >> 16)[: rest - half]])
    return result


def pack(codes: Array, bits: int) -> Array:
    """The bytes of packed codes, group after group, plane after plane."""
    full = codes.size // GROUP * GROUP
    parts = [_planes(codes[:full].reshape(-1, GROUP), bits).ravel()]
    if full < codes.size:
        parts.append(_planes(codes[None, full:], bits).ravel())
    return np.concatenate(parts)


def _planes(groups: Array, bits: int) -> Array:
    """Rows of codes to rows of bytes."""
    planes, low, count = [], 0, groups.shape[1]
    for width in _WIDTHS:
        if bits & width:
            per_byte = 8 // width
            stride = -(-count // per_byte)
            pieces = np.zeros((len(groups), per_byte * stride), np.uint8)
            pieces[:, :count] = (groups >> low) & ((1 << width) - 1)
            pieces = pieces.reshape(-1, per_byte, stride) << (width * np.arange(per_byte, dtype=np.uint8))[:, None]
            planes.append(np.bitwise_or.reduce(pieces, axis=1))
            low += width
    return np.concatenate(planes, axis=1)


def unpack(packed: Array, size: int, bits: int) -> Array:
    """The first `size` codes that `pack` made these bytes of."""
    groups, rest = divmod(size, GROUP)
    length = GROUP * bits // 8
    codes = np.empty(size, np.uint8)
    codes[: groups * GROUP] = _codes(packed[: groups * length].reshape(groups, length), GROUP, bits).ravel()
    if rest:
        codes[groups * GROUP :] = _codes(packed[None, groups * length :], rest, bits)[0]
    return codes


def _codes(rows: Array, count: int, bits: int) -> Array:
    """The inverse of `_planes`."""
    codes, at, low = np.zeros((len(rows), count), np.uint8), 0, 0
    for width in _WIDTHS:
        if bits & width:
            per_byte = 8 // width
            stride = -(-count // per_byte)
            plane = rows[:, None, at : at + stride] >> (width * np.arange(per_byte, dtype=np.uint8))[:, None]
            pieces = (plane & np.uint8((1 << width) - 1)).reshape(len(rows), per_byte * stride)
            codes |= pieces[:, :count] << np.uint8(low)
            at, low = at + stride, low + width
    return codes


def steps_in(payload: Array, at: int, count: int) -> Vector:
    """Little-endian float32 from bytes at any alignment."""
    return np.frombuffer(payload[at : at + 4 * count].tobytes(), "<f4").astype(np.float32)


def steps_are_sound(steps: Vector, reach: float) -> bool:
    """Every step is non-negative and step · reach finite; false for NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(((steps >= 0) & (steps * np.float32(reach) < np.inf)).all())


def apply_values(part: Vector, values: Vector, mode: int, weight: float) -> None:
    """Assign or add values, cut to the finite range, to a part of the target."""
    values = np.clip(values, -LARGEST, LARGEST)
    if mode == ASSIGN:
        part[:] = values
    else:
        part += np.float32(weight) * values
