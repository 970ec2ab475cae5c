"""Kernels of rotated: blocks of a vector rotated, their coordinates to codes and back.

After the rotation a column y of n coordinates looks like n draws of N(0, σ²), σ = ‖y‖/√n, whatever x was. Each is
sent as the nearest of 2ᵇ levels q(y/σ), and the receiver multiplies by S = ‖y‖² / ⟨y, q⟩, so that the part along y,
hence along x, comes back exactly. Vargaftik et al., DRIVE (2021) and EDEN (2022).
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, njit, uint8, uint32, uint64

from qafel.compiled import INNER, KERNEL
from qafel.quantizers.kernels import BAD_STEP, BLOCK, COLUMNS, GROUP, INFINITY_BITS, LARGEST, OK
from qafel.quantizers.kernels.rotation import draw_signs, rotate, rotate_back, turns_of
from qafel.quantizers.kernels.shared import (
    apply_values,
    magnitude_bits,
    pack_group,
    read_steps,
    round_keys,
    steps_are_sound,
    unpack_group,
)

_SMALLEST_POWER, _LARGEST_POWER = -126, 127


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
    """2^exponent by its bits: a library's power function need not be exact."""
    return np.int64(np.int64(exponent + 1023) << np.int64(52)).view(np.float64)


@njit(**INNER)
def _load(x, start, count, size, block):  # type: ignore[no-untyped-def]
    """Copy x[start : start + count] into the block, padded with zeros and scaled by 2^−power to magnitudes below two.

    Returns the power, or a number above 127 if a coordinate is NaN or infinite.
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
    """Sum every column, or its squares: in float32 over 16 rows at a time, then in float64."""
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
    """`_quantize` for eight magnitudes, unrolled so that it vectorises."""
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
    """The nearest level's index, sign in the top bit; the block becomes the products of coordinate and level."""
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
    """Rotate and quantize the blocks first … last−1; False if a coordinate is NaN or infinite."""
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
        rotate(block, size, cols, turns, signs)
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
            # S in the units of x: `rotate` multiplied by rows at every turn
            scale = np.sqrt(sums[c] / rows) * (rows * unit / dots[c]) if dots[c] > 0 else 0.0
            scales[scale_at + c] = float32(min(scale * gain * power_of_two(power), float64(LARGEST)))
        packed_at = 8 + 4 * scales.size + _packed_start(at, number, tail, bits)
        for begin in range(0, size, GROUP):
            group = codes[begin : min(size, begin + GROUP)]
            packed_at += pack_group(group, group.size, bits, out, uint64(packed_at))
    return True


@njit(**INNER)
def _packed_start(at, number, tail, bits):  # type: ignore[no-untyped-def]
    """Byte at which a block's codes begin; blocks of the tail are rounded up to whole bytes one by one."""
    full = tail[0, 0]
    return at * bits // 8 if number <= full else tail[number - full + 1, 6]


@njit(**KERNEL)
def apply_blocks(target, payload, mode, factor, word, tail, levels, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if asked, then assign or add the blocks first … last−1 of it to the target."""
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
        rotate_back(block, size, cols, turns, signs)
        _scale_columns(block, size, cols, scales, uint64(scale_at))
        apply_values(target, uint64(start), block, count, mode, weight)
    return OK
