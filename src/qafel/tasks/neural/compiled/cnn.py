"""The paper's convolutional network in compiled loops: its features, and the gradient of its loss without autograd.

A few images at a time pass through all blocks, forward and backward, so that they stay in the cache. The model is one
flat vector in the order of the network's parameters. docs/decisions/neural.md gives the reasons.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit
from numpy.typing import NDArray

from qafel.compiled import KERNEL
from qafel.tasks.neural.compiled.blocks import (
    FIRST,
    PADDED,
    SIDES,
    TILES,
    convolve_first,
    convolve_first_back,
    normalise,
    normalise_back,
    pad,
    transpose,
)
from qafel.tasks.neural.compiled.winograd import (
    CHANNELS,
    TABLE,
    convolve,
    convolve_back,
    make_room,
    transform_kernel,
    transform_kernel_back,
)

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
        transform_kernel_back(back[4][block - 1], gradient[_WEIGHTS[block] :])
    transpose(to_taps, 0, _TAPS, gradient, 0, CHANNELS)


@njit(**KERNEL)
def _make_kernels(values, backwards):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the first convolution's weights, (tap, channel), and U of the others."""
    taps, tables = np.empty(_TAPS * CHANNELS, np.float32), np.empty((3, TABLE), np.float32)
    transpose(values, 0, CHANNELS, taps, 0, _TAPS)
    for block in range(1, 4):
        transform_kernel(values[_WEIGHTS[block] :], backwards, tables[block - 1])
    return taps, tables


@njit(**KERNEL)
def _make_memory():  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return memory for a few images: inputs of the norms, outputs of the blocks, moments, a padded image, room."""
    raw = np.empty((4, _TOGETHER * FIRST * FIRST * CHANNELS), np.float32)
    handed = np.empty((4, _TOGETHER * (4 * TILES[0] + 2) ** 2 * CHANNELS), np.float32)
    moments, padded = np.empty(_TOGETHER * 8 * CHANNELS, np.float32), np.zeros(3 * PADDED * PADDED, np.float32)
    return raw, handed, moments, padded, make_room(_MOST_TILES)


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
            convolve(handed[block - 1], i * size, some, tiles, kernels[1][block - 1], raw[block], i * to_size, room)
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
            convolve_back(*these, to_handed[block - 1][i * size :], to_tables[block - 1], room)
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
