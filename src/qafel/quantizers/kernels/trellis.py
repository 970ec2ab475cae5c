"""Kernels of trellis: the best path through a trellis (Viterbi), and its numbers to bytes and back (rANS).

Search. Sixteen paths run side by side, one per lane: coordinate 16·row + lane. A state is the last ν bits u₋₁, u₋₂, …
of a path. A bit u extends the path and restricts the number v of a coordinate: v mod 4 = 2·z₁ + c, where the codebook
c is one bit of the state and z₁ is u ⊕ two more. The receiver knows c from the state, so it reads v from a code for
even or for odd numbers. From v it knows z₁, then u and the next state. Ungerboeck, 1982; Marcellin and Fischer, 1990.
Costs are whole numbers, so that every CPU finds the same path.

Coding. The state x of a coder holds the numbers written so far. To write a number with `count` of 4096 codes from
`start`, x becomes 4096·⌊x/count⌋ + start + x mod count. To read, look up x mod 4096 and undo this. States are in
[2¹⁵, 2³¹), and 16 bits at a time move between states and words. Reading runs forward, writing backward. Sixteen coders
run side by side, one per lane. Duda, 2013; Giesen, 2014. A coder can start anywhere above 2¹⁵: ours start with fifteen
bits each of a message of 30 bytes, which the reader gets back at the end.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int16, int32, int64, njit, uint16

from qafel.compiled import (
    INNER,
    LANES,
    as_floats,
    as_longs,
    as_words,
    below,
    choose,
    compress,
    count,
    expand,
    floats,
    fma,
    gather,
    largest,
    least,
    load,
    longs,
    nearest,
    pushed,
    store,
    words,
)
from qafel.quantizers.kernels import CODES, HIDDEN_BYTES, MIDDLE

FAR = 8192  # more than the difference of any two states' costs
_FINE_UNIT, _COARSE_UNIT, _MOST = 256.0, 128.0, 2047.0
_BITS, _LOWEST = 12, 1 << 15


@njit(**INNER)
def _fine_costs(y):  # type: ignore[no-untyped-def]
    """Squared distances to the nearest v = 0, 1, 2, 3 mod 4."""
    unit, four, quarter = floats(float32(_FINE_UNIT)), floats(float32(4)), floats(float32(0.25))
    two, none = floats(float32(2)), floats(float32(0))
    even, odd = y - four * nearest(y * quarter), y - floats(float32(1))
    odd = odd - four * nearest(odd * quarter)
    far_even, far_odd = two - largest(even, none - even), two - largest(odd, none - odd)
    return (
        as_words(even * even * unit),
        as_words(odd * odd * unit),
        as_words(far_even * far_even * unit),
        as_words(far_odd * far_odd * unit),
    )


@njit(**INNER)
def _coarse_cost(y, levels, biases, at):  # type: ignore[no-untyped-def]
    part = y - floats(levels[at])
    return part * part + floats(biases[at])


@njit(**INNER)
def _coarse_whole(cost):  # type: ignore[no-untyped-def]
    return as_words(least(cost * floats(float32(_COARSE_UNIT)), floats(float32(_MOST))))


@njit(**INNER)
def _coarse_costs(y, levels, biases):  # type: ignore[no-untyped-def]
    """Squared distance and λ · bits of the best of the levels −3 … 3, in each class mod 4."""
    return (
        _coarse_whole(_coarse_cost(y, levels, biases, 3)),
        _coarse_whole(least(_coarse_cost(y, levels, biases, 4), _coarse_cost(y, levels, biases, 0))),
        _coarse_whole(least(_coarse_cost(y, levels, biases, 5), _coarse_cost(y, levels, biases, 1))),
        _coarse_whole(least(_coarse_cost(y, levels, biases, 6), _coarse_cost(y, levels, biases, 2))),
    )


@njit(**INNER)
def _butterfly(a, b, near, far, choices):  # type: ignore[no-untyped-def]
    """The states p and p + half lead to 2p and 2p + 1. Their choices become the lowest bits."""
    stay, cross = a + near, b + far
    even, choices = least(stay, cross), pushed(choices, cross - stay)
    stay, cross = a + far, b + near
    return even, least(stay, cross), pushed(choices, cross - stay)


@njit(**INNER)
def _load4(array, at):  # type: ignore[no-untyped-def]
    return load(array, at), load(array, at + LANES), load(array, at + 2 * LANES), load(array, at + 3 * LANES)


@njit(**INNER)
def _store4(array, at, a, b, c, d):  # type: ignore[no-untyped-def]
    store(array, at, a)
    store(array, at + LANES, b)
    store(array, at + 2 * LANES, c)
    store(array, at + 3 * LANES, d)


@njit(**INNER)
def _forward8(y, rows, factor, levels, biases, metrics, choices):  # type: ignore[no-untyped-def]
    """Eight states: z₁ = u ⊕ u₋₁ ⊕ u₋₃, c = u₋₂. Registers hold their costs."""
    at = (rows[0] & 1) * 8 * LANES
    m0, m1, m2, m3 = _load4(metrics, at)
    m4, m5, m6, m7 = _load4(metrics, at + 4 * LANES)
    fine, scale = levels.size == 0, floats(factor)
    for row in range(rows[0], rows[1]):
        value = load(y, row * LANES) * scale
        c0, c1, c2, c3 = _fine_costs(value) if fine else _coarse_costs(value, levels, biases)
        if row & 7 == 0:
            m1, m2, m3, m4, m5, m6, m7 = m1 - m0, m2 - m0, m3 - m0, m4 - m0, m5 - m0, m6 - m0, m7 - m0
            m0 = words(int16(0))
        n0, n1, chosen = _butterfly(m0, m4, c0, c2, words(int16(0)))
        n2, n3, chosen = _butterfly(m1, m5, c2, c0, chosen)
        n4, n5, chosen = _butterfly(m2, m6, c1, c3, chosen)
        n6, n7, chosen = _butterfly(m3, m7, c3, c1, chosen)
        m0, m1, m2, m3, m4, m5, m6, m7 = n0, n1, n2, n3, n4, n5, n6, n7
        store(choices, row * LANES, chosen)
    at = (rows[1] & 1) * 8 * LANES
    _store4(metrics, at, m0, m1, m2, m3)
    _store4(metrics, at + 4 * LANES, m4, m5, m6, m7)


@njit(**INNER)
def _step32(metrics, old, new, near, far, word, part, chosen):  # type: ignore[no-untyped-def]
    """Two butterflies that share their costs, of the states p, p + 1, p + 16 and p + 17."""
    for turn in range(2):
        p = 8 * word + part + turn
        a, b = load(metrics, old + p * LANES), load(metrics, old + (p + 16) * LANES)
        even, odd, chosen = _butterfly(a, b, near, far, chosen)
        store(metrics, new + 2 * p * LANES, even)
        store(metrics, new + (2 * p + 1) * LANES, odd)
    return chosen


@njit(**INNER)
def _forward32(y, rows, factor, levels, biases, metrics, choices):  # type: ignore[no-untyped-def]
    """32 states: z₁ = u ⊕ u₋₂ ⊕ u₋₅, c = u₋₃. Each lane has two words of choices."""
    fine, scale = levels.size == 0, floats(factor)
    for row in range(rows[0], rows[1]):
        value = load(y, row * LANES) * scale
        c0, c1, c2, c3 = _fine_costs(value) if fine else _coarse_costs(value, levels, biases)
        old = (row & 1) * 32 * LANES
        if row & 7 == 0:
            lowest = load(metrics, old)
            for i in range(old, old + 32 * LANES, LANES):
                store(metrics, i, load(metrics, i) - lowest)
        for word in range(2):
            chosen = _step32(metrics, old, 32 * LANES - old, c0, c2, word, 0, words(int16(0)))
            chosen = _step32(metrics, old, 32 * LANES - old, c2, c0, word, 2, chosen)
            chosen = _step32(metrics, old, 32 * LANES - old, c1, c3, word, 4, chosen)
            chosen = _step32(metrics, old, 32 * LANES - old, c3, c1, word, 6, chosen)
            store(choices, (2 * row + word) * LANES, chosen)


@njit(**INNER)
def start(metrics, states):  # type: ignore[no-untyped-def]
    """Every path starts in state zero."""
    for i in range(states * LANES):
        metrics[i] = 0 if i < LANES else FAR


@njit(**INNER)
def forward(y, rows, factor, levels, biases, metrics, states, choices):  # type: ignore[no-untyped-def]
    """Extend all paths over these rows of y · factor, from the first to before the last.

    `levels` are the values of the numbers −3 … 3; without them a number is its own value. `metrics` holds the costs of
    all states twice: after an even number of rows, and after an odd one.
    """
    if states == 8:
        _forward8(y, rows, factor, levels, biases, metrics, choices)
    else:
        _forward32(y, rows, factor, levels, biases, metrics, choices)


@njit(**INNER)
def ends(metrics, rows, states, paths):  # type: ignore[no-untyped-def]
    """The state with the least cost after these rows, in every lane."""
    old = (rows & 1) * states * LANES
    for lane in range(LANES):
        paths[lane] = 0
        for state in range(states):
            if metrics[old + state * LANES + lane] < metrics[old + paths[lane] * LANES + lane]:
                paths[lane] = state


@njit(**INNER)
def _before(state, choices, at, states):  # type: ignore[no-untyped-def]
    """The state one row earlier on the best path to `state`."""
    one = words(int16(1))
    if states == 8:
        bit = (load(choices, at) >> (words(int16(7)) - state)) & one
        return (state >> one) | (bit << words(int16(2)))
    low, high = load(choices, at), load(choices, at + LANES)
    chosen = choose(state & words(int16(16)), high, low)
    bit = (chosen >> (words(int16(15)) - (state & words(int16(15))))) & one
    return (state >> one) | (bit << words(int16(4)))


@njit(**INNER)
def _class_of(before, state, states):  # type: ignore[no-untyped-def]
    """2·z₁ + c on the way from one state to the next."""
    one = words(int16(1))
    full = (before << one) | (state & one)
    if states == 8:
        z, c = full ^ (full >> one) ^ (full >> words(int16(3))), full >> words(int16(2))
    else:
        z, c = full ^ (full >> words(int16(2))) ^ (full >> words(int16(5))), full >> words(int16(3))
    return ((z & one) << one) | (c & one)


@njit(**INNER)
def _fine_number(y, j, reach):  # type: ignore[no-untyped-def]
    """The nearest v = j mod 4 to y with |v| ≤ reach."""
    offset = as_floats(j)
    v = as_words(floats(float32(4)) * nearest((y - offset) * floats(float32(0.25))) + offset)
    limit, none, up = words(int16(reach)), words(int16(0)), words(int16(3))
    over, under = largest(v - limit, none), largest(none - limit - v, none)
    return v - ((over + up) & words(int16(-4))) + ((under + up) & words(int16(-4)))


@njit(**INNER)
def _of_class(array, at0, at1, at2, at3, j):  # type: ignore[no-untyped-def]
    """The entry at the place of class j."""
    odd, upper = j & words(int16(1)), j & words(int16(2))
    below_two = choose(odd, floats(array[at1]), floats(array[at0]))
    return choose(upper, choose(odd, floats(array[at3]), floats(array[at2])), below_two)


@njit(**INNER)
def _coarse_number(y, j, levels, biases):  # type: ignore[no-untyped-def]
    """The better of the levels j and j − 4, its value and its bias. Class 0 has one level."""
    high, high_bias = _of_class(levels, 3, 4, 5, 6, j), _of_class(biases, 3, 4, 5, 6, j)
    low, low_bias = _of_class(levels, 3, 0, 1, 2, j), _of_class(biases, 3, 0, 1, 2, j)
    from_high, from_low = y - high, y - low
    swap = below(from_low * from_low + low_bias, from_high * from_high + high_bias)
    return choose(swap, j - words(int16(4)), j), choose(swap, low, high), choose(swap, low_bias, high_bias)


@njit(**INNER)
def back(y, rows, factor, levels, biases, reach, choices, states, paths, v, sums):  # type: ignore[no-untyped-def]
    """Follow the best paths back over these rows and write their numbers. Returns whether their start has changed.

    `paths` holds the states before the first row, which are written, then those after the last. `sums` becomes ⟨y, q⟩,
    ‖q‖², ‖y‖² and the sum of biases. Here y is scaled by the factor, and q is the value of v.
    """
    wide = LANES * (1 if states == 8 else 2)
    state, scale = load(paths, LANES), floats(factor)
    dot = floats(float32(0))
    square, energy, paid = dot, dot, dot
    for row in range(rows[1] - 1, rows[0] - 1, -1):
        before = _before(state, choices, row * wide, states)
        j = _class_of(before, state, states)
        value = load(y, row * LANES) * scale
        if levels.size == 0:
            number = _fine_number(value, j, reach)
            level = as_floats(number)
        else:
            number, level, bias = _coarse_number(value, j, levels, biases)
            paid = paid + bias
        store(v, row * LANES, number)
        dot, square, energy = dot + value * level, square + level * level, energy + value * value
        state = before
    old = load(paths, 0)
    moved = count(below(state, old) | below(old, state)) > 0
    store(paths, 0, state)
    parts = np.empty(4 * LANES, np.float32)
    _store4(parts, 0, dot, square, energy, paid)
    for k in range(4):
        sums[k] = 0.0
        for lane in range(LANES):
            sums[k] += parts[k * LANES + lane]
    return moved


@njit(**INNER)
def hide(message, states):  # type: ignore[no-untyped-def]
    """The first states of the coders for a message of 30 bytes: bits 15·lane … 15·lane + 14, above 2¹⁵."""
    for lane in range(LANES):
        bits = 0
        for k in range(3):
            at = 15 * lane // 8 + k
            bits |= (int64(message[at]) if at < HIDDEN_BYTES else 0) << (8 * k)
        states[lane] = _LOWEST + ((bits >> (15 * lane % 8)) & (_LOWEST - 1))


@njit(**INNER)
def unhide(states, message):  # type: ignore[no-untyped-def]
    """The inverse of `hide`. Returns False for states that no message has."""
    message[:] = 0
    for lane in range(LANES):
        bits = int64(states[lane]) - _LOWEST
        if not 0 <= bits < _LOWEST:
            return False
        bits <<= 15 * lane % 8
        for k in range(3):
            if 15 * lane // 8 + k < HIDDEN_BYTES:
                message[15 * lane // 8 + k] |= (bits >> (8 * k)) & 255
    return True


@njit(**INNER)
def write(v, tables, classes, edges, message, out):  # type: ignore[no-untyped-def]
    """Write all numbers, group by group, to `out`, the last word first. Returns the number of words."""
    states = np.empty(LANES, np.int32)
    hide(message, states)
    x = load(states, 0)
    at = 0
    for group in range(classes.size - 1, -1, -1):
        base = longs(int32(classes[group] * 2 * MIDDLE + MIDDLE))
        for row in range(edges[group + 1] - LANES, edges[group] - LANES, -LANES):
            entry = gather(tables, as_longs(load(v, row)) + base)
            size, begin = entry & longs(int32(0x1FFF)), entry >> longs(int32(13))
            full = below(size - longs(int32(1)), x >> longs(int32(19)))  # x ≥ 2¹⁹·count: no room
            store(out, at, compress(as_words(x), full))
            at += count(full)
            x = choose(full, x >> longs(int32(16)), x)
            # The quotient is below 2¹⁹: its float32 error is below 1/8, so it is at most one too small.
            quotient = as_longs(fma(as_floats(x), floats(float32(1)) / as_floats(size), floats(float32(-0.125))))
            others = longs(int32(CODES)) - size
            missing = choose(below(x - quotient * size, size), longs(int32(0)), others)
            x = x + begin + quotient * others + missing
    store(states, 0, x)
    for lane in range(LANES - 1, -1, -1):
        out[at], out[at + 1] = uint16(states[lane] >> 16), uint16(states[lane])
        at += 2
    return at


@njit(**INNER)
def _opened(data, begin, coders):  # type: ignore[no-untyped-def]
    """Read the states of the coders of a stream. Returns False for impossible states."""
    for lane in range(LANES):
        coders[lane] = int32(data[begin + 2 * lane]) | (int32(data[begin + 2 * lane + 1]) << int32(16))
        if coders[lane] < _LOWEST:
            return False
    return True


@njit(**INNER)
def _read_row(data, at, end, tables, base, x, path, states, v, row):  # type: ignore[no-untyped-def]
    """Read sixteen numbers. Returns the next word, the coders and the paths."""
    first, last, book = (0, 2, 1) if states == 8 else (1, 4, 2)
    one = words(int16(1))
    c = (path >> words(int16(book))) & one
    place = (as_longs(c) << longs(int32(_BITS))) | (x & longs(int32(CODES - 1)))
    entry = gather(tables, place + base)
    x = ((entry & longs(int32(CODES - 1))) + longs(int32(1))) * (x >> longs(int32(_BITS)))
    x = x + ((entry >> longs(int32(_BITS))) & longs(int32(CODES - 1)))
    short = below(x, longs(int32(_LOWEST)))
    word = as_longs(expand(data, at, short)) & longs(int32(0xFFFF))
    x = choose(short, (x << longs(int32(16))) | word, x)
    number = as_words(entry >> longs(int32(24)))
    store(v, row, number + number + c - words(int16(MIDDLE)))
    u = number ^ (path >> words(int16(first))) ^ (path >> words(int16(last)))
    return min(at + count(short), end + 1), x, ((path << one) | (u & one)) & words(int16(states - 1))


@njit(**INNER)
def read(data, begin, end, tables, classes, edges, states, v, message):  # type: ignore[no-untyped-def]
    """Read all numbers from the words data[begin:end]. Returns False unless they use exactly these words.

    `data` must hold at least sixteen more words, which are loaded before the end is detected.
    """
    coders = np.empty(LANES, np.int32)
    if not _opened(data, begin, coders):
        return False
    at, x, path = begin + 2 * LANES, load(coders, 0), words(int16(0))
    for group in range(classes.size):
        base = longs(int32(classes[group] * 2 * CODES))
        for row in range(edges[group], edges[group + 1], LANES):
            at, x, path = _read_row(data, at, end, tables, base, x, path, states, v, row)
    store(coders, 0, x)
    return at == end and unhide(coders, message)


@njit(**INNER)
def read_two(data, ends, tables, classes, edges, states, v, messages):  # type: ignore[no-untyped-def]
    """Read two streams of equal groups together. The numbers of the second follow those of the first.

    A row waits for the row before, mostly for the table. Two streams share this time.
    """
    coders, others = np.empty(LANES, np.int32), np.empty(LANES, np.int32)
    if not (_opened(data, ends[0], coders) and _opened(data, ends[1], others)):
        return False
    at, x, path = ends[0] + 2 * LANES, load(coders, 0), words(int16(0))
    at2, x2, path2 = ends[1] + 2 * LANES, load(others, 0), words(int16(0))
    groups, further = edges.size - 1, edges[edges.size - 1] - edges[0]
    for group in range(groups):
        base = longs(int32(classes[group] * 2 * CODES))
        base2 = longs(int32(classes[groups + group] * 2 * CODES))
        for row in range(edges[group], edges[group + 1], LANES):
            at, x, path = _read_row(data, at, ends[1], tables, base, x, path, states, v, row)
            at2, x2, path2 = _read_row(data, at2, ends[2], tables, base2, x2, path2, states, v, row + further)
    store(coders, 0, x)
    store(others, 0, x2)
    sound = at == ends[1] and at2 == ends[2]
    return sound and unhide(coders, messages[0]) and unhide(others, messages[1])
