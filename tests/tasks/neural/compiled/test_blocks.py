"""The parts of the network's blocks compute what torch's operations compute."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from qafel.tasks.neural.compiled.cnn import (
    FIRST,
    SIDES,
    TILES,
    convolve_first,
    convolve_first_back,
    normalise,
    normalise_back,
    pad,
)
from qafel.tasks.neural.compiled.winograd import CHANNELS

BLOCKS = [(0, FIRST, FIRST), *((block, SIDES[block - 1] + 2, 4 * TILES[block - 1]) for block in (1, 2, 3))]
"""Each block's number, the side of its outputs, and how wide they lie in memory."""


def run_ours(block, side, width, y, norm, grad):
    """Pool image 1 of two: the pooled image, the gradients of y, γ and β."""
    half, (padded, border) = side // 2, ((4 * TILES[block] + 2, 2) if block < 3 else (SIDES[3], 0))
    inside = slice(border, border + half)
    grids = [np.full((2, width, width, CHANNELS), 99, np.float32), np.zeros((2, padded, padded, CHANNELS), np.float32)]
    grids[0][1, :side, :side] = y.transpose(1, 2, 0)
    grids[1][1, inside, inside] = grad.transpose(1, 2, 0)
    x, dy = np.full((2, padded, padded, CHANNELS), 99, np.float32), np.zeros((width, width, CHANNELS), np.float32)
    moments, to_norm = np.empty(2 * 8 * CHANNELS, np.float32), np.zeros(2 * CHANNELS, np.float32)
    normalise(norm, grids[0].reshape(-1), 1, block, x.reshape(-1), moments)
    assert border == 0 or not x[1, :border].any()
    rest = (x.reshape(-1), grids[0].reshape(-1), 1, block, moments, dy.reshape(-1), to_norm)
    normalise_back(norm, grids[1].reshape(-1), *rest)
    assert not dy[side:].any()
    assert not dy[:, side:].any()
    return x[1, inside, inside].transpose(2, 0, 1), dy[:side, :side].transpose(2, 0, 1), *to_norm.reshape(2, CHANNELS)


def run_torch(y, norm, grad):
    y, gain, bias = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (y, *norm.reshape(2, CHANNELS)))
    out = functional.max_pool2d(functional.relu(functional.group_norm(y[None], CHANNELS, gain, bias)), 2)[0]
    out.backward(torch.from_numpy(grad).double())
    return [tensor.detach().numpy() for tensor in (out, y.grad, gain.grad, bias.grad)]


@pytest.mark.parametrize(("block", "side", "width"), BLOCKS)
def test_outputs_and_all_gradients_equal_those_of_torch(block, side, width):
    generator = np.random.default_rng(block)
    y = generator.standard_normal((CHANNELS, side, side), np.float32) * 3 + 1
    norm = generator.standard_normal(2 * CHANNELS, np.float32)  # gains of both signs
    grad = generator.standard_normal((CHANNELS, side // 2, side // 2), np.float32)
    given = (y, norm, grad)
    for ours, expected in zip(run_ours(block, side, width, *given), run_torch(*given), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5 * max(1, np.abs(expected).max()))


def test_the_first_of_equal_values_takes_the_gradient_as_in_torch():
    generator = np.random.default_rng(3)
    y = generator.integers(0, 2, (CHANNELS, 7, 7)).astype(np.float32)
    norm = np.concatenate([np.tile([1, -1], CHANNELS // 2), np.full(CHANNELS, 3)]).astype(np.float32)
    grad = generator.standard_normal((CHANNELS, 3, 3), np.float32)
    for ours, expected in zip(run_ours(3, 7, 8, y, norm, grad), run_torch(y, norm, grad), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_a_nan_is_passed_on():
    y = np.random.default_rng(4).standard_normal((CHANNELS, 7, 7), np.float32)
    y[5, 6, 6] = np.nan
    norm = np.repeat(np.float32([1, 0]), CHANNELS)
    out = run_ours(3, 7, 8, y, norm, np.zeros((CHANNELS, 3, 3), np.float32))[0]
    assert np.isnan(out[5]).all()
    assert not np.isnan(np.delete(out, 5, axis=0)).any()


def test_the_first_convolution_and_the_gradient_of_its_weights_equal_torchs():
    generator = np.random.default_rng(5)
    images = generator.standard_normal((2, 3, 32, 32), np.float32)
    weight = generator.standard_normal((CHANNELS, 3, 3, 3), np.float32)
    dy = generator.standard_normal((FIRST, FIRST, CHANNELS), np.float32)
    kernel = torch.tensor(weight, dtype=torch.float64, requires_grad=True)
    expected = torch.conv2d(torch.from_numpy(images[1:]).double(), kernel, padding=2)
    expected.backward(torch.from_numpy(dy.transpose(2, 0, 1)[None]).double())

    padded, y, to_taps = np.zeros(3 * 36 * 36, np.float32), np.empty(dy.size + 5, np.float32), np.zeros(864, np.float32)
    pad(images.reshape(-1), 1, padded)
    convolve_first(padded, np.ascontiguousarray(weight.reshape(CHANNELS, 27).T).reshape(-1), y, 5)
    convolve_first_back(padded, dy.reshape(-1), to_taps)
    found = y[5:].reshape(dy.shape).transpose(2, 0, 1)
    np.testing.assert_allclose(found, expected[0].detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(
        to_taps.reshape(27, 32).T.reshape(weight.shape), kernel.grad.numpy(), rtol=1e-4, atol=1e-3
    )
