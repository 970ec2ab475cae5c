"""The kernels in NumPy, for a device without Numba: same names, same arguments, same bits.

Each module replaces one or two of `quantizers/kernels`, which documents the formats. This one replaces
`kernels.shared`. The functions work on pieces of some ten thousand coordinates, so that a device needs little memory
beside the vector. NumPy rounds each product and sum of float32 once, in the same order as the compiled kernels.

levels    a step per bucket or tensor and a code per coordinate: QSGD, sign, dithered, affine; top-k and rand-k
rotated   rotated blocks to the best levels for a Gaussian and back; rotated windows to the numbers of trellis and back
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qafel.params import Vector
from qafel.quantizers.kernels import ASSIGN, GROUP, LARGEST

Array = NDArray[Any]
Keys = tuple[int, int, int, int]

_WIDTHS = (1, 2, 4, 8)
MASK64 = (1 << 64) - 1


def mix64(words: Array) -> Array:
    """Mix 64 bits (the finaliser of SplitMix64)."""
    z = words + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def round_keys(word0: int, word1: int) -> Keys:
    """Four 32-bit keys of the counter hash, from two words of either sign."""
    words = np.array([word0 & MASK64, word1 & MASK64], np.uint64)
    first = mix64(words[:1] ^ mix64(words[1:]))
    second = mix64(words[1:] ^ first)
    a, b = int(first[0]), int(second[0])
    return a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32


def hash_pair(counters: Array, keys: Keys) -> tuple[Array, Array]:
    """Two words of 32 random bits for every counter."""
    k0, k1, k2, k3 = (np.uint32(k) for k in keys)
    h = counters.astype(np.uint32) * np.uint32(0x9E3779B1) + k0
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D) + k1
    h ^= h >> np.uint32(15)
    first, second = h * np.uint32(0x846CA68B) + k2, h * np.uint32(0x31848BAB) + k3
    return first ^ (first >> np.uint32(16)), second ^ (second >> np.uint32(16))


def is_finite(x: Vector) -> bool:
    """Whether no coordinate is NaN or infinite."""
    return bool(np.isfinite(x).all())


def uniform16(start: int, count: int, keys: Keys) -> Array:
    """The 16 random bits of coordinates start … start + count − 1. `start` must be the start of a group.

    One coordinate of each quarter of a group shares a hash.
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
    """The first `size` codes of packed bytes."""
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
    """Whether every step is non-negative and step · reach finite. False for NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(((steps >= 0) & (steps * np.float32(reach) < np.inf)).all())


def apply_values(part: Vector, values: Vector, mode: int, weight: float) -> None:
    """Assign or add values, clipped to the finite range, to a part of the target."""
    values = np.clip(values, -LARGEST, LARGEST)
    if mode == ASSIGN:
        part[:] = values
    else:
        part += np.float32(weight) * values
