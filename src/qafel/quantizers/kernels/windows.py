"""Kernels of trellis: windows of a vector, rotated, and streams of them, encoded and decoded.

trellis/tables.py says what windows, groups and streams are. Streams share nothing, so threads take them in any order.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, njit, uint8, uint16, uint32, uint64

from qafel.quantizers.kernels import BLOCK, HIDDEN_BYTES, INNER, KERNEL, LARGEST, ROOM, SEED_BYTES, sharing
from qafel.quantizers.kernels.blocks import power_of_two
from qafel.quantizers.kernels.lanes import LANES, load, store
from qafel.quantizers.kernels.rans import read, write
from qafel.quantizers.kernels.rotation import draw_signs, rotate_window, rotate_window_back
from qafel.quantizers.kernels.search import back, ends, forward, start
from qafel.quantizers.kernels.shared import apply_values, hash_pair, round_keys, weyl

_SMALLEST_POWER, _LARGEST_POWER = -126, 127


share_out = njit(**KERNEL)(sharing.share_out)


@njit(**INNER)
def _energy(x, begin, end):  # type: ignore[no-untyped-def]
    """‖x[begin : end]‖²: in float32, sixteen sums side by side, or in float64 where that leaves the safe range."""
    parts, total = np.zeros(LANES, np.float32), 0.0
    whole = begin + (end - begin) // LANES * LANES
    sums = load(parts, 0)
    for base in range(begin, whole, LANES):
        value = load(x, base)
        sums = sums + value * value
    store(parts, 0, sums)
    for lane in range(LANES):
        total += float64(parts[lane])
    if not 1e-25 < total < 1e35:
        total = 0.0
        for i in range(begin, whole):
            total += float64(x[i]) * float64(x[i])
    for i in range(whole, end):
        total += float64(x[i]) * float64(x[i])
    return total


@njit(**KERNEL)
def deviations(x, windows, sigmas):  # type: ignore[no-untyped-def]
    """σ of every group, in the mean over rotations where the last window overlaps another; returns ‖x‖²."""
    count, total = windows.shape[0], 0.0
    for number in range(count):
        begin = windows[number, 0] if number == 0 else windows[number - 1, 0] + windows[number - 1, 1]
        sigmas[number] = _energy(x, begin, min(x.size, windows[number, 0] + windows[number, 1]))
        total += sigmas[number]
    if count > 1:
        width = windows[count - 2, 1]
        moved = sigmas[count - 2] * ((width - windows[count - 2, 2]) / width)
        sigmas[count - 2] -= moved
        sigmas[count - 1] += moved
    for number in range(count):
        sigmas[number] = np.sqrt(sigmas[number] / windows[number, 2])
    return total


@njit(**INNER)
def _rotate_stream(x, windows, first, last, power, keys, y):  # type: ignore[no-untyped-def]
    """Rotate the windows first … last−1 of x · 2^−power; a window of n coordinates comes out n times as large."""
    origin, factor = windows[first, 0], float32(power_of_two(-power))
    signs = np.empty(2 * BLOCK // 32, np.uint32)
    filled = origin
    for number in range(first, last):
        begin, size = windows[number, 0], windows[number, 1]
        if begin < filled:  # take over what the window before has rotated, in the size that it had
            shrink = float32(1.0 / windows[number - 1, 1])
            for i in range(begin - origin, filled - origin):
                y[i] *= shrink
        end = min(x.size, begin + size)
        for i in range(filled, end):
            y[uint64(i - origin)] = x[uint64(i)] * factor
        for i in range(end, begin + size):
            y[i - origin] = float32(0)
        draw_signs(uint32(number * BLOCK), size, 1, keys, signs)
        rotate_window(y[begin - origin : begin - origin + size], size, signs)
        filled = begin + size


@njit(**INNER)
def _scale_bits(scale, number, keys):  # type: ignore[no-untyped-def]
    """The upper half of a float32 without its sign, rounded at random so that the mean is the scale."""
    pattern = np.float32(min(scale, float64(LARGEST))).view(np.uint32)
    chance = hash_pair(weyl(uint32(number * BLOCK + BLOCK // 2), keys), keys)[0] & uint32(0x7FFF)
    bits = (pattern >> uint32(15)) + uint32((pattern & uint32(0x7FFF)) > chance)
    return uint16(min(bits, uint32(0xFEFF)))


@njit(**INNER)
def _search(y, groups, windows, plan, power, states, contract, known, scratch, keys, notes):  # type: ignore[no-untyped-def]
    """The numbers for the rotated groups in y, and their scales, into v and the notes; ‖error‖²."""
    sigmas, classes, knob = plan
    levels, bits, reach = known
    choices, metrics, paths, v, edges = scratch
    none, sums = np.empty(0, np.float32), np.empty(3)
    begin, end = groups
    biases, units = np.empty((end - begin, 7), np.float32), np.empty(end - begin)
    start(metrics, states)
    for g in range(end - begin):
        k, sigma = classes[begin + g], sigmas[begin + g]
        edges[g + 1] = edges[g] + windows[begin + g, 2]
        coarse = k < levels.shape[0]
        units[g] = sigma if coarse else sigma / knob[begin + g]
        factor = float32(power_of_two(power) / (windows[begin + g, 1] * units[g])) if k > 0 else float32(0)
        if coarse:
            for i in range(7):
                biases[g, i] = bits[k, i] * float32(knob[begin + g])
        rows = (edges[g] // LANES, edges[g + 1] // LANES)
        forward(y, rows, factor, levels[k] if coarse else none, biases[g], metrics, states, choices)
    ends(metrics, edges[end - begin] // LANES, states, paths)
    error = 0.0
    for g in range(end - begin - 1, -1, -1):
        k, rows = classes[begin + g], (edges[g] // LANES, edges[g + 1] // LANES)
        table = levels[k] if k < levels.shape[0] else none
        back(y, rows, table, biases[g], reach[k], choices, states, paths, v, sums)
        dot, square, energy = sums[0], sums[1], sums[2]
        scale = 0.0
        if dot > 0:
            scale = dot / square if contract else energy / dot
        error += (energy - 2 * scale * dot + scale * scale * square) * units[g] * units[g]
        at, pattern = SEED_BYTES + 2 * (begin + g), _scale_bits(scale * units[g], begin + g, keys)
        notes[at], notes[at + 1] = uint8(pattern), uint8(pattern >> uint16(8))
    return error


@njit(**KERNEL)
def encode_streams(x, windows, streams, power, word, states, contract, plan, known, notes, room, found, first, last):  # type: ignore[no-untyped-def]
    """Encode the streams first … last−1 of x · 2^−power.

    plan     σ, table and knob of every group
    known    of all tables: levels and bits of the coarse ones, reach, how to write numbers
    notes    becomes the scales
    room     of a stream's words, the last one first, from its first coordinate and ROOM for each stream before it on
    found    a row each: how many words, ‖error‖²
    """
    levels, bits, reach, writing = known
    keys = round_keys(word, 0)
    most, groups = 0, 0
    for s in range(first, last):
        begin, end = streams[s, 0], streams[s, 1]
        most = max(most, windows[end - 1, 0] + windows[end - 1, 1] - windows[begin, 0])
        groups = max(groups, end - begin)
    y, v, message = np.empty(most, np.float32), np.empty(most, np.int16), np.empty(HIDDEN_BYTES, np.uint8)
    choices, edges = np.empty(most * (states // 32 + 1), np.int16), np.zeros(groups + 1, np.int64)
    metrics, paths = np.empty(2 * states * LANES, np.int16), np.empty(LANES, np.int16)
    for s in range(first, last):
        begin, end = streams[s, 0], streams[s, 1]
        _rotate_stream(x, windows, begin, end, power, keys, y)
        scratch = (choices, metrics, paths, v, edges)
        levels_and_costs = (levels, bits, reach)
        found[s, 1] = _search(
            y, (begin, end), windows, plan, power, states, contract, levels_and_costs, scratch, keys, notes
        )
        for i in range(HIDDEN_BYTES):
            message[i] = notes[streams[s, 2] + i] if streams[s, 2] + i < streams[s, 3] else 0
        words = room[windows[begin, 0] + s * ROOM :]
        found[s, 0] = write(v, writing, plan[1][begin:end], edges, message, words)
    return True


@njit(**KERNEL)
def decode_streams(data, ends, windows, streams, classes, states, reading, v, notes, first, last):  # type: ignore[no-untyped-def]
    """Read the numbers and hidden notes of the streams first … last−1; False if a stream is not sound."""
    message = np.empty(HIDDEN_BYTES, np.uint8)
    for s in range(first, last):
        begin, end = streams[s, 0], streams[s, 1]
        edges = np.empty(end - begin + 1, np.int64)
        edges[0] = windows[begin, 0]
        for g in range(end - begin):
            edges[g + 1] = edges[g] + windows[begin + g, 2]
        if not read(data, ends[s], ends[s + 1], reading, classes[begin:end], edges, states, v, message):
            return False
        for i in range(HIDDEN_BYTES):
            if streams[s, 2] + i < streams[s, 3]:
                notes[streams[s, 2] + i] = message[i]
            elif message[i] != 0:
                return False
    return True


@njit(**INNER)
def _put(v, at, count, known, unit, block):  # type: ignore[no-untyped-def]
    """What the numbers stand for, times the unit."""
    if known.size == 0:
        for i in range(count):
            block[uint64(i)] = float32(v[uint64(at) + uint64(i)]) * unit
    else:
        for i in range(count):
            block[uint64(i)] = known[uint64(v[uint64(at) + uint64(i)] + 3)] * unit


@njit(**KERNEL)
def apply_streams(target, v, windows, streams, classes, scales, levels, word, mode, factor, first, last):  # type: ignore[no-untyped-def]
    """Rotate the numbers of the streams first … last−1 back, and assign or add them to the target."""
    keys, weight = round_keys(word, 0), float32(factor)
    none, largest = np.empty(0, np.float32), uint16(0)
    for bits in scales:
        largest = max(largest, bits)
    power = max(int(largest >> uint16(8)) - 127, _SMALLEST_POWER)
    down, up = float32(power_of_two(-power)), float32(power_of_two(power))
    block, later = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    signs = np.empty(2 * BLOCK // 32, np.uint32)
    for s in range(first, last):
        for number in range(streams[s, 1] - 1, streams[s, 0] - 1, -1):
            begin, size, count = windows[number]
            unit = np.uint32(uint32(scales[number]) << uint32(15)).view(np.float32) * (down * float32(1.0 / size))
            known = levels[classes[number]] if classes[number] < levels.shape[0] else none
            _put(v, begin, count, known, unit, block)
            shrink = float32(1.0 / size)
            for i in range(count, size):
                block[i] = later[i - count] * shrink
            draw_signs(uint32(number * BLOCK), size, 1, keys, signs)
            rotate_window_back(block, size, signs)
            at = 0
            if number > 0 and windows[number - 1, 0] + windows[number - 1, 1] > begin:
                at = windows[number - 1, 0] + windows[number - 1, 1] - begin
                later[:at] = block[:at]
            length = min(size, target.size - begin)
            for i in range(length - at):
                block[uint64(i)] = block[uint64(i + at)] * up
            apply_values(target, uint64(begin + at), block, length - at, mode, weight)
    return True
