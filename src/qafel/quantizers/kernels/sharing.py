"""Which code table every group of `trellis` takes. Plain Python: windows.py compiles it, and NumPy does without."""

from __future__ import annotations

import math

_PULL = 4.0  # λ must go this much further than from table to table for the rate to follow


def share_out(sigmas, windows, places, rates, knobs, coarse, target, classes, knob, planned):  # type: ignore[no-untyped-def]
    """Give every group a table, and a knob to go with it, such that they take `planned` bits each and `target` in all.

    With e the relative error of the unbiased Q at some rate, the sum of all errors is least where σ²·(e² + e) is the
    same in all groups. So a table has the place 1/√(e² + e), and one factor, found by bisection, takes all σ to places.
    """
    count = places.size
    most, least = 0.0, math.inf
    for sigma in sigmas:
        if sigma > 0:
            most, least = max(most, sigma), min(least, sigma)
    low, high = (places[1] / most, places[count - 1] / least) if most > 0 else (1.0, 1.0)
    for _ in range(21):
        factor, total = math.sqrt(low) * math.sqrt(high), 0.0
        for group in range(sigmas.size):
            classes[group], knob[group], planned[group] = 0, 1.0, 0.0
            if sigmas[group] > 0:
                place = min(max(sigmas[group] * factor, places[1]), places[count - 1])
                below, above = 1, count - 1
                while above - below > 1:
                    middle = (below + above) // 2
                    below, above = (middle, above) if places[middle] <= place else (below, middle)
                share = (place - places[below]) / (places[above] - places[below])
                planned[group] = windows[group, 2] * (rates[below] + share * (rates[above] - rates[below]))
                total += planned[group]
                nearest = above if share > 0.5 else below
                between = knobs[below] + share * (knobs[above] - knobs[below])
                pull = 0.0 if below == coarse else _PULL if nearest <= coarse else 1.0
                classes[group], knob[group] = nearest, knobs[nearest] + pull * (between - knobs[nearest])
        if total < target:
            low = factor
        else:
            high = factor


def nudged(k, knob, change, rates, knobs, coarse):  # type: ignore[no-untyped-def]
    """The knob with which a group takes `change` bits a coordinate more in its table, about."""
    low, high = (1, coarse) if k <= coarse else (coarse + 1, rates.size - 1)
    a, b = max(k - 1, low), min(k + 1, high)
    pull = _PULL if k <= coarse else 1.0
    moved = knob + pull * change * (knobs[b] - knobs[a]) / (rates[b] - rates[a])
    return min(max(moved, 0.5 * knobs[k]), 2.0 * knobs[k])
