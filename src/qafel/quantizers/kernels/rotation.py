"""Randomised Hadamard rotation of a block, in place.

A block is a matrix of `rows` × `cols` in row-major order, and every column is rotated on its own: R = H·D₂·H·D₁ with
D₁, D₂ random signs. Columns side by side make every butterfly a contiguous, vectorised loop. H is not normalised:
two of them multiply by `rows`, a power of two, which whoever scales the result divides out exactly.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from qafel.quantizers.kernels.numeric import INNER, WEYL, hash_pair, weyl

BLOCK, COLUMNS = 4096, 16


@njit(**INNER)
def _butterflies8(x, size, stride):  # type: ignore[no-untyped-def]
    """Three stages at once: strides s, 2s and 4s."""
    s = uint64(stride)
    for base in range(0, size, 8 * stride):
        for j in range(stride):
            i = uint64(base) + uint64(j)
            a, b, c, d = x[i], x[i + s], x[i + s * uint64(2)], x[i + s * uint64(3)]
            e, f, g, h = x[i + s * uint64(4)], x[i + s * uint64(5)], x[i + s * uint64(6)], x[i + s * uint64(7)]
            a, b, c, d, e, f, g, h = a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h
            a, c, b, d, e, g, f, h = a + c, a - c, b + d, b - d, e + g, e - g, f + h, f - h
            x[i], x[i + s * uint64(4)] = a + e, a - e
            x[i + s], x[i + s * uint64(5)] = b + f, b - f
            x[i + s * uint64(2)], x[i + s * uint64(6)] = c + g, c - g
            x[i + s * uint64(3)], x[i + s * uint64(7)] = d + h, d - h


@njit(**INNER)
def _butterflies2(x, size, stride):  # type: ignore[no-untyped-def]
    """One stage, of any stride."""
    s = uint64(stride)
    for base in range(0, size, 2 * stride):
        for j in range(stride):
            i = uint64(base) + uint64(j)
            a, b = x[i], x[i + s]
            x[i], x[i + s] = a + b, a - b


@njit(**INNER)
def hadamard(x, size, cols):  # type: ignore[no-untyped-def]
    """Multiply every column by the Hadamard matrix, unnormalised."""
    stride = cols
    if size == BLOCK and cols == COLUMNS:
        _butterflies8(x, BLOCK, 16)  # constant strides compile to loops without a test for overlap
        _butterflies8(x, BLOCK, 128)
        stride = 1024
    while stride < size:
        _butterflies2(x, size, stride)
        stride *= 2


@njit(**INNER)
def draw_signs(counter, size, keys, signs):  # type: ignore[no-untyped-def]
    """Words that hold 32 signs each: those of D₁ in the first half of `signs`, those of D₂ in the second."""
    count = max(1, size // 32)
    place = weyl(counter, keys)
    for j in range(count):
        g, h = hash_pair(place, keys)
        signs[uint64(j)] = g
        signs[uint64(count + j)] = h
        place = uint32(place + WEYL)


@njit(**INNER)
def flip_signs(x, size, signs, half):  # type: ignore[no-untyped-def]
    """Multiply by D₁ (half 0) or D₂ (half 1)."""
    count = max(1, size // 32)
    bits = x.view(np.uint32)
    first = uint64(half * count)
    for turn in range(min(32, size)):
        shift = uint32(turn) & uint32(31)
        base = uint64(turn * count)
        for j in range(count):
            bits[base + uint64(j)] ^= uint32(uint32(signs[first + uint64(j)] << shift) & uint32(0x80000000))


@njit(**INNER)
def rotate(x, size, cols, signs):  # type: ignore[no-untyped-def]
    """Rotate the block: x ← H·D₂·H·D₁·x."""
    for half in range(2):
        flip_signs(x, size, signs, half)
        hadamard(x, size, cols)


@njit(**INNER)
def rotate_back(x, size, cols, signs):  # type: ignore[no-untyped-def]
    """Undo `rotate`, but for a factor of rows²: x ← D₁·H·D₂·H·x."""
    for half in range(1, -1, -1):
        hadamard(x, size, cols)
        flip_signs(x, size, signs, half)


@njit(**INNER)
def block_of(number, tail):  # type: ignore[no-untyped-def]
    """Start, coordinates, size with padding, columns, first code, first scale of a block."""
    full = tail[0, 0]
    if number < full:
        return number * BLOCK, BLOCK, BLOCK, COLUMNS, number * BLOCK, number * COLUMNS
    row = tail[number - full + 1]
    return row[0], row[1], row[2], row[3], row[4], row[5]
