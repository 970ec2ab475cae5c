"""Kernels of trellis: the path of least cost through a trellis (Viterbi), and the numbers along it.

Sixteen paths run side by side, one a lane: coordinate 16·row + lane. A state is the last ν bits u₋₁, u₋₂, … of a path.
A bit u leads on, and says which numbers v a coordinate may become: those with v mod 4 = 2·z₁ + c, where the codebook c
is one bit of the state and z₁ is u ⊕ two more. The receiver knows c from the state, so it reads v from a code for even
or for odd numbers; v says z₁, hence u and the next state. Ungerboeck, 1982; Marcellin and Fischer, 1990.

Costs are whole numbers, so that every CPU finds the same path.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int16, njit

from qafel.compiled import (
    INNER,
    LANES,
    as_floats,
    as_words,
    below,
    choose,
    count,
    floats,
    largest,
    least,
    load,
    nearest,
    pushed,
    store,
    words,
)

FAR = 8192  # more than any two states' costs ever differ
_FINE_UNIT, _COARSE_UNIT, _MOST = 256.0, 128.0, 2047.0


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
    """The states p and p + half lead to 2p and 2p + 1; the choices of those two become the lowest bits."""
    stay, cross = a + near, b + far
    even, choices = least(stay, cross), pushed(choices, cross - stay)
    stay, cross = a + far, b + near
    return even, least(stay, cross), pushed(choices, cross - stay)


@njit(**INNER)
def _forward8(y, rows, factor, levels, biases, metrics, choices):  # type: ignore[no-untyped-def]
    """Eight states: z₁ = u ⊕ u₋₁ ⊕ u₋₃, c = u₋₂. Their costs stay in registers."""
    at = (rows[0] & 1) * 8 * LANES
    m0, m1 = load(metrics, at), load(metrics, at + LANES)
    m2, m3 = load(metrics, at + 2 * LANES), load(metrics, at + 3 * LANES)
    m4, m5 = load(metrics, at + 4 * LANES), load(metrics, at + 5 * LANES)
    m6, m7 = load(metrics, at + 6 * LANES), load(metrics, at + 7 * LANES)
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
    store(metrics, at, m0)
    store(metrics, at + LANES, m1)
    store(metrics, at + 2 * LANES, m2)
    store(metrics, at + 3 * LANES, m3)
    store(metrics, at + 4 * LANES, m4)
    store(metrics, at + 5 * LANES, m5)
    store(metrics, at + 6 * LANES, m6)
    store(metrics, at + 7 * LANES, m7)


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
    """32 states: z₁ = u ⊕ u₋₂ ⊕ u₋₅, c = u₋₃. Two words of choices a lane."""
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
    """Every path begins in state zero."""
    for i in range(states * LANES):
        metrics[i] = 0 if i < LANES else FAR


@njit(**INNER)
def forward(y, rows, factor, levels, biases, metrics, states, choices):  # type: ignore[no-untyped-def]
    """Extend all paths over these rows of y · factor, from the first to before the last.

    With levels, these are what the numbers −3 … 3 stand for; without, a number stands for itself. `metrics` holds the
    costs of all states, twice: those after an even number of rows, and after an odd one.
    """
    if states == 8:
        _forward8(y, rows, factor, levels, biases, metrics, choices)
    else:
        _forward32(y, rows, factor, levels, biases, metrics, choices)


@njit(**INNER)
def ends(metrics, rows, states, paths):  # type: ignore[no-untyped-def]
    """The state with the least cost after so many rows, in every lane."""
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
    """The v = j mod 4 that is nearest to y, of those up to `reach`."""
    offset = as_floats(j)
    v = as_words(floats(float32(4)) * nearest((y - offset) * floats(float32(0.25))) + offset)
    limit, none, up = words(int16(reach)), words(int16(0)), words(int16(3))
    over, under = largest(v - limit, none), largest(none - limit - v, none)
    return v - ((over + up) & words(int16(-4))) + ((under + up) & words(int16(-4)))


@njit(**INNER)
def _of_class(array, at0, at1, at2, at3, j):  # type: ignore[no-untyped-def]
    """What stands at the place that belongs to class j."""
    odd, upper = j & words(int16(1)), j & words(int16(2))
    below_two = choose(odd, floats(array[at1]), floats(array[at0]))
    return choose(upper, choose(odd, floats(array[at3]), floats(array[at2])), below_two)


@njit(**INNER)
def _coarse_number(y, j, levels, biases):  # type: ignore[no-untyped-def]
    """The better one of the levels j and j − 4, what it stands for, and its bias; in class 0 there is one level."""
    high, high_bias = _of_class(levels, 3, 4, 5, 6, j), _of_class(biases, 3, 4, 5, 6, j)
    low, low_bias = _of_class(levels, 3, 0, 1, 2, j), _of_class(biases, 3, 0, 1, 2, j)
    from_high, from_low = y - high, y - low
    swap = below(from_low * from_low + low_bias, from_high * from_high + high_bias)
    return choose(swap, j - words(int16(4)), j), choose(swap, low, high), choose(swap, low_bias, high_bias)


@njit(**INNER)
def back(y, rows, factor, levels, biases, reach, choices, states, paths, v, sums):  # type: ignore[no-untyped-def]
    """Follow the best paths back over these rows and write the numbers along them; whether they begin elsewhere now.

    `paths` holds the states before the first row, which are written, then those after the last. `sums` becomes ⟨y, q⟩,
    ‖q‖², ‖y‖² and the sum of biases, y being scaled by the factor, and q what v stands for.
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
    store(parts, 0, dot)
    store(parts, LANES, square)
    store(parts, 2 * LANES, energy)
    store(parts, 3 * LANES, paid)
    for k in range(4):
        sums[k] = 0.0
        for lane in range(LANES):
            sums[k] += parts[k * LANES + lane]
    return moved
