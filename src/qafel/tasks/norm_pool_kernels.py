"""Compiled loops of GroupNorm (a group per channel) + ReLU + 2×2 max-pooling on planes of float32.

With one channel per group, y = γ(x − m)/σ + β is monotone in x, so the pool can choose before it normalises: the
largest x of a window where γ ≥ 0, the smallest where γ < 0. Only a quarter of the values is then normalised, and the
backward pass is one multiply-add for each input.

The inner loops are written so that they vectorise: unsigned indices (no test for negative ones), few arrays each, and
reductions that may be reassociated. On one machine the order of a sum is fixed, and so is the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, int32, njit, uintp

_KERNEL: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}
_ONE, _TWO = np.uintp(1), np.uintp(2)


@njit(**_KERNEL)
def _moments(plane, eps):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Mean and 1/σ of a plane, in two passes: no cancellation."""
    size = float32(plane.size)
    total = float32(0)
    for i in range(plane.size):
        total += plane[i]
    mean = total / size
    square = float32(0)
    for i in range(plane.size):
        square += (plane[i] - mean) * (plane[i] - mean)
    return mean, float32(1) / np.sqrt(square / size + eps)


@njit(**_KERNEL)
def _choose(upper, lower, sign, start, best, place):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One row of windows: the largest of sign·x, and where it lies in the plane; the first of equals, as in torch."""
    above, below = int32(start), int32(start + upper.size)
    for signed in range(best.size):
        j = uintp(signed)
        a, b = sign * upper[_TWO * j], sign * upper[_TWO * j + _ONE]
        c, d = sign * lower[_TWO * j], sign * lower[_TWO * j + _ONE]
        right, lower_right = b > a, d > c
        a = b if right else a
        c = d if lower_right else c
        down = c > a
        best[j] = c if down else a
        place[j] = (below + int32(lower_right) if down else above + int32(right)) + int32(2) * int32(signed)


@njit(**_KERNEL)
def forward(x, gain, bias, eps, out, best, places, mean, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `out`; keep for the backward pass each window's choice and its place, and each plane's m and 1/σ.

    x is (planes, height, width), plane p belongs to channel p mod channels; out, best and places are
    (planes, height/2, width/2).
    """
    planes, height, width = x.shape
    windows = out.shape[1] * out.shape[2]
    for p in range(planes):
        g, b = gain[p % gain.size], bias[p % gain.size]
        sign = float32(-1) if g < 0 else float32(1)
        m, r = _moments(x[p].reshape(height * width), eps)
        mean[p] = m
        scale[p] = r
        for i in range(out.shape[1]):
            _choose(x[p, 2 * i], x[p, 2 * i + 1], sign, 2 * i * width, best[p, i], places[p, i])
        chosen, y = best[p].reshape(windows), out[p].reshape(windows)
        for i in range(windows):
            value = (sign * chosen[i] - m) * r * g + b
            y[i] = float32(0) if value <= 0 else value  # a NaN passes, as it does through torch's ReLU


@njit(**_KERNEL)
def backward(grad, x, gain, out, best, places, mean, scale, grad_x, grad_gain, grad_bias):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `grad_x`, and add to `grad_gain` and `grad_bias`.

    With g the gradient at the chosen places, x̂ the normalised values and M the plane's size:
    ∂x = γ/σ · (g − Σg/M − x̂ · Σ(g·x̂)/M).
    """
    planes, height, width = x.shape
    windows = grad.shape[1] * grad.shape[2]
    size = float32(height * width)
    live = np.empty(windows, np.float32)
    for p in range(planes):
        c = p % gain.size
        sign = float32(-1) if gain[c] < 0 else float32(1)
        m, r = mean[p], scale[p]
        g, y, chosen = grad[p].reshape(windows), out[p].reshape(windows), best[p].reshape(windows)
        sum_g, sum_gx = float32(0), float32(0)
        for i in range(windows):
            live[i] = g[i] if y[i] > 0 else float32(0)
            sum_g += live[i]
            sum_gx += live[i] * ((sign * chosen[i] - m) * r)
        grad_bias[c] += sum_g
        grad_gain[c] += sum_gx
        factor = gain[c] * r
        slope = -factor * r * sum_gx / size
        level = -factor * sum_g / size - slope * m
        plane, to, place = x[p].reshape(height * width), grad_x[p].reshape(height * width), places[p].reshape(windows)
        for i in range(plane.size):
            to[i] = plane[i] * slope + level
        for i in range(windows):
            to[uintp(place[i])] += factor * live[i]
