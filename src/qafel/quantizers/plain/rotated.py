"""Kernels of rotated in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qafel.params import Vector
from qafel.quantizers.kernels import BAD_STEP, BLOCK, COLUMNS, LARGEST, OK, packed_bytes
from qafel.quantizers.plain import (
    Array,
    Keys,
    apply_values,
    hash_pair,
    is_finite,
    pack,
    round_keys,
    steps_are_sound,
    steps_in,
    unpack,
)

_FLOAT = np.float32


def signs(first: int, size: int, keys: Keys, shape: tuple[int, ...]) -> list[Array]:
    """D₁ and D₂ from size/32 counters: bit 31 − p of word j is the sign of coordinate p·size/32 + j."""
    words = hash_pair(first + np.arange(size // 32), keys)
    shifts = np.arange(32, dtype=np.uint32)[:, None]
    negative = [((word[None, :] << shifts) >> np.uint32(31)).ravel() for word in words]
    return [np.where(which, _FLOAT(-1), _FLOAT(1)).reshape(shape) for which in negative]


def stages(x: Array, strides: list[int]) -> Array:
    """Butterflies (a + b, a − b) of rows that lie a stride apart, for one stride after another."""
    for h in strides:
        pairs = x.reshape(-1, 2, h, x.shape[1])
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).reshape(x.shape)
    return x


def turn(x: Array) -> Array:
    """Row j and row j + rows/2, turned by the angle of j mod 16, times √2."""
    half = x.shape[0] // 2
    j = np.arange(half) % 16
    t = 0.25 + 0.375 * ((2 * j + 1) * 0x9E3779B1 % 2**32 / 2.0**32)
    root = math.sqrt(2.0) / (1.0 + t * t)
    cos, sin = ((root * v).astype(np.float32)[:, None] for v in (1.0 - t * t, t + t))
    return np.concatenate([cos * x[:half] + sin * x[half:], sin * x[:half] - cos * x[half:]])


def _mixed(x: Array, mix: bool) -> Array:
    return np.ascontiguousarray(stages(np.ascontiguousarray(x.T), [1, 2, 4, 8]).T) if mix else x


def rotate(x: Array, turns: int, mix: bool, counter: int, keys: Keys) -> Array:
    """Rotate a block of rows and columns: H·(M)·D₂·G·H′·(M)·D₁. Each turn multiplies by rows (with M by size)."""
    strides = [1 << k for k in range(len(x).bit_length() - 1)]
    for again in range(turns):
        d1, d2 = signs(counter + again * (x.size // 32), x.size, keys, x.shape)
        x = turn(stages(_mixed(x * d1, mix), strides[:-1])) * d2
        x = stages(_mixed(x, mix), strides)
    return x


def rotate_back(x: Array, turns: int, mix: bool, counter: int, keys: Keys) -> Array:
    """The transpose of `rotate`."""
    strides = [1 << k for k in range(len(x).bit_length() - 1)]
    for again in reversed(range(turns)):
        d1, d2 = signs(counter + again * (x.size // 32), x.size, keys, x.shape)
        x = turn(_mixed(stages(x, strides), mix) * d2)
        x = _mixed(stages(x, [strides[-2], *strides[:-2]]), mix) * d1
    return x


def _blocks(tail: Array, bits: int, first: int, last: int) -> Iterator[tuple[int, ...]]:
    """Start, coordinates, size with padding, columns, first code, first scale, first byte of the codes of blocks."""
    full = int(tail[0, 0])
    for number in range(first, last):
        if number < full:
            start = number * BLOCK
            yield start, BLOCK, BLOCK, COLUMNS, start, number * COLUMNS, start * bits // 8
        else:
            yield tuple(map(int, tail[number - full + 1]))


def _turns(rows: int) -> tuple[int, float]:
    """The number of turns for a column, and the inverse of their factor."""
    return (1, 1.0 / rows) if rows >= 128 else (2, 1.0 / (rows * rows))


def _column_sums(x: Array) -> Array:
    """In float32 over 16 rows at a time, then in float64."""
    partial = np.cumsum(x.reshape(-1, 16, x.shape[1]), axis=1, dtype=np.float32)[:, -1]
    return np.asarray(np.cumsum(partial, axis=0, dtype=np.float64)[-1])


def encode_blocks(
    x: Vector, out: Array, word: int, tail: Array, levels: Vector, bits: int, gain: float, first: int, last: int
) -> bool:
    """As the kernel of this name."""
    head = 8 + 4 * int(tail[0, 1])
    keys = round_keys(word, 0)
    edges = (levels[:-1] + levels[1:]) * _FLOAT(0.5)
    for start, count, size, cols, at, scale_at, byte in _blocks(tail, bits, first, last):
        part = x[start : start + count]
        if not is_finite(part):
            return False
        power = max((int(np.abs(part).max().view(np.int32)) >> 23) - 127, -126)
        block = np.zeros(size, np.float32)
        block[:count] = part * _FLOAT(2.0**-power)
        rows = size // cols
        y = rotate(block.reshape(rows, cols), _turns(rows)[0], False, at, keys)
        sums = _column_sums(y * y)
        inverse = [math.sqrt(rows / square) if square > 0 else 0.0 for square in sums.tolist()]
        y = y * np.array(inverse, np.float32)
        a = np.abs(y)
        index = np.searchsorted(edges, a)
        dots = _column_sums(a * levels[index])
        scales = np.zeros(cols, "<f4")
        for c, (square, dot) in enumerate(zip(sums.tolist(), dots.tolist(), strict=True)):
            scale = math.sqrt(square / rows) * (rows * _turns(rows)[1] / dot) if dot > 0 else 0.0
            scales[c] = min(scale * gain * 2.0**power, float(LARGEST))
        out[8 + 4 * scale_at : 8 + 4 * (scale_at + cols)] = np.frombuffer(scales.tobytes(), np.uint8)
        codes = (index + np.where(y < 0, levels.size, 0)).astype(np.uint8).ravel()
        out[head + byte : head + byte + packed_bytes(size, bits)] = pack(codes, bits)
    return True


def apply_blocks(
    target: Vector, payload: Array, mode: int, factor: float, word: int, tail: Array, levels: Vector, bits: int,
    check: bool, first: int, last: int,
) -> int:  # fmt: skip
    """As the kernel of this name."""
    scales = steps_in(payload, 8, int(tail[0, 1]))
    if check and not steps_are_sound(scales, 1.0):
        return BAD_STEP
    keys, head = round_keys(word, 0), 8 + 4 * scales.size
    both = np.concatenate([levels, -levels])
    for start, count, size, cols, at, scale_at, byte in _blocks(tail, bits, first, last):
        codes = unpack(payload[head + byte :], size, bits).reshape(-1, cols)
        turns, unit = _turns(len(codes))
        x = rotate_back(both[codes] * _FLOAT(unit), turns, False, at, keys)
        with np.errstate(over="ignore"):
            values = (x * scales[scale_at : scale_at + cols]).ravel()[:count]
        apply_values(target[start : start + count], values, mode, factor)
    return OK
