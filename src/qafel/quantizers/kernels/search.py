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

from qafel.quantizers.kernels import INNER
from qafel.quantizers.kernels.lanes import (
    LANES,
    as_floats,
    as_words,
    below,
    choose,
    floats,
    largest,
    least,
    load,
    nearest,
    store,
    words,
)

FAR = 8192  # more than any two states' costs ever differ
_FINE_UNIT, _COARSE_UNIT, _MOST = 256.0, 128.0, 2047.0


@njit(**INNER)
def _fine_costs(y, costs):  # type: ignore[no-untyped-def]
    """Squared distances to the nearest v = 0, 1, 2, 3 mod 4."""
    unit = floats(float32(_FINE_UNIT))
    for c in range(2):
        part = y - floats(float32(c))
        part = part - floats(float32(4)) * nearest(part * floats(float32(0.25)))
        far = floats(float32(2)) - largest(part, floats(float32(0)) - part)
        store(costs, c * LANES, as_words(part * part * unit))
        store(costs, (c + 2) * LANES, as_words(far * far * unit))


@njit(**INNER)
def _coarse_cost(y, levels, biases, at):  # type: ignore[no-untyped-def]
    part = y - floats(levels[at])
    return part * part + floats(biases[at])


@njit(**INNER)
def _coarse_costs(y, levels, biases, costs):  # type: ignore[no-untyped-def]
    """Squared distance and λ · bits of the best of the levels −3 … 3, in each class mod 4."""
    unit, most = floats(float32(_COARSE_UNIT)), floats(float32(_MOST))
    for j in range(4):
        cost = _coarse_cost(y, levels, biases, 3 + j)
        if j > 0:
            cost = least(cost, _coarse_cost(y, levels, biases, j - 1))
        store(costs, j * LANES, as_words(least(cost * unit, most)))


@njit(**INNER)
def _butterfly(metrics, old, new, half, costs, choices, p, j):  # type: ignore[no-untyped-def]
    """The states p and p + half lead to 2p and 2p + 1; the choices of those two become the lowest bits."""
    a, b = load(metrics, old + p * LANES), load(metrics, old + (p + half) * LANES)
    near, far = load(costs, j * LANES), load(costs, (j ^ 2) * LANES)
    stay, cross = a + near, b + far
    choices = (choices + choices) - below(cross, stay)
    store(metrics, new + 2 * p * LANES, least(stay, cross))
    stay, cross = a + far, b + near
    choices = (choices + choices) - below(cross, stay)
    store(metrics, new + (2 * p + 1) * LANES, least(stay, cross))
    return choices


@njit(**INNER)
def _step8(metrics, old, new, costs, choices, at):  # type: ignore[no-untyped-def]
    """One row of the trellis with eight states: z₁ = u ⊕ u₋₁ ⊕ u₋₃, c = u₋₂."""
    chosen = words(int16(0))
    chosen = _butterfly(metrics, old, new, 4, costs, chosen, 0, 0)
    chosen = _butterfly(metrics, old, new, 4, costs, chosen, 1, 2)
    chosen = _butterfly(metrics, old, new, 4, costs, chosen, 2, 1)
    chosen = _butterfly(metrics, old, new, 4, costs, chosen, 3, 3)
    store(choices, at, chosen)


@njit(**INNER)
def _step32(metrics, old, new, costs, choices, at):  # type: ignore[no-untyped-def]
    """One row of the trellis with 32 states: z₁ = u ⊕ u₋₂ ⊕ u₋₅, c = u₋₃. Two words of choices a lane."""
    for word in range(2):
        chosen = words(int16(0))
        for part in range(0, 8, 4):
            p, c = 8 * word + part, part // 4
            chosen = _butterfly(metrics, old, new, 16, costs, chosen, p, c)
            chosen = _butterfly(metrics, old, new, 16, costs, chosen, p + 1, c)
            chosen = _butterfly(metrics, old, new, 16, costs, chosen, p + 2, c + 2)
            chosen = _butterfly(metrics, old, new, 16, costs, chosen, p + 3, c + 2)
        store(choices, at + word * LANES, chosen)


@njit(**INNER)
def start(metrics, states):  # type: ignore[no-untyped-def]
    """Every path begins in state zero."""
    for i in range(states * LANES):
        metrics[i] = 0 if i < LANES else FAR


@njit(**INNER)
def forward(y, rows, factor, levels, biases, metrics, states, choices):  # type: ignore[no-untyped-def]
    """Multiply these rows of y, from the first to before the last, by the factor, and extend all paths over them.

    With levels, these are what the numbers −3 … 3 stand for; without, a number stands for itself. `metrics` holds the
    costs of all states, twice: rows read one half and write the other.
    """
    costs = np.empty(4 * LANES, np.int16)
    fine, size = levels.size == 0, states * LANES
    wide = LANES * (1 if states == 8 else 2)
    for row in range(rows[0], rows[1]):
        value = load(y, row * LANES) * floats(factor)
        store(y, row * LANES, value)
        if fine:
            _fine_costs(value, costs)
        else:
            _coarse_costs(value, levels, biases, costs)
        old = (row & 1) * size
        if row & 7 == 0:
            lowest = load(metrics, old)
            for i in range(old, old + size, LANES):
                store(metrics, i, load(metrics, i) - lowest)
        if states == 8:
            _step8(metrics, old, size - old, costs, choices, row * wide)
        else:
            _step32(metrics, old, size - old, costs, choices, row * wide)


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
def _coarse_number(y, j, levels, biases):  # type: ignore[no-untyped-def]
    """The better one of the levels in class j, and what it stands for."""
    v, value = words(int16(0)), floats(levels[3])
    for k in range(1, 4):
        cost, other = _coarse_cost(y, levels, biases, 3 + k), _coarse_cost(y, levels, biases, k - 1)
        swap = below(other, cost)
        here = below(words(int16(k - 1)), j) & below(j, words(int16(k + 1)))
        v = choose(here, choose(swap, words(int16(k - 4)), words(int16(k))), v)
        value = choose(here, choose(swap, floats(levels[k - 1]), floats(levels[3 + k])), value)
    return v, value


@njit(**INNER)
def back(y, rows, levels, biases, reach, choices, states, paths, v, sums):  # type: ignore[no-untyped-def]
    """Follow the best paths back over these rows and write the numbers along them.

    `paths` holds the states after the last row, then those before the first. `sums` becomes ⟨y, q⟩, ‖q‖² and ‖y‖², q
    being what v stands for.
    """
    wide = LANES * (1 if states == 8 else 2)
    state = load(paths, 0)
    dot, square, energy = floats(float32(0)), floats(float32(0)), floats(float32(0))
    for row in range(rows[1] - 1, rows[0] - 1, -1):
        before = _before(state, choices, row * wide, states)
        j = _class_of(before, state, states)
        value = load(y, row * LANES)
        if levels.size == 0:
            number = _fine_number(value, j, reach)
            level = as_floats(number)
        else:
            number, level = _coarse_number(value, j, levels, biases)
        store(v, row * LANES, number)
        dot, square, energy = dot + value * level, square + level * level, energy + value * value
        state = before
    store(paths, 0, state)
    parts = np.empty(3 * LANES, np.float32)
    store(parts, 0, dot)
    store(parts, LANES, square)
    store(parts, 2 * LANES, energy)
    for k in range(3):
        sums[k] = 0.0
        for lane in range(LANES):
            sums[k] += parts[k * LANES + lane]
