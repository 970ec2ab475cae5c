"""Kernels of trellis: rotated windows of a vector, and streams of them, encoded and decoded.

tables.py defines windows, groups and streams. Streams are independent, so threads take them in any order.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int16, njit, uint8, uint16, uint32, uint64

from qafel.compiled import INNER, KERNEL, LANES, as_floats, below, choose, floats, largest, least, load, store, words
from qafel.quantizers.kernels import ADD, BLOCK, COLUMNS, HIDDEN_BYTES, LARGEST, ROOM, SEED_BYTES, tables
from qafel.quantizers.kernels.rotated import draw_signs, power_of_two, rotate, rotate_back
from qafel.quantizers.kernels.shared import hash_pair, round_keys, weyl
from qafel.quantizers.kernels.trellis import back, ends, forward, read, read_two, start, write

_SMALLEST_POWER, _LARGEST_POWER = -126, 127
_TURNS = 6  # the most searches of a stream
_SLACK = 24.0  # bits of deviation that are always accepted
_FIRST = 0.75  # part of the estimated change for the second search
_FLATTEST, _LEAST = 0.2, 0.1  # limits for the slope and the bits, relative to the expected ones


share_out = njit(**KERNEL)(tables.share_out)
nudged, spread = njit(**INNER)(tables.nudged), njit(**INNER)(tables.spread)


@njit(**INNER)
def _energy(x, begin, end):  # type: ignore[no-untyped-def]
    """‖x[begin : end]‖²: sixteen float32 sums side by side, or float64 outside their safe range."""
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
    """Compute σ of every group, and return ‖x‖²."""
    for number in range(windows.shape[0]):
        begin = windows[number, 0] if number == 0 else windows[number - 1, 0] + windows[number - 1, 1]
        sigmas[number] = _energy(x, begin, min(x.size, windows[number, 0] + windows[number, 1]))
    return spread(sigmas, windows)


@njit(**INNER)
def _rotate_stream(x, windows, first, last, power, keys, y):  # type: ignore[no-untyped-def]
    """Rotate the windows first … last−1 of x · 2^−power. This multiplies a window of n coordinates by n."""
    origin, factor = windows[first, 0], float32(power_of_two(-power))
    signs = np.empty(2 * BLOCK // 32, np.uint32)
    filled = origin
    for number in range(first, last):
        begin, size = windows[number, 0], windows[number, 1]
        if begin < filled:  # take rotated coordinates from the window before, in their original scale
            shrink = float32(1.0 / windows[number - 1, 1])
            for i in range(begin - origin, filled - origin):
                y[i] *= shrink
        end = min(x.size, begin + size)
        for i in range(filled, end):
            y[uint64(i - origin)] = x[uint64(i)] * factor
        for i in range(end, begin + size):
            y[i - origin] = float32(0)
        draw_signs(uint32(number * BLOCK), size, 1, keys, signs)
        rotate(y[begin - origin : begin - origin + size], size, COLUMNS, 1, True, signs)
        filled = begin + size


@njit(**INNER)
def _scale_bits(scale, number, keys):  # type: ignore[no-untyped-def]
    """The upper half of a float32 without its sign, rounded at random with the exact mean."""
    pattern = np.float32(min(scale, float64(LARGEST))).view(np.uint32)
    chance = hash_pair(weyl(uint32(number * BLOCK + BLOCK // 2), keys), keys)[0] & uint32(0x7FFF)
    bits = (pattern >> uint32(15)) + uint32((pattern & uint32(0x7FFF)) > chance)
    return uint16(min(bits, uint32(0xFEFF)))


@njit(**INNER)
def _units(group, windows, plan, known, power, units, factors, biases):  # type: ignore[no-untyped-def]
    """The unit of a group, the factor from a rotated coordinate to units, and the costs of its levels."""
    sigma, k, knob = plan[0][group], plan[1][group], plan[2][group]
    coarse = k < known[0].shape[0]
    units[0] = sigma if coarse else sigma / knob
    factors[0] = float32(power_of_two(power) / (windows[group, 1] * units[0])) if k > 0 else float32(0)
    if coarse:
        for i in range(7):
            biases[i] = known[1][k, i] * float32(knob)


@njit(**INNER)
def _bits(sums, count, k, knob, known):  # type: ignore[no-untyped-def]
    """The bits of a group's numbers: exact for a coarse table, an estimate by their size for a fine one."""
    if k == 0:
        return 0.0
    if k < known[0].shape[0]:
        return sums[3] / knob
    return known[3][k, 0] * count + known[3][k, 1] * sums[1]


@njit(**INNER)
def _tail(edges, count):  # type: ignore[no-untyped-def]
    """The first group of the tail, which is searched again: the last quarter, or slightly more."""
    group = count - 1
    while group > 0 and 4 * (edges[count] - edges[group]) < edges[count]:
        group -= 1
    return group


