"""Parts of the network's blocks: the first convolution, group norm, ReLU and pooling.

With one channel per group, y = γ(x − m)/σ + β is monotone in x. The pool therefore chooses before the norm: the largest
x of a window if γ ≥ 0, else the smallest. Only a quarter of the values is then normalised.

Backward, ∂x = γ/σ · (g − Σg/M − x̂ · Σ(g·x̂)/M). Here g is the gradient at the chosen places, x̂ are the normalised values
and M is their number. This is a linear function of x, plus a term at the chosen places. The norm removes any constant
of a channel, so the convolutions' biases have no effect and zero gradients.

Arrays are flat, channels last, and loops process `WIDE` channels together. The sides of an image are
32 → 34 → 17 → 19 → 9 → 11 → 5 → 7 → 3. A block's outputs have a border of zeros for the next convolution.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit

from qafel.compiled import KERNEL, WIDE, below, choose, fma, largest, load_wide, store, wide
from qafel.tasks.neural.compiled.winograd import CHANNELS

IMAGE = 32
FIRST = IMAGE + 2  # side of the first convolution's outputs
PADDED = IMAGE + 4
TILES = (5, 3, 2)  # per row of the other convolutions' outputs, 19, 11 and 7 wide
SIDES = (17, 9, 5, 3)  # of the blocks' outputs
_EPS = np.float32(1e-5)


@njit(**KERNEL)
def transpose(a, at, rows, b, to, columns):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the transpose of a matrix with these rows and columns."""
    for row in range(rows):
        for column in range(columns):
            b[to + column * rows + row] = a[at + row * columns + column]


