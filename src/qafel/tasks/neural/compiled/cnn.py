"""The paper's convolutional network in compiled loops: its features, and the gradient of its loss without autograd.

A few images at a time pass through all blocks, forward and backward, so that they stay in the cache. The model is one
flat vector in the order of the network's parameters. docs/decisions/neural.md gives the reasons.

A block is a convolution, group norm, pooling and ReLU. With one channel per group, y = γ(x − m)/σ + β is monotone in x.
The pool therefore chooses before the norm: the largest x of a window if γ ≥ 0, else the smallest. Only a quarter of the
values is then normalised.

Backward, ∂x = γ/σ · (g − Σg/M − x̂ · Σ(g·x̂)/M). Here g is the gradient at the chosen places, x̂ are the normalised values
and M is their number. This is a linear function of x, plus a term at the chosen places. The norm removes any constant
of a channel, so the convolutions' biases have no effect and zero gradients.

Arrays are flat, channels last, and loops process `WIDE` channels together. The sides of an image are
32 → 34 → 17 → 19 → 9 → 11 → 5 → 7 → 3. A block's outputs have a border of zeros for the next convolution.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit
from numpy.typing import NDArray

from qafel.compiled import KERNEL, WIDE, below, choose, fma, largest, load_wide, store, wide
from qafel.tasks.neural.compiled import winograd
from qafel.tasks.neural.compiled.winograd import CHANNELS, TABLE

IMAGE = 32
FIRST = IMAGE + 2  # side of the first convolution's outputs
PADDED = IMAGE + 4
TILES = (5, 3, 2)  # per row of the other convolutions' outputs, 19, 11 and 7 wide
SIDES = (17, 9, 5, 3)  # of the blocks' outputs
_EPS = np.float32(1e-5)
FEATURES = CHANNELS * SIDES[3] * SIDES[3]
_TOGETHER = 8  # images that pass through all blocks together
_GROUPS = (2, 4, 8)  # images whose tiles are multiplied together in blocks 2 to 4
_MOST_TILES = 50  # of such a group
_TAPS = 27  # of the first convolution
_WEIGHTS = (0, 896, 10_144, 19_392)  # the start of each convolution in the model: weights, then biases
_NORM = 28_640
_LINEAR = _NORM + 2 * CHANNELS


def compute_features(values: NDArray[np.float32], images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the features of each image, equal to torch's up to rounding.

    `values` is the model, `images` is (batch, 3, 32, 32).
    """
    features = np.empty((len(images), FEATURES), np.float32)
    _compute_features(values, images.reshape(-1), features.reshape(-1))
    return features


def fill_gradient(
    values: NDArray[np.float32],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    dropout: NDArray[np.float32],
    gradient: NDArray[np.float32],
) -> None:
    """Fill `gradient` with the gradient of the mean cross entropy over a batch.

    `values` is the model, `images` is (batch, 3, 32, 32), and `dropout`, (batch, 288), multiplies the features.
    """
    _fill_gradient(values, images.reshape(-1), labels, dropout.reshape(-1), gradient)


