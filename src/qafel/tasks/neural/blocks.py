"""The four blocks of the paper's network as one operation: each a 3×3 convolution, GroupNorm, ReLU and 2×2 max-pooling.

With one channel per group, y = γ(x − m)/σ + β is monotone in x, so the pool can choose before it normalises: the
largest x of a window where γ ≥ 0, the smallest where γ < 0. Only a quarter of the values is then normalised. On the way
back ∂x = γ/σ · (g − Σg/M − x̂ · Σ(g·x̂)/M), with g the gradient at the chosen places, x̂ the normalised values and M
their number: a multiple of x plus a constant, and something more at the chosen places. A number added to a whole
channel is taken away by the norm: the convolutions' biases have no effect, and their gradients are zero.

First the operation, for float32 on a CPU, then its compiled loops. They take a few images at a time through all blocks,
which then stay in the cache, and `LANES` channels at once. See docs/decisions/neural-fused-blocks.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numba import float32, njit
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from qafel.tasks.neural.simd import LANES, choose, fma, load, spread, store
from qafel.tasks.neural.winograd import (
    CHANNELS,
    KERNEL,
    TABLE,
    convolve,
    convolve_back,
    make_room,
    transform_kernel,
    transform_kernel_back,
)

_IMAGE = 32  # the side of an image; then 34 → 17 → 19 → 9 → 11 → 5 → 7 → 3 with a padding of 2
_FIRST = _IMAGE + 2
_PADDED = _IMAGE + 4
_TILES = (5, 3, 2)  # in a row of the outputs of blocks 2 to 4, 19, 11 and 7 wide
_SIDES = (17, 9, 5, 3)  # of what the blocks hand on
_TOGETHER = 8  # images that go through all blocks together
_GROUPS = (2, 4, 8)  # images whose tiles are multiplied together in blocks 2 to 4
_MOST_TILES = 50  # of such a group
_FEATURES = CHANNELS * _SIDES[3] * _SIDES[3]


Kept: TypeAlias = tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any], ...], NDArray[Any]]
"""What the blocks normalise, what they hand on, and means and scales: room for some images."""


def four_blocks(images: Tensor, convolutions: tuple[nn.Conv2d, ...], norm: nn.GroupNorm) -> Tensor:
    """Compute maxpool₂ₓ₂(relu(norm(conv(x)))) for each of the four convolutions; return each image's 288 features.

    Equal to torch's operations up to rounding. Compiled for float32 on a CPU, if the images' gradient is not needed.
    `images` is (batch, 3, 32, 32), each of the `convolutions` is 3×3 with 32 channels out and a padding of 2, and
    `norm` has 32 groups of one channel.
    """
    if images.device.type != "cpu" or images.dtype != torch.float32 or images.requires_grad:
        for convolution in convolutions:
            images = functional.relu(functional.max_pool2d(norm(convolution(images)), 2))
        return images.flatten(1)
    weights = [convolution.weight for convolution in convolutions]
    if not torch.is_grad_enabled():
        return _features(images, norm.weight, norm.bias, norm.eps, weights, _room_for(_TOGETHER))
    return _Blocks.apply(images, norm.weight, norm.bias, norm.eps, *weights)  # type: ignore[no-untyped-call, no-any-return]


@final
class _Blocks(torch.autograd.Function):
    """The compiled operation with its way back."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, gain: Tensor, bias: Tensor, eps: float, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(images, gain, *weights)
        ctx.kept = _room_for(len(images))
        return _features(images, gain, bias, eps, weights, ctx.kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, gain, *weights = ctx.saved_tensors
        results = [torch.zeros_like(tensor) for tensor in (gain, gain, *weights)]
        to_gain, to_bias, *to_weights = map(_flat, results)
        given = (_flat(images), tuple(map(_flat, weights)), _flat(gain))
        _backward(*given, *ctx.kept, _flat(grads[0]), tuple(to_weights), to_gain, to_bias)
        return None, results[0], results[1], None, *results[2:]


def _features(images: Tensor, gain: Tensor, bias: Tensor, eps: float, weights: Sequence[Tensor], kept: Kept) -> Tensor:
    features = torch.empty(len(images), _FEATURES)
    given = (_flat(images), tuple(map(_flat, weights)), _flat(gain), _flat(bias), np.float32(eps))
    _forward(*given, *kept, _flat(features))
    return features


def _room_for(images: int) -> Kept:
    raw = (_FIRST, *(4 * tiles for tiles in _TILES))
    handed = (*(4 * tiles + 2 for tiles in _TILES), _SIDES[3])
    sides = [tuple(np.empty(images * side * side * CHANNELS, np.float32) for side in sides) for sides in (raw, handed)]
    return sides[0], sides[1], np.empty(images * 4 * 2 * CHANNELS, np.float32)


def _flat(tensor: Tensor) -> NDArray[Any]:
    """The tensor's numbers in one row: its memory, if that is in order."""
    array: NDArray[Any] = tensor.detach().contiguous().view(-1).numpy()
    return array


@njit(**KERNEL)
def _forward(images, weights, gain, bias, eps, raw, handed, moments, features):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `features`, (image, channel, place), and what is kept of each image, or of the last few."""
    count, keeps_all = images.size // (3 * _IMAGE * _IMAGE), moments.size >= features.size // _FEATURES * 8 * CHANNELS
    room, padded = make_room(_MOST_TILES), np.zeros(3 * _PADDED * _PADDED, np.float32)
    first, tables = np.empty(27 * CHANNELS, np.float32), np.empty((3, TABLE), np.float32)
    _swap(weights[0], 0, CHANNELS, first, 0, 27)
    for block in range(1, 4):
        transform_kernel(weights[block], False, tables[block - 1])
    for start in range(0, count, _TOGETHER):
        some, at = min(_TOGETHER, count - start), start if keeps_all else 0
        for i in range(some):
            _pad(images, start + i, padded)
            _convolve_first(padded, first, raw[0], (at + i) * _FIRST * _FIRST * CHANNELS)
        _normalise(raw[0], handed[0], at, some, 0, gain, bias, eps, moments)
        for block in range(1, 4):
            tiles, group = _TILES[block - 1], _GROUPS[block - 1]
            for i in range(at, at + some, group):
                x_at, to = i * (4 * tiles + 2) ** 2 * CHANNELS, i * 16 * tiles * tiles * CHANNELS
                these = (handed[block - 1], x_at, min(group, at + some - i), tiles)
                convolve(*these, tables[block - 1], raw[block], to, room)
            _normalise(raw[block], handed[block], at, some, block, gain, bias, eps, moments)
        for i in range(some):
            _swap(handed[3], (at + i) * _FEATURES, 9, features, (start + i) * _FEATURES, CHANNELS)


@njit(**KERNEL)
def _backward(images, weights, gain, raw, handed, moments, grad, to_weights, to_gain, to_bias):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill the gradients of the weights, and add to those of the norm."""
    count, room = images.size // (3 * _IMAGE * _IMAGE), make_room(_MOST_TILES)
    to_first, padded = np.zeros(27 * CHANNELS, np.float32), np.zeros(3 * _PADDED * _PADDED, np.float32)
    tables, to_tables = np.empty((3, TABLE), np.float32), np.zeros((3, TABLE), np.float32)
    # What the blocks hand on, and what they normalise: outputs that exist for the tiles' sake only stay zero.
    to_handed = np.empty((4, _TOGETHER * (4 * _TILES[0] + 2) ** 2 * CHANNELS), np.float32)
    to_raw, to_raw_first = np.zeros((4, 25600), np.float32), np.empty(_FIRST * _FIRST * CHANNELS, np.float32)
    for block in range(1, 4):
        transform_kernel(weights[block], True, tables[block - 1])
    for start in range(0, count, _TOGETHER):
        some = min(_TOGETHER, count - start)
        for i in range(some):
            _swap(grad, (start + i) * _FEATURES, CHANNELS, to_handed[3], i * _FEATURES, 9)
        for block in range(3, 0, -1):
            tiles, group = _TILES[block - 1], _GROUPS[block - 1]
            size, out_size = (4 * tiles + 2) ** 2 * CHANNELS, 16 * tiles * tiles * CHANNELS
            for i in range(0, some, group):
                these = min(group, some - i)
                for k in range(i, i + these):
                    one = (to_handed[block], k, handed[block], raw[block], start + k, block, gain, moments)
                    _normalise_back(*one, to_raw[block][(k - i) * out_size :], to_gain, to_bias)
                given = (to_raw[block], handed[block - 1], (start + i) * size, these, tiles, tables[block - 1])
                convolve_back(*given, to_handed[block - 1][i * size :], to_tables[block - 1], room)
        for i in range(some):
            one = (to_handed[0], i, handed[0], raw[0], start + i, 0, gain, moments)
            _normalise_back(*one, to_raw_first, to_gain, to_bias)
            _pad(images, start + i, padded)
            _convolve_first_back(padded, to_raw_first, to_first)
    for block in range(1, 4):
        transform_kernel_back(to_tables[block - 1], to_weights[block])
    _swap(to_first, 0, 27, to_weights[0], 0, CHANNELS)


@njit(**KERNEL)
def _swap(a, at, rows, b, to, columns):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the transpose of a matrix of so many rows and columns."""
    for row in range(rows):
        for column in range(columns):
            b[to + column * rows + row] = a[at + row * columns + column]


@njit(**KERNEL)
def _pad(images, number, padded):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy an image into the middle of `padded`, whose border stays zero."""
    for row in range(3 * _IMAGE):
        at = (number * 3 * _IMAGE + row) * _IMAGE
        to = (row // _IMAGE * _PADDED + row % _IMAGE + 2) * _PADDED + 2
        for lane in range(0, _IMAGE, LANES):
            store(padded, to + lane, load(images, at + lane))


@njit(**KERNEL)
def _convolve_first(padded, taps, y, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The 3×3 convolution of an image of three channels: four neighbours at a time, (side, side, 32)."""
    for row in range(_FIRST):
        for block in range(0, _FIRST, 4):
            column = min(block, _FIRST - 4)
            for lane in range(0, CHANNELS, LANES):
                s0 = s1 = s2 = s3 = spread(float32(0))
                for line in range(9):
                    at = (line // 3 * _PADDED + row + line % 3) * _PADDED + column
                    for k in range(3):
                        w, i = load(taps, (3 * line + k) * CHANNELS + lane), at + k
                        s0 = fma(spread(padded[i]), w, s0)
                        s1 = fma(spread(padded[i + 1]), w, s1)
                        s2 = fma(spread(padded[i + 2]), w, s2)
                        s3 = fma(spread(padded[i + 3]), w, s3)
                where = to + (row * _FIRST + column) * CHANNELS + lane
                store(y, where, s0)
                store(y, where + CHANNELS, s1)
                store(y, where + 2 * CHANNELS, s2)
                store(y, where + 3 * CHANNELS, s3)


@njit(**KERNEL)
def _convolve_first_back(padded, dy, to_taps):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add an image's part to the gradient of the first convolution's weights, three taps at a time."""
    for row in range(_FIRST):
        for line in range(9):
            at = (line // 3 * _PADDED + row + line % 3) * _PADDED
            for lane in range(0, CHANNELS, LANES):
                to = 3 * line * CHANNELS + lane
                s0, s1, s2 = load(to_taps, to), load(to_taps, to + CHANNELS), load(to_taps, to + 2 * CHANNELS)
                for i in range(_FIRST):
                    g = load(dy, (row * _FIRST + i) * CHANNELS + lane)
                    s0 = fma(spread(padded[at + i]), g, s0)
                    s1 = fma(spread(padded[at + i + 1]), g, s1)
                    s2 = fma(spread(padded[at + i + 2]), g, s2)
                store(to_taps, to, s0)
                store(to_taps, to + CHANNELS, s1)
                store(to_taps, to + 2 * CHANNELS, s2)


@njit(**KERNEL)
def _shape(block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """How wide a block's outputs are, how wide their rows lie in memory; where its pooled image lies, and its rows."""
    width = 4 * _TILES[block - 1] if block else _FIRST
    to_width, border = (4 * _TILES[block] + 2, 2) if block < 3 else (_SIDES[3], 0)
    return _SIDES[block - 1] + 2 if block else _FIRST, width, to_width, border


@njit(**KERNEL)
def _normalise(y, x, first, count, block, gain, bias, eps, moments):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Normalise, rectify and halve so many images of y into the middle of those of x; keep means and scales."""
    side, width, to_width, border = _shape(block)
    zero = spread(float32(0))
    for i in range(first, first + count):
        at, to, kept = i * width * width * CHANNELS, i * to_width * to_width * CHANNELS, (4 * i + block) * 2 * CHANNELS
        _moments(y, at, side, width, eps, moments, kept)
        if border:
            for k in range(to, to + to_width * to_width * CHANNELS, LANES):
                store(x, k, zero)
        for lane in range(0, CHANNELS, LANES):
            b, mean, factor = load(bias, lane), load(moments, kept + lane), load(moments, kept + CHANNELS + lane)
            g = load(gain, lane)
            sign, factor = choose(zero, g, spread(float32(-1)), spread(float32(1))), factor * g
            for row in range(side // 2):
                top = at + 2 * row * width * CHANNELS + lane
                out = to + ((row + border) * to_width + border) * CHANNELS + lane
                for column in range(side // 2):
                    best = _largest(y, top + 2 * column * CHANNELS, width * CHANNELS, sign)[0]
                    value = fma(sign * best - mean, factor, b)
                    # Not the larger of the two: a NaN passes, as it does through torch's ReLU.
                    store(x, out + column * CHANNELS, choose(zero, value, zero, value))


@njit(**KERNEL)
def _largest(y, at, below, sign):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The largest of a window's four values times `sign`, after four, three and two of them; and the four."""
    a, b = sign * load(y, at), sign * load(y, at + CHANNELS)
    c, d = sign * load(y, at + below), sign * load(y, at + below + CHANNELS)
    two = choose(b, a, b, a)
    three = choose(c, two, c, two)
    return choose(d, three, d, three), three, two, a, b, c, d


@njit(**KERNEL)
def _moments(y, at, side, width, eps, moments, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Each channel's mean and 1/σ, in two passes: no cancellation."""
    size = float32(side * side)
    for lane in range(0, CHANNELS, LANES):
        even, odd = spread(float32(0)), spread(float32(0))
        for row in range(side):
            start = at + row * width * CHANNELS + lane
            for i in range(start, start + side // 2 * 2 * CHANNELS, 2 * CHANNELS):
                even, odd = even + load(y, i), odd + load(y, i + CHANNELS)
            if side % 2:
                even = even + load(y, start + (side - 1) * CHANNELS)
        mean = (even + odd) * spread(float32(1) / size)
        store(moments, to + lane, mean)
        even, odd = spread(float32(0)), spread(float32(0))
        for row in range(side):
            start = at + row * width * CHANNELS + lane
            for i in range(start, start + side // 2 * 2 * CHANNELS, 2 * CHANNELS):
                p, q = load(y, i) - mean, load(y, i + CHANNELS) - mean
                even, odd = fma(p, p, even), fma(q, q, odd)
            if side % 2:
                p = load(y, start + (side - 1) * CHANNELS) - mean
                even = fma(p, p, even)
        store(moments, to + CHANNELS + lane, even + odd)
    for channel in range(to + CHANNELS, to + 2 * CHANNELS):
        moments[channel] = float32(1) / np.sqrt(moments[channel] / size + eps)


@njit(**KERNEL)
def _normalise_back(grad, number, x, y, image, block, gain, moments, dy, to_gain, to_bias):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `dy` with the gradient of the `image` of y, from that of its pooled image x; add to the norm's gradients."""
    side, width, to_width, border = _shape(block)
    corner = (border * to_width + border) * CHANNELS
    size, below = to_width * to_width * CHANNELS, width * CHANNELS
    at, to, kept = image * width * below, image * size + corner, (4 * image + block) * 2 * CHANNELS
    start, zero = number * size + corner, spread(float32(0))
    for lane in range(0, CHANNELS, LANES):
        g, mean, scale = load(gain, lane), load(moments, kept + lane), load(moments, kept + CHANNELS + lane)
        sign = choose(zero, g, spread(float32(-1)), spread(float32(1)))
        sum_g, sum_gx = zero, zero
        for row in range(side // 2):
            for column in range(side // 2):
                k = (row * to_width + column) * CHANNELS + lane
                live = choose(load(x, to + k), zero, load(grad, start + k), zero)
                best = _largest(y, at + 2 * row * below + 2 * column * CHANNELS + lane, below, sign)[0]
                sum_g, sum_gx = sum_g + live, fma(live, (sign * best - mean) * scale, sum_gx)
        store(to_bias, lane, load(to_bias, lane) + sum_g)
        store(to_gain, lane, load(to_gain, lane) + sum_gx)
        factor, share = g * scale, spread(float32(-1) / float32(side * side))
        slope = factor * scale * sum_gx * share
        level = factor * sum_g * share - slope * mean
        for row in range(side // 2):
            for column in range(side // 2):
                k = (row * to_width + column) * CHANNELS + lane
                more = factor * choose(load(x, to + k), zero, load(grad, start + k), zero)
                i = 2 * row * below + 2 * column * CHANNELS + lane
                _, three, two, a, b, c, d = _largest(y, at + i, below, sign)
                # The first of equals, as in torch.
                not_d = choose(d, three, zero, more)
                not_c = choose(c, two, zero, not_d)
                signed = slope * sign
                store(dy, i, fma(a, signed, level) + choose(b, a, zero, not_c))
                store(dy, i + CHANNELS, fma(b, signed, level) + choose(b, a, not_c, zero))
                store(dy, i + below, fma(c, signed, level) + choose(c, two, not_d, zero))
                store(dy, i + below + CHANNELS, fma(d, signed, level) + choose(d, three, more, zero))
        if side % 2:
            for k in range(side):
                i, j = (side - 1) * below + k * CHANNELS + lane, k * below + (side - 1) * CHANNELS + lane
                store(dy, i, fma(load(y, at + i), slope, level))
                store(dy, j, fma(load(y, at + j), slope, level))