@njit(**KERNEL)
def pad(images, number, padded):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy an image into the middle of `padded`, whose border stays zero."""
    for row in range(3 * IMAGE):
        at = (number * 3 * IMAGE + row) * IMAGE
        to = (row // IMAGE * PADDED + row % IMAGE + 2) * PADDED + 2
        for lane in range(0, IMAGE, WIDE):
            store(padded, to + lane, load_wide(images, at + lane))


@njit(**KERNEL)
def convolve_first(padded, taps, y, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute the 3×3 convolution of an image with three channels, (side, side, 32), four neighbours at a time."""
    for row in range(FIRST):
        for block in range(0, FIRST, 4):
            column = min(block, FIRST - 4)
            for lane in range(0, CHANNELS, WIDE):
                s0 = s1 = s2 = s3 = wide(float32(0))
                for line in range(9):
                    at = (line // 3 * PADDED + row + line % 3) * PADDED + column
                    for k in range(3):
                        w, i = load_wide(taps, (3 * line + k) * CHANNELS + lane), at + k
                        s0 = fma(wide(padded[i]), w, s0)
                        s1 = fma(wide(padded[i + 1]), w, s1)
                        s2 = fma(wide(padded[i + 2]), w, s2)
                        s3 = fma(wide(padded[i + 3]), w, s3)
                where = to + (row * FIRST + column) * CHANNELS + lane
                store(y, where, s0)
                store(y, where + CHANNELS, s1)
                store(y, where + 2 * CHANNELS, s2)
                store(y, where + 3 * CHANNELS, s3)


@njit(**KERNEL)
def convolve_first_back(padded, dy, to_taps):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add an image's gradient to that of the first convolution's weights, three taps at a time."""
    for row in range(FIRST):
        for line in range(9):
            at = (line // 3 * PADDED + row + line % 3) * PADDED
            for lane in range(0, CHANNELS, WIDE):
                to = 3 * line * CHANNELS + lane
                s0, s1, s2 = (
                    load_wide(to_taps, to),
                    load_wide(to_taps, to + CHANNELS),
                    load_wide(to_taps, to + 2 * CHANNELS),
                )
                for i in range(FIRST):
                    g = load_wide(dy, (row * FIRST + i) * CHANNELS + lane)
                    s0 = fma(wide(padded[at + i]), g, s0)
                    s1 = fma(wide(padded[at + i + 1]), g, s1)
                    s2 = fma(wide(padded[at + i + 2]), g, s2)
                store(to_taps, to, s0)
                store(to_taps, to + CHANNELS, s1)
                store(to_taps, to + 2 * CHANNELS, s2)


@njit(**KERNEL)
def _shape(block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return side and row width of a block's outputs, and row width and border of its pooled image."""
    width = 4 * TILES[block - 1] if block else FIRST
    to_width, border = (4 * TILES[block] + 2, 2) if block < 3 else (SIDES[3], 0)
    return SIDES[block - 1] + 2 if block else FIRST, width, to_width, border


@njit(**KERNEL)
def normalise(norm, y, image, block, x, moments):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Normalise, rectify and pool an image of y into the middle of that of x. Store its means and scales.

    `norm` is γ and β. `block` determines the size of the image.
    """
    side, width, to_width, border = _shape(block)
    size, kept = to_width * to_width * CHANNELS, (4 * image + block) * 2 * CHANNELS
    at, to, zero = image * width * width * CHANNELS, image * size, wide(float32(0))
    _moments(y, at, side, width, moments, kept)
    if border:
        for k in range(to, to + size, WIDE):
            store(x, k, zero)
    for lane in range(0, CHANNELS, WIDE):
        gain, bias = load_wide(norm, lane), load_wide(norm, CHANNELS + lane)
        mean, factor = load_wide(moments, kept + lane), load_wide(moments, kept + CHANNELS + lane) * gain
        sign = choose(below(gain, zero), wide(float32(-1)), wide(float32(1)))
        for row in range(side // 2):
            top = at + 2 * row * width * CHANNELS + lane
            out = to + ((row + border) * to_width + border) * CHANNELS + lane
            for column in range(side // 2):
                best = _largest(y, top + 2 * column * CHANNELS, width * CHANNELS, sign)[0]
                value = fma(sign * best - mean, factor, bias)
                # This order propagates NaN, as torch's ReLU does.
                store(x, out + column * CHANNELS, largest(value, zero))


@njit(**KERNEL)
def _largest(y, at, down, sign):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the largest of a window's four values times `sign`, of the first three, of the first two, and the four."""
    a, b = sign * load_wide(y, at), sign * load_wide(y, at + CHANNELS)
    c, d = sign * load_wide(y, at + down), sign * load_wide(y, at + down + CHANNELS)
    two = largest(a, b)
    three = largest(two, c)
    return largest(three, d), three, two, a, b, c, d


@njit(**KERNEL)
def _moments(y, at, side, width, moments, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute each channel's mean and 1/σ in two passes, without cancellation."""
    size = float32(side * side)
    for lane in range(0, CHANNELS, WIDE):
        even, odd = wide(float32(0)), wide(float32(0))
        for row in range(side):
            start = at + row * width * CHANNELS + lane
            for i in range(start, start + side // 2 * 2 * CHANNELS, 2 * CHANNELS):
                even, odd = even + load_wide(y, i), odd + load_wide(y, i + CHANNELS)
            if side % 2:
                even = even + load_wide(y, start + (side - 1) * CHANNELS)
        mean = (even + odd) * wide(float32(1) / size)
        store(moments, to + lane, mean)
        even, odd = wide(float32(0)), wide(float32(0))
        for row in range(side):
            start = at + row * width * CHANNELS + lane
            for i in range(start, start + side // 2 * 2 * CHANNELS, 2 * CHANNELS):
                p, q = load_wide(y, i) - mean, load_wide(y, i + CHANNELS) - mean
                even, odd = fma(p, p, even), fma(q, q, odd)
            if side % 2:
                p = load_wide(y, start + (side - 1) * CHANNELS) - mean
                even = fma(p, p, even)
        store(moments, to + CHANNELS + lane, even + odd)
    for channel in range(to + CHANNELS, to + 2 * CHANNELS):
        moments[channel] = float32(1) / np.sqrt(moments[channel] / size + _EPS)


@njit(**KERNEL)
def normalise_back(norm, grad, x, y, image, block, moments, dy, to_norm):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `dy` with the gradient of an image of y from `grad`, that of the pooled image. Add to the norm's."""
    side, width, to_width, border = _shape(block)
    down, at, kept = width * CHANNELS, image * width * width * CHANNELS, (4 * image + block) * 2 * CHANNELS
    to = ((image * to_width + border) * to_width + border) * CHANNELS
    for lane in range(0, CHANNELS, WIDE):
        gain, mean, scale = (
            load_wide(norm, lane),
            load_wide(moments, kept + lane),
            load_wide(moments, kept + CHANNELS + lane),
        )
        zero, share = wide(float32(0)), wide(float32(-1) / float32(side * side))
        sign = choose(below(gain, zero), wide(float32(-1)), wide(float32(1)))
        sum_g, sum_gx = _gradient_sums(grad, x, to + lane, to_width, y, at + lane, side, width, sign, mean, scale)
        store(to_norm, lane, load_wide(to_norm, lane) + sum_gx)
        store(to_norm, CHANNELS + lane, load_wide(to_norm, CHANNELS + lane) + sum_g)
        factor = gain * scale
        slope = factor * scale * sum_gx * share
        level = factor * sum_g * share - slope * mean
        for row in range(side // 2):
            for column in range(side // 2):
                k, i = to + (row * to_width + column) * CHANNELS + lane, 2 * (row * width + column) * CHANNELS + lane
                more = factor * choose(below(zero, load_wide(x, k)), load_wide(grad, k), zero)
                _spread_gradient(y, at + i, down, sign, more, slope, level, dy, i)
        if side % 2:
            for k in range(side):
                i, j = (side - 1) * down + k * CHANNELS + lane, k * down + (side - 1) * CHANNELS + lane
                store(dy, i, fma(load_wide(y, at + i), slope, level))
                store(dy, j, fma(load_wide(y, at + j), slope, level))


@njit(**KERNEL)
def _gradient_sums(grad, x, to, to_width, y, at, side, width, sign, mean, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute Σg and Σ(g·x̂), the gradients of β and γ."""
    zero = wide(float32(0))
    sum_g, sum_gx = zero, zero
    for row in range(side // 2):
        for column in range(side // 2):
            k, i = to + (row * to_width + column) * CHANNELS, at + 2 * (row * width + column) * CHANNELS
            live = choose(below(zero, load_wide(x, k)), load_wide(grad, k), zero)
            best = _largest(y, i, width * CHANNELS, sign)[0]
            sum_g, sum_gx = sum_g + live, fma(live, (sign * best - mean) * scale, sum_gx)
    return sum_g, sum_gx


@njit(**KERNEL)
def _spread_gradient(y, at, down, sign, more, slope, level, dy, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write a window's gradients: slope · x + level, plus `more` at the chosen value, as torch does for equals."""
    _, three, two, a, b, c, d = _largest(y, at, down, sign)
    zero, slope = wide(float32(0)), slope * sign
    not_d = choose(below(three, d), zero, more)
    not_c = choose(below(two, c), zero, not_d)
    store(dy, to, fma(a, slope, level) + choose(below(a, b), zero, not_c))
    store(dy, to + CHANNELS, fma(b, slope, level) + choose(below(a, b), not_c, zero))
    store(dy, to + down, fma(c, slope, level) + choose(below(two, c), not_d, zero))
    store(dy, to + down + CHANNELS, fma(d, slope, level) + choose(below(three, d), more, zero))