@njit(**KERNEL)
def _compute_features(values, images, features):  # type: ignore[no-untyped-def]  # pragma: no cover
    kernels, memory = _make_kernels(values, False), _make_memory()
    for start in range(0, features.size // FEATURES, _TOGETHER):
        some = min(_TOGETHER, features.size // FEATURES - start)
        _forward(values, kernels, images, start, some, memory)
        for i in range(some):
            transpose(memory[1][3], i * FEATURES, 9, features, (start + i) * FEATURES, CHANNELS)


@njit(**KERNEL)
def _fill_gradient(values, images, labels, dropout, gradient):  # type: ignore[no-untyped-def]  # pragma: no cover
    gradient[:] = float32(0)
    kernels, back_kernels, memory = _make_kernels(values, False), _make_kernels(values, True), _make_memory()
    # Beyond a block's outputs, the gradient of tiles stays zero.
    to_handed, to_raw = np.empty_like(memory[1]), np.zeros((4, 2 * 16 * TILES[0] ** 2 * CHANNELS), np.float32)
    to_first, to_taps = np.empty(FIRST * FIRST * CHANNELS, np.float32), np.zeros(_TAPS * CHANNELS, np.float32)
    back = (to_handed, to_raw, to_first, to_taps, np.zeros((3, TABLE), np.float32))
    features, to_features = np.empty(FEATURES, np.float32), np.empty(FEATURES, np.float32)
    for start in range(0, labels.size, _TOGETHER):
        some = min(_TOGETHER, labels.size - start)
        _forward(values, kernels, images, start, some, memory)
        for i in range(some):
            transpose(memory[1][3], i * FEATURES, 9, features, 0, CHANNELS)
            kept = dropout[(start + i) * FEATURES : (start + i + 1) * FEATURES]
            _head(values, features, kept, labels[start + i], labels.size, to_features, gradient)
            transpose(to_features, 0, CHANNELS, to_handed[3], i * FEATURES, 9)
        _backward(values, back_kernels, images, start, some, memory, back, gradient)
    for block in range(1, 4):
        winograd.transform_kernel_back(back[4][block - 1], gradient[_WEIGHTS[block] :])
    transpose(to_taps, 0, _TAPS, gradient, 0, CHANNELS)


@njit(**KERNEL)
def _make_kernels(values, backwards):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the first convolution's weights, (tap, channel), and U of the others."""
    taps, tables = np.empty(_TAPS * CHANNELS, np.float32), np.empty((3, TABLE), np.float32)
    transpose(values, 0, CHANNELS, taps, 0, _TAPS)
    for block in range(1, 4):
        winograd.transform_kernel(values[_WEIGHTS[block] :], backwards, tables[block - 1])
    return taps, tables


@njit(**KERNEL)
def _make_memory():  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return memory for a few images: inputs of the norms, outputs of the blocks, moments, a padded image, room."""
    raw = np.empty((4, _TOGETHER * FIRST * FIRST * CHANNELS), np.float32)
    handed = np.empty((4, _TOGETHER * (4 * TILES[0] + 2) ** 2 * CHANNELS), np.float32)
    moments, padded = np.empty(_TOGETHER * 8 * CHANNELS, np.float32), np.zeros(3 * PADDED * PADDED, np.float32)
    return raw, handed, moments, padded, winograd.make_room(_MOST_TILES)


@njit(**KERNEL)
def _forward(values, kernels, images, start, count, memory):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pass `count` images through all blocks and fill `memory`."""
    raw, handed, moments, padded, room = memory
    norm = values[_NORM:_LINEAR]
    for i in range(count):
        pad(images, start + i, padded)
        convolve_first(padded, kernels[0], raw[0], i * FIRST * FIRST * CHANNELS)
        normalise(norm, raw[0], i, 0, handed[0], moments)
    for block in range(1, 4):
        tiles, group = TILES[block - 1], _GROUPS[block - 1]
        size, to_size = (4 * tiles + 2) ** 2 * CHANNELS, 16 * tiles * tiles * CHANNELS
        for i in range(0, count, group):
            some = min(group, count - i)
            winograd.convolve(
                handed[block - 1], i * size, some, tiles, kernels[1][block - 1], raw[block], i * to_size, room
            )
            for k in range(i, i + some):
                normalise(norm, raw[block], k, block, handed[block], moments)


@njit(**KERNEL)
def _backward(values, kernels, images, start, count, memory, back, gradient):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pass the gradient of the last block's outputs back through all blocks."""
    raw, handed, moments, padded, room = memory
    to_handed, to_raw, to_first, to_taps, to_tables = back
    norm, to_norm = values[_NORM:_LINEAR], gradient[_NORM:_LINEAR]
    for block in range(3, 0, -1):
        tiles, group = TILES[block - 1], _GROUPS[block - 1]
        size, out_size = (4 * tiles + 2) ** 2 * CHANNELS, 16 * tiles * tiles * CHANNELS
        for i in range(0, count, group):
            some = min(group, count - i)
            for k in range(i, i + some):
                given, to = (to_handed[block], handed[block], raw[block]), to_raw[block][(k - i) * out_size :]
                normalise_back(norm, *given, k, block, moments, to, to_norm)
            these = (to_raw[block], handed[block - 1], i * size, some, tiles, kernels[1][block - 1])
            winograd.convolve_back(*these, to_handed[block - 1][i * size :], to_tables[block - 1], room)
    for i in range(count):
        normalise_back(norm, to_handed[0], handed[0], raw[0], i, 0, moments, to_first, to_norm)
        pad(images, start + i, padded)
        convolve_first_back(padded, to_first, to_taps)


@njit(**KERNEL)
def _head(values, features, dropout, label, count, to_features, gradient):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute dropout, linear layer and cross entropy of one of `count` images, forward and backward."""
    classes = (values.size - _LINEAR) // (FEATURES + 1)
    biases = values.size - classes
    for i in range(FEATURES):
        features[i] *= dropout[i]
        to_features[i] = float32(0)
    scores = np.empty(classes, np.float32)
    for k in range(classes):
        scores[k] = _dot(values[_LINEAR + k * FEATURES :], features) + values[biases + k]
    scores = np.exp(scores - scores.max())
    scores /= scores.sum()
    scores[label] -= float32(1)
    for k in range(classes):
        share, at = scores[k] / float32(count), _LINEAR + k * FEATURES
        gradient[biases + k] += share
        for i in range(FEATURES):
            gradient[at + i] += share * features[i]
        for i in range(FEATURES):
            to_features[i] += share * values[at + i] * dropout[i]


@njit(**KERNEL, fastmath={"reassoc", "contract"})
def _dot(a, b):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the product of b with the beginning of a. The loop only reads, so its order of addition is fixed."""
    total = float32(0)
    for i in range(b.size):
        total += a[i] * b[i]
    return total


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
