"""Kernels of rotated in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qafel.params import Vector
from qafel.quantizers.kernels import BAD_STEP, BLOCK, COLUMNS, LARGEST, OK, packed_bytes
from qafel.quantizers.plain.shared import Array, apply_values, is_finite, pack, steps_are_sound, steps_in, unpack
from qafel.quantizers.trellis.plain import Keys, round_keys, signs, stages, turn

_FLOAT = np.float32
_MASK64 = (1 << 64) - 1


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
    """How often a column of so many rows is rotated, and the inverse of what that multiplies it by."""
    return (1, 1.0 / rows) if rows >= 128 else (2, 1.0 / (rows * rows))


def _rotated(x: Array, counter: int, keys: Keys) -> Array:
    """A block of rows and columns, times rows at every turn: H·D₂·G·H′·D₁."""
    strides = [1 << k for k in range(len(x).bit_length() - 1)]
    for again in range(_turns(len(x))[0]):
        d1, d2 = signs(counter + again * (x.size // 32), x.size, keys, x.shape)
        x = stages(turn(stages(x * d1, strides[:-1])) * d2, strides)
    return x


def _rotated_back(x: Array, counter: int, keys: Keys) -> Array:
    """The transpose of `_rotated`."""
    strides = [1 << k for k in range(len(x).bit_length() - 1)]
    for again in reversed(range(_turns(len(x))[0])):
        d1, d2 = signs(counter + again * (x.size // 32), x.size, keys, x.shape)
        x = stages(turn(stages(x, strides) * d2), [strides[-2], *strides[:-2]]) * d1
    return x


def _column_sums(x: Array) -> Array:
    """In float32 over 16 rows at a time, then in float64."""
    partial = np.cumsum(x.reshape(-1, 16, x.shape[1]), axis=1, dtype=np.float32)[:, -1]
    return np.asarray(np.cumsum(partial, axis=0, dtype=np.float64)[-1])


def encode_blocks(
    x: Vector, out: Array, word: int, tail: Array, levels: Vector, bits: int, gain: float, first: int, last: int
) -> bool:
    """As the kernel of this name."""
    head = 8 + 4 * int(tail[0, 1])
    keys = round_keys((word & _MASK64, 0))
    edges = (levels[:-1] + levels[1:]) * _FLOAT(0.5)
    for start, count, size, cols, at, scale_at, byte in _blocks(tail, bits, first, last):
        part = x[start : start + count]
        if not is_finite(part):
            return False
        power = max((int(np.abs(part).max().view(np.int32)) >> 23) - 127, -126)
        block = np.zeros(size, np.float32)
        block[:count] = part * _FLOAT(2.0**-power)
        rows = size // cols
        y = _rotated(block.reshape(rows, cols), at, keys)
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
    keys, head = round_keys((word & _MASK64, 0)), 8 + 4 * scales.size
    both = np.concatenate([levels, -levels])
    for start, count, size, cols, at, scale_at, byte in _blocks(tail, bits, first, last):
        codes = unpack(payload[head + byte :], size, bits).reshape(-1, cols)
        x = _rotated_back(both[codes] * _FLOAT(_turns(len(codes))[1]), at, keys)
        with np.errstate(over="ignore"):
            values = (x * scales[scale_at : scale_at + cols]).ravel()[:count]
        apply_values(target[start : start + count], values, mode, factor)
    return OK
