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
from numba import float32, float64, int16, int32, njit, uint32, uint64

from qafel.compiled import INNER, KERNEL, LANES, below, choose, floats, largest, load, longs, mixed, store, words
from qafel.quantizers import kernels
from qafel.quantizers.kernels import BAD_STEP, BLOCK, COLUMNS, COSINES, GROUP, INFINITY_BITS, LARGEST, OK, SINES, WEYL
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

turns_of = njit(**INNER)(kernels.turns_of)


@njit(**INNER)
def _butterflies8(x, size, stride):  # type: ignore[no-untyped-def]
    """Three stages in one pass: strides s, 2s and 4s, multiples of sixteen."""
    for base in range(0, size, 8 * stride):
        for i in range(base, base + stride, LANES):
            a, b, c, d = load(x, i), load(x, i + stride), load(x, i + 2 * stride), load(x, i + 3 * stride)
            k = i + 4 * stride
            e, f, g, h = load(x, k), load(x, k + stride), load(x, k + 2 * stride), load(x, k + 3 * stride)
            a, b, c, d, e, f, g, h = a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h
            a, c, b, d, e, g, f, h = a + c, a - c, b + d, b - d, e + g, e - g, f + h, f - h
            _store2(x, i, k, a + e, a - e)
            _store2(x, i + stride, k + stride, b + f, b - f)
            _store2(x, i + 2 * stride, k + 2 * stride, c + g, c - g)
            _store2(x, i + 3 * stride, k + 3 * stride, d + h, d - h)


@njit(**INNER)
def _butterflies4(x, size, stride):  # type: ignore[no-untyped-def]
    """Two stages in one pass: strides s and 2s, multiples of sixteen."""
    for base in range(0, size, 4 * stride):
        for i in range(base, base + stride, LANES):
            a, b, c, d = load(x, i), load(x, i + stride), load(x, i + 2 * stride), load(x, i + 3 * stride)
            a, b, c, d = a + b, a - b, c + d, c - d
            _store2(x, i, i + 2 * stride, a + c, a - c)
            _store2(x, i + stride, i + 3 * stride, b + d, b - d)


@njit(**INNER)
def _store2(x, i, k, a, b):  # type: ignore[no-untyped-def]
    store(x, i, a)
    store(x, k, b)


@njit(**INNER)
def _butterflies2(x, size, stride):  # type: ignore[no-untyped-def]
    """One stage, of any stride."""
    for base in range(0, size, 2 * stride):
        whole = base + stride // LANES * LANES
        for i in range(base, whole, LANES):
            a, b = load(x, i), load(x, i + stride)
            _store2(x, i, i + stride, a + b, a - b)
        for j in range(base + stride - whole):
            i, k = uint64(whole) + uint64(j), uint64(whole + stride) + uint64(j)
            x[i], x[k] = x[i] + x[k], x[i] - x[k]


@njit(**INNER)
def _stages(x, size, stride, end):  # type: ignore[no-untyped-def]
    """Stages with strides from `stride` to below `end`, in increasing order. All of them multiply by H."""
    while stride < end:
        if stride % LANES == 0 and 8 * stride <= end:
            _butterflies8(x, size, stride)
            stride *= 8
        elif stride % LANES == 0 and 4 * stride <= end:
            _butterflies4(x, size, stride)
            stride *= 4
        else:
            _butterflies2(x, size, stride)
            stride *= 2


