"""The fused operations compute what torch's operations compute."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from qafel.tasks.neural.blocks import first_block, norm_relu_pool


def plain(x, norm):
    return functional.max_pool2d(functional.relu(norm(x)), 2)


def run(operation, x, norm, grad):
    x = x.clone().requires_grad_()
    norm.zero_grad()
    y = operation(x, norm)
    y.backward(grad)
    return [tensor.detach().numpy().copy() for tensor in (y, x.grad, norm.weight.grad, norm.bias.grad)]


def random_norm(channels, generator):
    norm = nn.GroupNorm(channels, channels)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(channels, generator=generator))
        norm.bias.copy_(torch.randn(channels, generator=generator))
    return norm


@pytest.mark.parametrize("shape", [(4, 32, 34, 34), (3, 32, 19, 19), (2, 32, 7, 7), (1, 5, 2, 3), (2, 1, 9, 4)])
def test_outputs_and_all_gradients_equal_those_of_torch(shape):
    generator = torch.Generator().manual_seed(1)
    norm = random_norm(shape[1], generator)
    x = torch.randn(shape, generator=generator) * 3 + 1
    grad = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2, generator=generator)
    for fused, expected in zip(run(norm_relu_pool, x, norm, grad), run(plain, x, norm, grad), strict=True):
        np.testing.assert_allclose(fused, expected, rtol=1e-4, atol=1e-5 * max(1, np.abs(expected).max()))


def test_the_first_of_equal_values_takes_the_gradient_as_in_torch():
    norm = random_norm(2, torch.Generator().manual_seed(2))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -1.0]))
        norm.bias.fill_(3)
    x = torch.zeros(1, 2, 6, 6)
    x[:, :, 2:, 2:] = torch.randint(0, 2, (1, 2, 4, 4), generator=torch.Generator().manual_seed(3)).float()
    grad = torch.arange(1.0, 19).view(1, 2, 3, 3)
    for fused, expected in zip(run(norm_relu_pool, x, norm, grad), run(plain, x, norm, grad), strict=True):
        np.testing.assert_allclose(fused, expected, atol=1e-5)


def test_a_gradient_that_is_not_contiguous_is_read_rightly():
    norm = random_norm(3, torch.Generator().manual_seed(4))
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    grad = torch.randn(2, 4, 4, 3, generator=torch.Generator().manual_seed(6)).permute(0, 3, 1, 2)
    for fused, expected in zip(run(norm_relu_pool, x, norm, grad), run(plain, x, norm, grad), strict=True):
        np.testing.assert_allclose(fused, expected, rtol=1e-4, atol=1e-5)


def test_a_nan_is_passed_on():
    x = torch.randn(1, 2, 4, 4)
    x[0, 1, 3, 3] = float("nan")
    y = norm_relu_pool(x, nn.GroupNorm(2, 2))
    assert not y[0, 0].isnan().any()
    assert y[0, 1].isnan().all()


@pytest.mark.parametrize(("groups", "dtype"), [(2, torch.float32), (4, torch.float64)])
def test_other_norms_and_types_are_left_to_torch(groups, dtype):
    norm = nn.GroupNorm(groups, 4).to(dtype)
    x = torch.randn(2, 4, 6, 6, dtype=dtype)
    torch.testing.assert_close(norm_relu_pool(x, norm), plain(x, norm))


@pytest.mark.parametrize(("batch", "colours", "channels", "side"), [(5, 3, 32, 32), (1, 1, 2, 5), (3, 4, 6, 8)])
def test_the_first_block_equals_torchs_operations_with_all_gradients(batch, colours, channels, side):
    generator = torch.Generator().manual_seed(7)
    conv, norm = nn.Conv2d(colours, channels, 3, padding=2), random_norm(channels, generator)
    # The bias before a norm has no effect, so its gradient is rounding alone; it is measured against the others.
    images = torch.randn(batch, colours, side, side, generator=generator)
    images[0, :, :4] = 0  # equal values to choose from
    found = []
    for operation in (first_block, lambda images, conv, norm: plain(conv(images), norm)):
        conv.zero_grad()
        norm.zero_grad()
        y = operation(images, conv, norm)
        y.backward(torch.linspace(-1, 2, y.numel()).view(y.shape))
        grads = [parameter.grad.clone() for parameter in (*conv.parameters(), *norm.parameters())]
        found.append([tensor.detach().numpy() for tensor in (y, *grads)])
    largest = max(np.abs(grad).max() for grad in found[1])
    for fused, expected in zip(*found, strict=True):
        np.testing.assert_allclose(fused, expected, rtol=1e-4, atol=1e-5 * largest)


def test_images_that_want_a_gradient_get_it_from_torch():
    conv, norm = nn.Conv2d(3, 4, 3, padding=2), nn.GroupNorm(4, 4)
    images = torch.randn(2, 3, 6, 6, requires_grad=True)
    first_block(images, conv, norm).sum().backward()
    assert images.grad.abs().sum() > 0


@pytest.mark.parametrize("conv", [nn.Conv2d(3, 5, 3, padding=2), nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, 2, 2)])
def test_other_convolutions_are_left_to_torch(conv):
    norm, images = nn.GroupNorm(conv.out_channels, conv.out_channels), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(first_block(images, conv, norm), plain(conv(images), norm), rtol=1e-4, atol=1e-5)
