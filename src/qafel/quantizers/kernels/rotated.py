"""Kernels of rotated: a random rotation of blocks, and their coordinates to codes and back.

A block is a matrix of `rows` × `cols` in row-major order. Every column is rotated on its own: R = H·D₂·G·H′·D₁. D₁ and
D₂ are random signs. H is the Hadamard matrix, and H′ is H without its last stage. G replaces that stage: it turns rows
j and j + rows/2 by one of sixteen angles instead of 45°. Without G, a vector of a few equal numbers would give few
different sums, often zero, and Q would be biased. A column of fewer than 128 rows is rotated twice. Columns side by
side make every butterfly a contiguous, vectorised loop. H is not normalised: R multiplies by `rows`, a power of two
that divides out exactly. See docs/decisions/quantizers.md.

`trellis` rotates a window as a whole: sixteen columns, and a Hadamard transform M along the rows mixes them twice:
H·M·D₂·G·H′·M·D₁. That multiplies by `size`.

After the rotation a column y of n coordinates looks like n draws of N(0, σ²), σ = ‖y‖/√n, for any x. Each coordinate is
sent as the nearest of 2ᵇ levels q(y/σ). The receiver multiplies by S = ‖y‖² / ⟨y, q⟩, so that the part along y, and so
along x, is exact. Vargaftik et al., DRIVE (2021) and EDEN (2022).
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, njit, uint8, uint32, uint64

from qafel.compiled import INNER, KERNEL, load, mixed, store
from qafel.params import Vector
from qafel.quantizers.kernels import BAD_STEP, BLOCK, COLUMNS, GROUP, INFINITY_BITS, LARGEST, OK, WEYL
from qafel.quantizers.kernels.shared import (
    apply_values,
    hash_pair,
    magnitude_bits,
    pack_group,
    read_steps,
    round_keys,
    steps_are_sound,
    unpack_group,
    weyl,
)

_SMALLEST_POWER, _LARGEST_POWER = -126, 127
ANGLES = 16


def _angles() -> tuple[Vector, Vector]:
    """√2·cos θ and √2·sin θ of the sixteen angles, between 28° and 64°. They are part of the format.

    With t = tan(θ/2) they are rational, so every machine computes the same numbers.
    """
    t = 0.25 + 0.375 * (np.arange(1, 2 * ANGLES, 2, dtype=np.uint32) * WEYL / 2.0**32)
    root = np.sqrt(2.0) / (1.0 + t * t)
    return (root * (1.0 - t * t)).astype(np.float32), (root * (t + t)).astype(np.float32)


COSINES, SINES = _angles()
_WIDE_COSINES, _WIDE_SINES = COSINES.repeat(COLUMNS), SINES.repeat(COLUMNS)  # along sixteen rows of a full block
_LONG_COSINES, _LONG_SINES = np.tile(COSINES, 16), np.tile(SINES, 16)  # along half of the longest column, 512 rows


@njit(**INNER)
def _butterflies8(x, size, stride):  # type: ignore[no-untyped-def]
    """Three stages in one pass: strides s, 2s and 4s."""
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
    """The last two stages of a full block in one pass."""
    one, two, three = uint64(1024), uint64(2048), uint64(3072)
    for j in range(1024):
        i = uint64(j)
        a, b, c, d = x[i], x[i + one], x[i + two], x[i + three]
        a, b, c, d = a + b, a - b, c + d, c - d
        x[i], x[i + one], x[i + two], x[i + three] = a + c, b + d, a - c, b - d


@njit(**INNER)
def _flipped(value, word, part):  # type: ignore[no-untyped-def]
    """The value, with its sign flipped if bit 31 − part of the word is set."""
    bits = uint32(np.float32(value).view(np.uint32) ^ uint32(uint32(word << part) & uint32(0x80000000)))
    return np.uint32(bits).view(np.float32)


@njit(**INNER)
def _last_turned(x, signs):  # type: ignore[no-untyped-def]
    """The last two stages of a full block, with the angles of G in the very last, and the signs of D₂."""
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
    """Stages with strides from `stride` to below `end`, in increasing order."""
    while stride < end:
        _butterflies2(x, size, stride)
        stride *= 2


@njit(**INNER)
def _turn(x, size, cols):  # type: ignore[no-untyped-def]
    """Multiply by G. Rows j and j + rows/2 become √2·(cos θ·a + sin θ·b) and √2·(sin θ·a − cos θ·b).

    θ is angle number j mod 16.
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
    """Multiply every column by H, unnormalised: stage by stage, with increasing strides."""
    if size == BLOCK and cols == COLUMNS:
        _butterflies8(x, BLOCK, 16)  # constant strides compile to loops without overlap tests
        _butterflies8(x, BLOCK, 128)
        _butterflies4(x)
    else:
        _stages(x, size, cols, size)


@njit(**INNER)
def turns_of(rows):  # type: ignore[no-untyped-def]
    """The number of turns for a column, and the inverse of their factor."""
    return (1, 1.0 / rows) if rows >= 128 else (2, 1.0 / (rows * rows))