@njit(**INNER)
def _extend(y, own, tail, again, windows, plan, power, states, known, scratch, group):  # type: ignore[no-untyped-def]
    """Extend all paths over a stream's groups, or again over its tail, from the costs before it."""
    choices, metrics, saved, _, _, edges = scratch
    begin, count = own
    units, factors, biases = group[0], group[1], group[2]
    none = np.empty(0, np.float32)
    for g in range(tail if again else 0, count):
        if g == tail and again:
            metrics[:] = saved
        elif g == tail:
            saved[:] = metrics
        _units(begin + g, windows, plan, known, power, units[g:], factors[g:], biases[g])
        k, rows = plan[1][begin + g], (edges[g] // LANES, edges[g + 1] // LANES)
        table = known[0][k] if k < known[0].shape[0] else none
        forward(y, rows, factors[g], table, biases[g], metrics, states, choices)


@njit(**INNER)
def _trace(y, own, tail, again, plan, states, contract, known, scratch, keys, notes, group):  # type: ignore[no-untyped-def]
    """Compute numbers, scales, bits and errors along the best paths, back to the first unchanged group."""
    choices, metrics, _, paths, v, edges = scratch
    begin, count = own
    units, factors, biases, taken, errors = group
    none, sums = np.empty(0, np.float32), np.empty(4)
    ends(metrics, edges[count] // LANES, states, paths[count * LANES :])
    for g in range(count - 1, -1, -1):
        k, rows = plan[1][begin + g], (edges[g] // LANES, edges[g + 1] // LANES)
        table = known[0][k] if k < known[0].shape[0] else none
        path = paths[g * LANES :]
        moved = back(y, rows, factors[g], table, biases[g], known[2][k], choices, states, path, v, sums)
        dot, square, energy = sums[0], sums[1], sums[2]
        scale = 0.0
        if dot > 0:
            scale = dot / square if contract else energy / dot
        errors[g] = (energy - 2 * scale * dot + scale * scale * square) * units[g] * units[g]
        taken[g] = _bits(sums, edges[g + 1] - edges[g], k, plan[2][begin + g], known)
        at, pattern = SEED_BYTES + 2 * (begin + g), _scale_bits(scale * units[g], begin + g, keys)
        notes[at], notes[at + 1] = uint8(pattern), uint8(pattern >> uint16(8))
        if again and g <= tail and not moved:
            break


@njit(**INNER)
def _search(y, groups, windows, plan, power, states, contract, known, curve, within, scratch, keys, notes):  # type: ignore[no-untyped-def]
    """Search the numbers for the rotated groups in y, write them and their scales, and return ‖error‖².

    If the bits deviate from the plan by more than the fraction `within`, the last quarter of the groups is searched
    again with other knobs.
    """
    edges, classes, knob = scratch[5], plan[1], plan[2]
    begin, count = groups[0], groups[1] - groups[0]
    own, taken, errors = (begin, count), np.empty(count), np.empty(count)
    group = (np.empty(count), np.empty(count, np.float32), np.empty((count, 7), np.float32), taken, errors)
    base, shares = np.empty(count), np.empty(count)
    goal, got, change, earlier = 0.0, 0.0, 0.0, 0.0
    for g in range(count):
        edges[g + 1] = edges[g] + windows[begin + g, 2]
    wanted, tail = plan[3][begin : groups[1]].sum(), _tail(edges, count)
    start(scratch[1], states)
    for turn in range(_TURNS):
        _extend(y, own, tail, turn > 0, windows, plan, power, states, known, scratch, group)
        _trace(y, own, tail, turn > 0, plan, states, contract, known, scratch, keys, notes, group)
        free, total = taken[tail:].sum(), taken.sum()
        if abs(total - wanted) <= max(within * wanted, _SLACK) or turn == _TURNS - 1 or not free > 0:
            break
        if turn == 0:
            base[:], shares[:], goal = knob[begin : groups[1]], taken, max(free + wanted - total, _LEAST * free)
            earlier, got, change = 0.0, free, _FIRST * (goal / free - 1)
        else:  # a straight line through the last two searches, with a positive slope
            slope = max((free - got) / (change - earlier), _FLATTEST * goal)
            earlier, got, change = change, free, change + (goal - free) / slope
        for g in range(tail, count):
            if classes[begin + g] > 0:
                bits = change * (shares[g] / windows[begin + g, 2])
                knob[begin + g] = nudged(classes[begin + g], base[g], bits, curve[0], curve[1], curve[2])
    return errors.sum()


@njit(**KERNEL)
def encode_streams(  # type: ignore[no-untyped-def]
    x, windows, streams, power, word, states, contract, plan, known, curve, within, notes, room, found, first, last
):
    """Encode the streams first … last−1 of x · 2^−power.

    plan     σ, table, knob and bits of every group; knobs may change.
    known    Levels and bits of the coarse tables, reach, prices of the fine tables, and the writing table.
    curve    Rates and knobs of all tables, and the number of the last coarse one.
    within   The accepted relative deviation of a stream's bits.
    notes    Receives the scales.
    room     Receives the words of each stream, the last one first.
    found    Receives a row per stream: number of words, ‖error‖².
    """
    writing, keys = known[4], round_keys(word, 0)
    most, groups = 0, 0
    for s in range(first, last):
        begin, end = streams[s, 0], streams[s, 1]
        most = max(most, windows[end - 1, 0] + windows[end - 1, 1] - windows[begin, 0])
        groups = max(groups, end - begin)
    y, v, message = np.empty(most, np.float32), np.empty(most, np.int16), np.empty(HIDDEN_BYTES, np.uint8)
    choices, edges = np.empty(most * (states // 32 + 1), np.int16), np.zeros(groups + 1, np.int64)
    metrics, paths = np.empty(2 * states * LANES, np.int16), np.zeros((groups + 1) * LANES, np.int16)
    scratch = (choices, metrics, np.empty_like(metrics), paths, v, edges)
    for s in range(first, last):
        begin, end = streams[s, 0], streams[s, 1]
        _rotate_stream(x, windows, begin, end, power, keys, y)
        found[s, 1] = _search(
            y, (begin, end), windows, plan, power, states, contract, known, curve, within, scratch, keys, notes
        )
        for i in range(HIDDEN_BYTES):
            message[i] = notes[streams[s, 2] + i] if streams[s, 2] + i < streams[s, 3] else 0
        words = room[windows[begin, 0] + s * ROOM :]
        found[s, 0] = write(v, writing, plan[1][begin:end], edges, message, words)
    return True


@njit(**INNER)
def _unhidden(message, stream, notes):  # type: ignore[no-untyped-def]
    """Copy a stream's hidden notes to the others. Returns False if too many are hidden."""
    for i in range(HIDDEN_BYTES):
        if stream[2] + i < stream[3]:
            notes[stream[2] + i] = message[i]
        elif message[i] != 0:
            return False
    return True


@njit(**KERNEL)
def decode_streams(data, ends, windows, streams, classes, states, reading, v, notes, first, last):  # type: ignore[no-untyped-def]
    """Read the numbers and hidden notes of the streams first … last−1. Returns False for a damaged stream."""
    messages = np.empty((2, HIDDEN_BYTES), np.uint8)
    s = first
    while s < last:
        begin, end = streams[s, 0], streams[s, 1]
        edges = np.empty(end - begin + 1, np.int64)
        edges[0] = windows[begin, 0]
        for g in range(end - begin):
            edges[g + 1] = edges[g] + windows[begin + g, 2]
        two = s + 1 < last and streams[s + 1, 1] - end == end - begin
        for g in range(end - begin if two else 0):
            two = two and windows[end + g, 2] == windows[begin + g, 2]
        if two:
            sound = read_two(data, ends[s:], reading, classes[begin:], edges, states, v, messages)
        else:
            sound = read(data, ends[s], ends[s + 1], reading, classes[begin:end], edges, states, v, messages[0])
        if not sound or not _unhidden(messages[0], streams[s], notes):
            return False
        if two and not _unhidden(messages[1], streams[s + 1], notes):
            return False
        s += 2 if two else 1
    return True


@njit(**INNER)
def _put(v, at, count, known, unit, block):  # type: ignore[no-untyped-def]
    """Write the values of the numbers, times the unit. `count` is a multiple of sixteen."""
    factor = floats(unit)
    if known.size == 0:
        for i in range(0, count, LANES):
            store(block, i, as_floats(load(v, at + i)) * factor)
        return
    for i in range(0, count, LANES):
        number = load(v, at + i)
        value = floats(known[0])
        for k in range(1, 7):
            value = choose(below(number, words(int16(k - 3))), value, floats(known[k]))
        store(block, i, value * factor)


@njit(**INNER)
def _apply_block(block, begin, count, up, target, at, mode, weight):  # type: ignore[no-untyped-def]
    """Assign or add block[begin : begin + count] · up, clipped to the finite range, to target[at:]."""
    factor, share = floats(up), floats(weight)
    top, bottom = floats(LARGEST), floats(-LARGEST)
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        value = largest(bottom, least(top, load(block, begin + i) * factor))
        if mode == ADD:
            value = load(target, at + i) + share * value
        store(target, at + i, value)
    for i in range(whole, count):
        value = max(-LARGEST, min(LARGEST, block[begin + i] * up))
        target[at + i] = target[at + i] + weight * value if mode == ADD else value


@njit(**KERNEL)
def apply_streams(target, v, windows, streams, classes, scales, levels, word, mode, factor, first, last):  # type: ignore[no-untyped-def]
    """Rotate the numbers of the streams first … last−1 back, and assign or add them to the target."""
    keys, weight = round_keys(word, 0), float32(factor)
    none, highest = np.empty(0, np.float32), uint16(0)
    for bits in scales:
        highest = max(highest, bits)
    power = max(int(highest >> uint16(8)) - 127, _SMALLEST_POWER)
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
            rotate_back(block, size, COLUMNS, 1, True, signs)
            at = 0
            if number > 0 and windows[number - 1, 0] + windows[number - 1, 1] > begin:
                at = windows[number - 1, 0] + windows[number - 1, 1] - begin
                later[:at] = block[:at]
            _apply_block(block, at, min(size, target.size - begin) - at, up, target, begin + at, mode, weight)
    return True
