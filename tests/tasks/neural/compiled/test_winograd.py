"""Winograd's convolutions compute what torch's do, forwards and backwards."""

import numpy as np
import pytest
import torch

from qafel.tasks.neural.compiled.winograd import (
    CHANNELS,
    TABLE,
    convolve,
    convolve_back,
    make_room,
    transform_kernel,
    transform_kernel_back,
)


def table_of(weight, backwards):
    table = np.zeros(TABLE, np.float32)
    transform_kernel(weight.ravel(), backwards, table)
    return table


def close(found, exact, times):
    """Within float32's rounding, as torch's own convolution is, times the few that Winograd's transforms cost."""
    deviation = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert deviation < times * 2**-24, deviation / 2**-24


@pytest.mark.parametrize(
    ("side", "tiles", "count"), [(17, 5, 1), (17, 5, 2), (9, 3, 1), (9, 3, 4), (5, 2, 1), (5, 2, 8)]
)
def test_outputs_and_gradients_equal_those_of_torch_in_double_precision(side, tiles, count):
    generator, padded, width = np.random.default_rng(side + count), 4 * tiles + 2, 4 * tiles
    weight = generator.standard_normal((CHANNELS, CHANNELS, 3, 3), np.float32) / 10
    x = np.zeros((count, padded, padded, CHANNELS), np.float32)
    inside, outputs = slice(2, 2 + side), slice(0, side + 2)
    x[:, inside, inside] = generator.standard_normal((count, side, side, CHANNELS))
    dy = np.zeros((count, width, width, CHANNELS), np.float32)
    dy[:, outputs, outputs] = generator.standard_normal((count, side + 2, side + 2, CHANNELS))

    images = torch.from_numpy(x[:, inside, inside].transpose(0, 3, 1, 2).astype(np.float64)).requires_grad_()
    kernel = torch.from_numpy(weight.astype(np.float64)).requires_grad_()
    expected = torch.conv2d(images, kernel, padding=2)
    expected.backward(torch.from_numpy(dy[:, outputs, outputs].transpose(0, 3, 1, 2).astype(np.float64)))

    y, room = np.empty_like(dy), make_room(count * tiles * tiles)
    convolve(x.ravel(), 0, count, tiles, table_of(weight, False), y.reshape(-1), 0, room)
    close(y[:, outputs, outputs].transpose(0, 3, 1, 2), expected.detach().numpy(), 40)
    dx, to_table, to_weight = np.empty_like(x), np.zeros(TABLE, np.float32), np.empty_like(weight)
    back = (dy.ravel(), x.ravel(), 0, count, tiles, table_of(weight, True))
    convolve_back(*back, dx.reshape(-1), to_table, room)
    transform_kernel_back(to_table, to_weight.reshape(-1))
    close(dx[:, inside, inside].transpose(0, 3, 1, 2), images.grad.numpy(), 40)
    close(to_weight, kernel.grad.numpy(), 40)


def test_the_gradient_of_the_kernel_adds_up_over_calls():
    generator = np.random.default_rng(1)
    x, dy = generator.standard_normal(10 * 10 * 32, np.float32), generator.standard_normal(8 * 8 * 32, np.float32)
    table, once, twice = np.zeros(TABLE, np.float32), np.zeros(TABLE, np.float32), np.zeros(TABLE, np.float32)
    for to_table, calls in ((once, 1), (twice, 2)):
        for _ in range(calls):
            convolve_back(dy, x, 0, 1, 2, table, np.empty_like(x), to_table, make_room(4))
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5, atol=1e-3)
    assert np.abs(once).max() > 1


def test_many_images_together_give_the_bits_of_each_alone():
    generator = np.random.default_rng(2)
    x, table = generator.standard_normal((3, 22 * 22 * 32), np.float32), np.empty(TABLE, np.float32)
    transform_kernel(generator.standard_normal(9 * 32 * 32, np.float32), False, table)
    together, alone = np.empty((3, 20 * 20 * 32), np.float32), np.empty(20 * 20 * 32, np.float32)
    convolve(x.ravel(), 0, 3, 5, table, together.reshape(-1), 0, make_room(75))
    for image, expected in zip(x, together, strict=True):
        convolve(image, 0, 1, 5, table, alone, 0, make_room(25))
        np.testing.assert_array_equal(alone, expected)