@njit(**INNER)
def draw_signs(counter, size, turns, keys, signs):  # type: ignore[no-untyped-def]
    """Words with 32 signs each: those of D₁, then those of D₂, for every turn."""
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
def _mix_columns(x, size):  # type: ignore[no-untyped-def]
    """Multiply by M: every row of sixteen by the Hadamard matrix."""
    for row in range(0, size, COLUMNS):
        store(x, row, mixed(load(x, row)))


@njit(**INNER)
def rotate(x, size, cols, turns, mix, signs):  # type: ignore[no-untyped-def]
    """Rotate the block. Each turn multiplies it by rows (with M by size): x ← H·(M)·D₂·G·H′·(M)·D₁·x."""
    for turn in range(turns):
        flip_signs(x, size, signs, 2 * turn)
        if mix:
            _mix_columns(x, size)
        if size == BLOCK and cols == COLUMNS:
            _butterflies8(x, BLOCK, 16)
            _butterflies8(x, BLOCK, 128)
            _last_turned(x, signs)
        else:
            _stages(x, size, cols, size // 2)
            _turn(x, size, cols)
            flip_signs(x, size, signs, 2 * turn + 1)
        if mix:
            _mix_columns(x, size)
        hadamard(x, size, cols)


@njit(**INNER)
def rotate_back(x, size, cols, turns, mix, signs):  # type: ignore[no-untyped-def]
    """Rotate the block back, with the same factor at every turn: x ← D₁·(M)·H′·G·D₂·(M)·H·x.

    The stage of the largest stride in H′ comes first, then the others, the smallest first.
    """
    for turn in range(turns - 1, -1, -1):
        hadamard(x, size, cols)
        if mix:
            _mix_columns(x, size)
        if size == BLOCK and cols == COLUMNS:
            _first_turned(x, signs)
            _butterflies8(x, BLOCK, 16)
            _butterflies8(x, BLOCK, 128)
        else:
            flip_signs(x, size, signs, 2 * turn + 1)
            _turn(x, size, cols)
            _stages(x, size, size // 4, size // 2)
            _stages(x, size, cols, size // 4)
        if mix:
            _mix_columns(x, size)
        flip_signs(x, size, signs, 2 * turn)


@njit(**INNER)
def block_of(number, tail):  # type: ignore[no-untyped-def]
    """Start, coordinates, size with padding, columns, first code, first scale of a block."""
    full = tail[0, 0]
    if number < full:
        return number * BLOCK, BLOCK, BLOCK, COLUMNS, number * BLOCK, number * COLUMNS
    row = tail[number - full + 1]
    return row[0], row[1], row[2], row[3], row[4], row[5]


@njit(**INNER)
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2^exponent by its bits, because a library's power function may be inexact."""
    return np.int64(np.int64(exponent + 1023) << np.int64(52)).view(np.float64)


@njit(**INNER)
def _load(x, start, count, size, block):  # type: ignore[no-untyped-def]
    """Copy x[start : start + count] into the block, pad it with zeros and scale it by 2^−power to below two.

    Returns the power, or a number above 127 for NaN or infinity.
    """
    largest = magnitude_bits(x.view(np.int32), uint64(start), count)
    if largest >= INFINITY_BITS:
        return _LARGEST_POWER + 1
    power = max(int32(largest >> int32(23)) - 127, _SMALLEST_POWER)
    factor = float32(power_of_two(-power))
    for j in range(count):
        block[uint64(j)] = x[uint64(start) + uint64(j)] * factor
    for j in range(count, size):
        block[uint64(j)] = float32(0)
    return power


@njit(**INNER)
def _add_columns(block, size, cols, square, sums):  # type: ignore[no-untyped-def]
    """Sum every column, or its squares: in float32 over 16 rows, then in float64."""
    partial = np.empty(cols, np.float32)
    for c in range(cols):
        sums[c] = 0.0
    for begin in range(0, size, 16 * cols):
        for c in range(cols):
            partial[uint64(c)] = float32(0)
        for base in range(begin, min(size, begin + 16 * cols), cols):
            for c in range(cols):
                y = block[uint64(base) + uint64(c)]
                partial[uint64(c)] += y * y if square else y
        for c in range(cols):
            sums[uint64(c)] += float64(partial[uint64(c)])


@njit(**INNER)
def _scale_columns(block, size, cols, factors, at):  # type: ignore[no-untyped-def]
    for base in range(0, size, cols):
        for c in range(cols):
            block[uint64(base) + uint64(c)] *= factors[at + uint64(c)]


@njit(**INNER)
def _quantize4(block, size, levels, codes):  # type: ignore[no-untyped-def]
    """`_quantize` for eight magnitudes, unrolled to vectorise."""
    l0, l1, l2, l3 = levels[0], levels[1], levels[2], levels[3]
    l4, l5, l6, l7 = levels[4], levels[5], levels[6], levels[7]
    half = float32(0.5)
    e1, e2, e3, e4 = (l0 + l1) * half, (l1 + l2) * half, (l2 + l3) * half, (l3 + l4) * half
    e5, e6, e7 = (l4 + l5) * half, (l5 + l6) * half, (l6 + l7) * half
    for j in range(size):
        y = block[uint64(j)]
        a = abs(y)
        index = int32(8) if y < float32(0) else int32(0)
        index = int32(index + int32(a > e1))
        index = int32(index + int32(a > e2))
        index = int32(index + int32(a > e3))
        index = int32(index + int32(a > e4))
        index = int32(index + int32(a > e5))
        index = int32(index + int32(a > e6))
        index = int32(index + int32(a > e7))
        value = l1 if a > e1 else l0
        value = l2 if a > e2 else value
        value = l3 if a > e3 else value
        value = l4 if a > e4 else value
        value = l5 if a > e5 else value
        value = l6 if a > e6 else value
        value = l7 if a > e7 else value
        codes[uint64(j)] = uint8(index)
        block[uint64(j)] = a * value


@njit(**INNER)
def _quantize(block, size, levels, codes):  # type: ignore[no-untyped-def]
    """Codes: the index of the nearest level, with the sign as top bit. The block becomes coordinate · level."""
    count = levels.size
    for j in range(size):
        y = block[j]
        a = abs(y)
        index = 0
        for k in range(1, count):
            index += int(a > (levels[k - 1] + levels[k]) * float32(0.5))
        codes[j] = uint8(index + (count if y < 0 else 0))
        block[j] = a * levels[index]


@njit(**KERNEL)
def encode_blocks(x, out, word, tail, levels, bits, gain, first, last):  # type: ignore[no-untyped-def]
    """Rotate and quantize the blocks first … last−1. Returns False for NaN or infinity."""
    scales = out[8 : 8 + 4 * tail[0, 1]].view(np.float32)
    keys = round_keys(word, 0)
    block, codes = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.uint8)
    signs = np.empty(2 * BLOCK // 32, np.uint32)
    sums, dots, inverse = np.empty(COLUMNS), np.empty(COLUMNS), np.empty(COLUMNS, np.float32)
    for number in range(first, last):
        start, count, size, cols, at, scale_at = block_of(number, tail)
        power = _load(x, start, count, size, block)
        if power > _LARGEST_POWER:
            return False
        rows = size // cols
        turns, unit = turns_of(rows)
        draw_signs(uint32(at), size, turns, keys, signs)
        rotate(block, size, cols, turns, False, signs)
        _add_columns(block, size, cols, True, sums)
        for c in range(cols):
            inverse[c] = float32(np.sqrt(rows / sums[c])) if sums[c] > 0 else float32(0)
        _scale_columns(block, size, cols, inverse, uint64(0))
        if bits == 4:
            _quantize4(block, size, levels, codes)
        else:
            _quantize(block, size, levels, codes)
        _add_columns(block, size, cols, False, dots)
        for c in range(cols):
            # S in units of x: `rotate` multiplies by rows at every turn
            scale = np.sqrt(sums[c] / rows) * (rows * unit / dots[c]) if dots[c] > 0 else 0.0
            scales[scale_at + c] = float32(min(scale * gain * power_of_two(power), float64(LARGEST)))
        packed_at = 8 + 4 * scales.size + _packed_start(at, number, tail, bits)
        for begin in range(0, size, GROUP):
            group = codes[begin : min(size, begin + GROUP)]
            packed_at += pack_group(group, group.size, bits, out, uint64(packed_at))
    return True


@njit(**INNER)
def _packed_start(at, number, tail, bits):  # type: ignore[no-untyped-def]
    """The first byte of a block's codes. Each block of the tail takes whole bytes."""
    full = tail[0, 0]
    return at * bits // 8 if number <= full else tail[number - full + 1, 6]


@njit(**KERNEL)
def apply_blocks(target, payload, mode, factor, word, tail, levels, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if `check` is set, then assign or add its blocks first … last−1 to the target."""
    weight = float32(factor)
    scales = np.empty(tail[0, 1], np.float32)
    read_steps(payload, 8, scales)
    if check and not steps_are_sound(scales, float32(1)):
        return BAD_STEP
    keys = round_keys(word, 0)
    block, codes = np.empty(BLOCK, np.float32), np.empty(GROUP, np.uint8)
    signs = np.empty(2 * BLOCK // 32, np.uint32)
    table = np.empty(2 * levels.size, np.float32)
    for number in range(first, last):
        start, count, size, cols, at, scale_at = block_of(number, tail)
        turns, unit = turns_of(size // cols)
        for k in range(levels.size):
            level = levels[k] * float32(unit)  # exact: a power of two
            table[k], table[levels.size + k] = level, -level
        packed_at = 8 + 4 * scales.size + _packed_start(at, number, tail, bits)
        for begin in range(0, size, GROUP):
            length = min(GROUP, size - begin)
            packed_at += unpack_group(payload, uint64(packed_at), bits, codes, length)
            for j in range(length):
                block[uint64(begin) + uint64(j)] = table[uint64(codes[uint64(j)])]
        draw_signs(uint32(at), size, turns, keys, signs)
        rotate_back(block, size, cols, turns, False, signs)
        _scale_columns(block, size, cols, scales, uint64(scale_at))
        apply_values(target, uint64(start), block, count, mode, weight)
    return OK