@njit(**INNER)
def _turn(x, size, cols):  # type: ignore[no-untyped-def]
    """Multiply by G. Rows j and j + rows/2 become √2·(cos θ·a + sin θ·b) and √2·(sin θ·a − cos θ·b).

    θ is angle number j mod 16.
    """
    half = size // 2
    if cols == LANES:
        for i in range(0, half, LANES):
            cos, sin = floats(COSINES[uint64(i // LANES)]), floats(SINES[uint64(i // LANES)])
            a, b = load(x, i), load(x, i + half)
            _store2(x, i, i + half, cos * a + sin * b, sin * a - cos * b)
        return
    for row in range(half // cols):
        cos, sin = COSINES[uint64(row)], SINES[uint64(row)]
        for col in range(cols):
            i, k = uint64(row * cols) + uint64(col), uint64(half + row * cols) + uint64(col)
            x[i], x[k] = cos * x[i] + sin * x[k], sin * x[i] - cos * x[k]


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
    first = number * count
    whole, top = count // LANES * LANES, longs(int32(-(2**31)))
    for part in range(32):
        shift, shifts = uint32(part) & uint32(31), longs(int32(part))
        base = part * count
        for j in range(0, whole, LANES):
            store(bits, base + j, load(bits, base + j) ^ ((load(signs, first + j) << shifts) & top))
        for j in range(whole, count):
            bits[base + j] ^= uint32(uint32(signs[first + j] << shift) & uint32(0x80000000))


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
        _stages(x, size, cols, size // 2)
        _turn(x, size, cols)
        flip_signs(x, size, signs, 2 * turn + 1)
        if mix:
            _mix_columns(x, size)
        _stages(x, size, cols, size)


@njit(**INNER)
def rotate_back(x, size, cols, turns, mix, signs):  # type: ignore[no-untyped-def]
    """Rotate the block back, with the same factor at every turn: x ← D₁·(M)·H′·G·D₂·(M)·H·x.

    The stage of the largest stride in H′ comes first, then the others, the smallest first.
    """
    for turn in range(turns - 1, -1, -1):
        _stages(x, size, cols, size)
        if mix:
            _mix_columns(x, size)
        flip_signs(x, size, signs, 2 * turn + 1)
        _turn(x, size, cols)
        _stages(x, size, size // 4, size // 2)
        _stages(x, size, cols, size // 4)
        if mix:
            _mix_columns(x, size)
        flip_signs(x, size, signs, 2 * turn)


@njit(**INNER)
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2^exponent by its bits, because a library's power function may be inexact."""
    return np.int64(np.int64(exponent + 1023) << np.int64(52)).view(np.float64)


@njit(**INNER)
def _load(x, start, count, size, block):  # type: ignore[no-untyped-def]
    """Copy x[start : start + count] into the block, pad it with zeros and scale it by 2^−power to below two.

    Returns the power, or a number above 127 for NaN or infinity.
    """
    top = magnitude_bits(x.view(np.int32), uint64(start), count)
    if top >= INFINITY_BITS:
        return _LARGEST_POWER + 1
    power = max(int32(top >> int32(23)) - 127, _SMALLEST_POWER)
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
def _quantize(block, size, cols, levels, edges, codes, squares):  # type: ignore[no-untyped-def]
    """Codes: the index of the nearest level, with the sign as top bit. The block becomes coordinate · level.

    `squares` receives ‖q‖² of every column. The number of columns divides sixteen, so a lane belongs to one column.
    """
    none, count = floats(float32(0)), words(int16(levels.size))
    parts, total = np.empty(LANES, np.float32), floats(float32(0))
    for j in range(0, size, LANES):
        y = load(block, j)
        a, index, value = largest(y, none - y), words(int16(0)), floats(levels[uint64(0)])
        for k in range(1, levels.size):
            above = below(floats(edges[uint64(k - 1)]), a)
            index, value = index - above, choose(above, floats(levels[uint64(k)]), value)
        store(codes, j, index + (below(y, none) & count))
        store(block, j, a * value)
        total = total + value * value
    store(parts, 0, total)
    for c in range(cols):
        squares[c] = 0.0
    for lane in range(LANES):
        squares[lane % cols] += float64(parts[lane])


@njit(**KERNEL)
def encode_blocks(x, out, word, blocks, count, levels, bits, gain, least, found, first, last):  # type: ignore[no-untyped-def]
    """Rotate and quantize the blocks first … last−1, with `count` scales in all. Returns False for NaN or infinity.

    least   S = ⟨y, q⟩ / ‖q‖², with the least error, instead of the unbiased one.
    found   Receives a row per block: ‖error‖², ‖x‖².
    """
    scales = out[8 : 8 + 4 * count].view(np.float32)
    keys = round_keys(word, 0)
    block, codes = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int16)
    signs, edges = np.empty(2 * BLOCK // 32, np.uint32), (levels[1:] + levels[:-1]) * float32(0.5)
    sums, dots, squares, inverse = (
        np.empty(COLUMNS),
        np.empty(COLUMNS),
        np.empty(COLUMNS),
        np.empty(COLUMNS, np.float32),
    )
    for number in range(first, last):
        start, length, size, cols, at, scale_at, packed_at = blocks[number]
        power = _load(x, start, length, size, block)
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
        _quantize(block, size, cols, levels, edges, codes, squares)
        _add_columns(block, size, cols, False, dots)
        found[number, 0] = found[number, 1] = 0.0
        for c in range(cols):
            scale = 0.0
            if dots[c] > 0:
                # S in units of x: `rotate` multiplies by rows at every turn
                scale = np.sqrt(sums[c] / rows) * (dots[c] * unit / squares[c] if least else rows * unit / dots[c])
                energy = sums[c] * unit * unit * power_of_two(2 * power)
                bound = rows * squares[c] / (dots[c] * dots[c])  # 1 / cos²θ
                found[number, 0] += energy * (1.0 - 1.0 / bound if least else bound - 1.0)
                found[number, 1] += energy
            scales[scale_at + c] = float32(min(scale * gain * power_of_two(power), float64(LARGEST)))
        packed_at += 8 + 4 * count
        for begin in range(0, size, GROUP):
            group = codes[begin : min(size, begin + GROUP)]
            packed_at += pack_group(group, group.size, bits, out, uint64(packed_at))
    return True


@njit(**KERNEL)
def apply_blocks(target, payload, mode, factor, word, blocks, count, levels, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if `check` is set, then assign or add its blocks first … last−1 to the target."""
    weight = float32(factor)
    scales = np.empty(count, np.float32)
    read_steps(payload, 8, scales)
    if check and not steps_are_sound(scales, float32(1)):
        return BAD_STEP
    keys = round_keys(word, 0)
    block, codes = np.empty(BLOCK, np.float32), np.empty(GROUP, np.uint8)
    signs = np.empty(2 * BLOCK // 32, np.uint32)
    table = np.empty(2 * levels.size, np.float32)
    for number in range(first, last):
        start, length, size, cols, at, scale_at, packed_at = blocks[number]
        turns, unit = turns_of(size // cols)
        for k in range(levels.size):
            level = levels[k] * float32(unit)  # exact: a power of two
            table[k], table[levels.size + k] = level, -level
        packed_at += 8 + 4 * count
        for begin in range(0, size, GROUP):
            group = min(GROUP, size - begin)
            packed_at += unpack_group(payload, uint64(packed_at), bits, codes, group)
            for j in range(group):
                block[uint64(begin) + uint64(j)] = table[uint64(codes[uint64(j)])]
        draw_signs(uint32(at), size, turns, keys, signs)
        rotate_back(block, size, cols, turns, False, signs)
        _scale_columns(block, size, cols, scales, uint64(scale_at))
        apply_values(target, uint64(start), block, length, mode, weight)
    return OK
