"""A random rotation of a block, in place: signs, turns and Hadamard transforms. For `rotated` and `trellis`.

A block is a matrix of `rows` × `cols` in row-major order, and every column is rotated on its own: R = H·D₂·G·H′·D₁
with D₁, D₂ random signs, H the Hadamard matrix, H′ all of its stages but the last, and G in the place of that one: it
turns rows j and j + rows/2 by one of sixteen angles instead of 45°. Without it, a vector of a few equal numbers would
meet few different sums, often zero, and Q would be biased. A column of fewer than 128 rows is rotated twice. Columns
side by side make every butterfly a contiguous, vectorised loop. H is not normalised: R multiplies by `rows`, a power
of two, which is divided out exactly. docs/decisions/quantizers-rotated.md has the reasons.

A window of `trellis` is rotated as a whole: the same with sixteen columns, and both times a Hadamard transform along
the rows, M, mixes them: H·M·D₂·G·H′·M·D₁. That multiplies by `size`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from qafel.compiled import INNER, load, mixed, store
from qafel.params import Vector
from qafel.quantizers.kernels import BLOCK, COLUMNS, WEYL
from qafel.quantizers.kernels.shared import hash_pair, weyl

ANGLES = 16


def _angles() -> tuple[Vector, Vector]:
    """√2·cos θ and √2·sin θ of the sixteen angles, between 28° and 64°; part of the format.

    With t = tan(θ/2) they are rational, so that every machine computes the same.
    """
    t = 0.25 + 0.375 * (np.arange(1, 2 * ANGLES, 2, dtype=np.uint32) * WEYL / 2.0**32)
    root = np.sqrt(2.0) / (1.0 + t * t)
    return (root * (1.0 - t * t)).astype(np.float32), (root * (t + t)).astype(np.float32)


COSINES, SINES = _angles()
_WIDE_COSINES, _WIDE_SINES = COSINES.repeat(COLUMNS), SINES.repeat(COLUMNS)  # along sixteen rows of a full block
_LONG_COSINES, _LONG_SINES = np.tile(COSINES, 16), np.tile(SINES, 16)  # along half of the longest column, 512 rows


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
def _butterflies4(x):  # type: ignore[no-untyped-def]
    """The last two stages of a full block at once."""
    one, two, three = uint64(1024), uint64(2048), uint64(3072)
    for j in range(1024):
        i = uint64(j)
        a, b, c, d = x[i], x[i + one], x[i + two], x[i + three]
        a, b, c, d = a + b, a - b, c + d, c - d
        x[i], x[i + one], x[i + two], x[i + three] = a + c, b + d, a - c, b - d


@njit(**INNER)
def _flipped(value, word, part):  # type: ignore[no-untyped-def]
    """The value with the sign that bit 31 − part of the word says."""
    bits = uint32(np.float32(value).view(np.uint32) ^ uint32(uint32(word << part) & uint32(0x80000000)))
    return np.uint32(bits).view(np.float32)


@njit(**INNER)
def _last_turned(x, signs):  # type: ignore[no-untyped-def]
    """The last two stages of a full block, the very last with the angles of G, and the signs of D₂, at once."""
    one, two, three = uint64(1024), uint64(2048), uint64(3072)
    for eighth in range(8):
        part = uint32(eighth) & uint32(7)
        angle = uint64((eighth & 1) * 128)
        for j in range(128):
            i, word = uint64(128 * eighth) + uint64(j), signs[uint64(128) + uint64(j)]
            cos, sin = _WIDE_COSINES[angle + uint64(j)], _WIDE_SINES[angle + uint64(j)]
            a, b, c, d = x[i], x[i + one], x[i + two], x[i + three]
            a, b, c, d = a + b, a - b, c + d, c - d
            x[i] = _flipped(cos * a + sin * c, word, part)
            x[i + one] = _flipped(cos * b + sin * d, word, part + uint32(8))
            x[i + two] = _flipped(sin * a - cos * c, word, part + uint32(16))
            x[i + three] = _flipped(sin * b - cos * d, word, part + uint32(24))


@njit(**INNER)
def _first_turned(x, signs):  # type: ignore[no-untyped-def]
    """The transpose of `_last_turned`."""
    one, two, three = uint64(1024), uint64(2048), uint64(3072)
    for eighth in range(8):
        part = uint32(eighth) & uint32(7)
        angle = uint64((eighth & 1) * 128)
        for j in range(128):
            i, word = uint64(128 * eighth) + uint64(j), signs[uint64(128) + uint64(j)]
            cos, sin = _WIDE_COSINES[angle + uint64(j)], _WIDE_SINES[angle + uint64(j)]
            a = _flipped(x[i], word, part)
            b = _flipped(x[i + one], word, part + uint32(8))
            c = _flipped(x[i + two], word, part + uint32(16))
            d = _flipped(x[i + three], word, part + uint32(24))
            a, b, c, d = cos * a + sin * c, cos * b + sin * d, sin * a - cos * c, sin * b - cos * d
            x[i], x[i + one], x[i + two], x[i + three] = a + b, a - b, c + d, c - d


@njit(**INNER)
def _stages(x, size, stride, end):  # type: ignore[no-untyped-def]
    """Stages with strides from `stride` to below `end`, the smallest first."""
    while stride < end:
        _butterflies2(x, size, stride)
        stride *= 2


@njit(**INNER)
def _turn(x, size, cols):  # type: ignore[no-untyped-def]
    """Multiply by G. With θ the angle number j mod 16, rows j and j + rows/2 become

    √2·(cos θ·a + sin θ·b) and √2·(sin θ·a − cos θ·b).
    """
    half = uint64(size // 2)
    if cols == 1:
        for j in range(size // 2):
            cos, sin = _LONG_COSINES[uint64(j)], _LONG_SINES[uint64(j)]
            a, b = x[uint64(j)], x[uint64(j) + half]
            x[uint64(j)], x[uint64(j) + half] = cos * a + sin * b, sin * a - cos * b
        return
    for row in range(size // 2 // cols):
        cos, sin = _LONG_COSINES[uint64(row)], _LONG_SINES[uint64(row)]
        for col in range(cols):
            i = uint64(row * cols) + uint64(col)
            a, b = x[i], x[i + half]
            x[i], x[i + half] = cos * a + sin * b, sin * a - cos * b


@njit(**INNER)
def hadamard(x, size, cols):  # type: ignore[no-untyped-def]
    """Multiply every column by H, unnormalised: stage by stage, the smallest stride first."""
    if size == BLOCK and cols == COLUMNS:
        _butterflies8(x, BLOCK, 16)  # constant strides compile to loops without a test for overlap
        _butterflies8(x, BLOCK, 128)
        _butterflies4(x)
    else:
        _stages(x, size, cols, size)


@njit(**INNER)
def turns_of(rows):  # type: ignore[no-untyped-def]
    """How often a column of so many rows is rotated, and the inverse of what that multiplies it by."""
    return (1, 1.0 / rows) if rows >= 128 else (2, 1.0 / (rows * rows))


@njit(**INNER)
def draw_signs(counter, size, turns, keys, signs):  # type: ignore[no-untyped-def]
    """Words that hold 32 signs each: those of D₁, then those of D₂, and again for every further turn."""
    count = size // 32
    place = weyl(counter, keys)
    for turn in range(turns):
        first = uint64(2 * turn * count)
        for j in range(count):
            g, h = hash_pair(place, keys)
            signs[first + uint64(j)] = g
            signs[first + uint64(count) + uint64(j)] = h
            place = uint32(place + WEYL)


@njit(**INNER)
def flip_signs(x, size, signs, number):  # type: ignore[no-untyped-def]
    """Multiply by D₁ (number 0), by D₂ (number 1), and so on."""
    count = size // 32
    bits = x.view(np.uint32)
    first = uint64(number * count)
    for part in range(32):
        shift = uint32(part) & uint32(31)
        base = uint64(part * count)
        for j in range(count):
            bits[base + uint64(j)] ^= uint32(uint32(signs[first + uint64(j)] << shift) & uint32(0x80000000))


@njit(**INNER)
def rotate(x, size, cols, turns, signs):  # type: ignore[no-untyped-def]
    """Rotate the block, times rows at every turn: x ← H·D₂·G·H′·D₁·x."""
    for turn in range(turns):
        flip_signs(x, size, signs, 2 * turn)
        if size == BLOCK and cols == COLUMNS:
            _butterflies8(x, BLOCK, 16)
            _butterflies8(x, BLOCK, 128)
            _last_turned(x, signs)
        else:
            _stages(x, size, cols, size // 2)
            _turn(x, size, cols)
            flip_signs(x, size, signs, 2 * turn + 1)
        hadamard(x, size, cols)


@njit(**INNER)
def rotate_back(x, size, cols, turns, signs):  # type: ignore[no-untyped-def]
    """Rotate the block back, again times rows at every turn: x ← D₁·H′·G·D₂·H·x.

    The stage of the largest stride in H′ comes first, then the others, the smallest first.
    """
    for turn in range(turns - 1, -1, -1):
        hadamard(x, size, cols)
        if size == BLOCK and cols == COLUMNS:
            _first_turned(x, signs)
            _butterflies8(x, BLOCK, 16)
            _butterflies8(x, BLOCK, 128)
        else:
            flip_signs(x, size, signs, 2 * turn + 1)
            _turn(x, size, cols)
            _stages(x, size, size // 4, size // 2)
            _stages(x, size, cols, size // 4)
        flip_signs(x, size, signs, 2 * turn)


@njit(**INNER)
def _mix_columns(x, size):  # type: ignore[no-untyped-def]
    """Multiply by M: every row of sixteen by the Hadamard matrix."""
    for row in range(0, size, COLUMNS):
        store(x, row, mixed(load(x, row)))


@njit(**INNER)
def _mixed_butterflies8(x):  # type: ignore[no-untyped-def]
    """Multiply a full block by M, then the first three stages, of eight rows next to each other, at once."""
    for at in range(0, BLOCK, 8 * COLUMNS):
        a, b = mixed(load(x, at)), mixed(load(x, at + COLUMNS))
        c, d = mixed(load(x, at + 2 * COLUMNS)), mixed(load(x, at + 3 * COLUMNS))
        e, f = mixed(load(x, at + 4 * COLUMNS)), mixed(load(x, at + 5 * COLUMNS))
        g, h = mixed(load(x, at + 6 * COLUMNS)), mixed(load(x, at + 7 * COLUMNS))
        a, b, c, d, e, f, g, h = a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h
        a, c, b, d, e, g, f, h = a + c, a - c, b + d, b - d, e + g, e - g, f + h, f - h
        store(x, at, a + e)
        store(x, at + COLUMNS, b + f)
        store(x, at + 2 * COLUMNS, c + g)
        store(x, at + 3 * COLUMNS, d + h)
        store(x, at + 4 * COLUMNS, a - e)
        store(x, at + 5 * COLUMNS, b - f)
        store(x, at + 6 * COLUMNS, c - g)
        store(x, at + 7 * COLUMNS, d - h)


@njit(**INNER)
def rotate_window(x, size, signs):  # type: ignore[no-untyped-def]
    """Rotate x[:size] as a whole, times size: x ← H·M·D₂·G·H′·M·D₁·x."""
    flip_signs(x, size, signs, 0)
    if size == BLOCK:
        _mixed_butterflies8(x)
        _butterflies8(x, BLOCK, 128)
        _last_turned(x, signs)
        _mixed_butterflies8(x)
        _butterflies8(x, BLOCK, 128)
        _butterflies4(x)
    else:
        _mix_columns(x, size)
        _stages(x, size, COLUMNS, size // 2)
        _turn(x, size, COLUMNS)
        flip_signs(x, size, signs, 1)
        _mix_columns(x, size)
        hadamard(x, size, COLUMNS)


@njit(**INNER)
def rotate_window_back(x, size, signs):  # type: ignore[no-untyped-def]
    """Rotate x[:size] back, again times size: x ← D₁·M·H′·G·D₂·M·H·x."""
    hadamard(x, size, COLUMNS)
    _mix_columns(x, size)
    if size == BLOCK:
        _first_turned(x, signs)
        _butterflies8(x, BLOCK, 16)
        _butterflies8(x, BLOCK, 128)
    else:
        flip_signs(x, size, signs, 1)
        _turn(x, size, COLUMNS)
        _stages(x, size, size // 4, size // 2)
        _stages(x, size, COLUMNS, size // 4)
    _mix_columns(x, size)
    flip_signs(x, size, signs, 0)
