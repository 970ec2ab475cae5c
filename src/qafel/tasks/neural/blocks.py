"""GroupNorm with a group per channel, ReLU and 2×2 max-pooling as one operation; and a network's first block.

With one channel per group, y = γ(x − m)/σ + β is monotone in x, so the pool can choose before it normalises: the
largest x of a window where γ ≥ 0, the smallest where γ < 0. Only a quarter of the values is then normalised, and the
backward pass is one multiply-add for each input. See docs/decisions/neural-fused-blocks.md.

First the operations, for float32 on a CPU, then their compiled loops. The inner loops are written so that they
vectorise: unsigned indices (no test for negative ones), few arrays each, and reductions that may be reassociated. On
one machine the order of a sum is fixed, and so is the result. A plane is a row of a matrix, because a slice or a
reshape in a compiled loop costs as much as a small plane.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numba import float32, int32, njit, uintp
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

_KERNEL: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}
_PAD = 2
_ONE, _TWO = np.uintp(1), np.uintp(2)


@final
class _NormReluPool(torch.autograd.Function):
    """The compiled operation, for float32 on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        x, gain = x.contiguous(), gain.contiguous()
        batch, channels, height, width = x.shape
        out, *kept = _choose_and_normalise(x.view(batch * channels, -1), width, width, gain, bias, eps)
        ctx.save_for_backward(x, gain, out, *kept)
        return out.view(batch, channels, height // 2, width // 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, gain, out, *kept = ctx.saved_tensors
        grad_x, grad_gain, grad_bias = torch.empty_like(x), torch.zeros_like(gain), torch.zeros_like(gain)
        given = (grads[0].contiguous().view(out.shape), x.view(len(out), -1), gain, out, *kept)
        _pool_backward(*map(_as_array, (*given, grad_x.view(len(out), -1), grad_gain, grad_bias)))
        return grad_x, grad_gain, grad_bias, None


def _choose_and_normalise(
    planes: Tensor, width: int, stride: int, gain: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run the forward loops on a matrix of planes: the output, and what the backward loops need."""
    pooled = (len(planes), (planes.shape[1] // width // 2) * (width // 2))
    out, best, places = planes.new_empty(pooled), planes.new_empty(pooled), torch.empty(pooled, dtype=torch.int32)
    mean, scale = planes.new_empty(len(planes)), planes.new_empty(len(planes))
    results = (out, best, places, mean, scale)
    norm = (_as_array(gain), _as_array(bias), np.float32(eps))
    _pool_forward(_as_array(planes), width, stride, *norm, *map(_as_array, results))
    return results


def _as_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as an array."""
    array: NDArray[Any] = tensor.detach().numpy()
    return array


def _is_compiled(x: Tensor, norm: nn.GroupNorm, channels: int) -> bool:
    """Whether our loops can do it: float32 on a CPU, a group per channel, with gain and bias."""
    known = norm.affine and norm.num_groups == norm.num_channels == channels
    return known and x.device.type == "cpu" and x.dtype == torch.float32


def norm_relu_pool(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Normalise, rectify and halve: maxpool₂ₓ₂(relu(norm(x))), equal to torch's three operations up to rounding.

    Compiled for float32 on a CPU with a group per channel; torch's own operations do the rest, with the pool before the
    ReLU: the result is equal and a quarter of the values is left to rectify.
    """
    if not _is_compiled(x, norm, x.shape[1]):
        return functional.relu(functional.max_pool2d(norm(x), 2))
    return _NormReluPool.apply(x, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call, no-any-return]


@final
class _FirstBlock(torch.autograd.Function):
    """torch's convolution, then our loops; on the way back our loops alone."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, shift: Tensor, gain: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        images, gain = images.contiguous(), gain.contiguous()
        x = torch.conv2d(images, weight, shift, padding=_PAD).contiguous()
        batch, channels, height, width = x.shape
        planes = x.view(batch * channels, -1)
        out, *kept = _choose_and_normalise(planes, width, width + _PAD, gain, bias, eps)
        ctx.save_for_backward(images, weight, planes, gain, out, *kept)
        ctx.width = width
        return out.view(batch, channels, height // 2, width // 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor, Tensor, None]:
        images, weight, planes, gain, out, *kept = ctx.saved_tensors
        grad_weight, grad_gain, grad_bias = torch.zeros(weight.shape), torch.zeros_like(gain), torch.zeros_like(gain)
        given = map(_as_array, (images, grads[0].contiguous().view(out.shape), planes))
        rest = map(_as_array, (gain, out, *kept, grad_weight, grad_gain, grad_bias))
        _first_block_backward(*given, ctx.width, *rest)
        return None, grad_weight, torch.zeros_like(gain), grad_gain, grad_bias, None


def first_block(images: Tensor, conv: nn.Conv2d, norm: nn.GroupNorm) -> Tensor:
    """Compute maxpool₂ₓ₂(relu(norm(conv(images)))), equal to torch's operations up to rounding.

    Compiled where `norm_relu_pool` is, if the gradient of the images is not needed and the convolution is 3×3 with
    padding 2 and an even number of channels.
    """
    shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
    known = shape == ((3, 3), (1, 1), (2, 2), (1, 1), 1) and conv.out_channels % 2 == 0 and conv.bias is not None
    if not known or images.requires_grad or not _is_compiled(images, norm, conv.out_channels):
        return norm_relu_pool(conv(images), norm)
    return _FirstBlock.apply(images, conv.weight, conv.bias, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call, no-any-return]


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
def _choose(plane, row, width, stride, sign, columns, best, place):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One row of windows: the largest of sign·x, and where it lies in the plane; the first of equals, as in torch."""
    upper, lower, start = uintp(2 * row * width), uintp((2 * row + 1) * width), uintp(row * columns)
    above, below = int32(2 * row * stride), int32((2 * row + 1) * stride)
    for signed in range(columns):
        j = uintp(signed)
        a, b = sign * plane[upper + _TWO * j], sign * plane[upper + _TWO * j + _ONE]
        c, d = sign * plane[lower + _TWO * j], sign * plane[lower + _TWO * j + _ONE]
        right, lower_right = b > a, d > c
        a = b if right else a
        c = d if lower_right else c
        down = c > a
        best[start + j] = c if down else a
        place[start + j] = (below + int32(lower_right) if down else above + int32(right)) + int32(2) * int32(signed)


@njit(**_KERNEL)
def _pool_forward(x, width, stride, gain, bias, eps, out, best, places, mean, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `out`; keep for the backward pass each window's choice and its place, and each plane's m and 1/σ.

    x is (planes, height · width), plane p belongs to channel p mod channels; out, best and places are
    (planes, windows). A place counts as if rows were `stride` numbers long.
    """
    planes, size = x.shape
    rows, columns = size // width // 2, width // 2
    for p in range(planes):
        plane, y, chosen, place = x[p], out[p], best[p], places[p]
        g, b = gain[p % gain.size], bias[p % gain.size]
        sign = float32(-1) if g < 0 else float32(1)
        m, r = _moments(plane, eps)
        mean[p] = m
        scale[p] = r
        for row in range(rows):
            _choose(plane, row, width, stride, sign, columns, chosen, place)
        for i in range(y.size):
            value = (sign * chosen[i] - m) * r * g + b
            y[i] = float32(0) if value <= 0 else value  # a NaN passes, as it does through torch's ReLU


@njit(**_KERNEL)
def _gradient_sums(grad, out, best, sign, mean, scale, live):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `live` with the gradient where the ReLU is open; return Σg and Σ(g·x̂), the gradients of β and γ."""
    for i in range(live.size):
        live[i] = grad[i] if out[i] > 0 else float32(0)
    # Not in the loop that writes: compiled for AVX-512, that one added in another order in one process of ten.
    sum_g, sum_gx = float32(0), float32(0)
    for i in range(live.size):
        sum_g += live[i]
        sum_gx += live[i] * ((sign * best[i] - mean) * scale)
    return sum_g, sum_gx


@njit(**_KERNEL)
def _spread(plane, width, stride, places, live, factor, slope, level, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One plane's gradient: a multiple of x plus a constant, and something more at the chosen places."""
    for row in range(plane.size // width):
        start, to_start = uintp(row * width), uintp(row * stride)
        for signed in range(width):
            j = uintp(signed)
            to[to_start + j] = plane[start + j] * slope + level
    for i in range(live.size):
        to[uintp(places[i])] += factor * live[i]


@njit(**_KERNEL)
def _plane_backward(grad, x, gain, out, best, places, mean, scale, width, stride, live, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `to` with one plane's gradient; return the gradients of β and γ.

    With g the gradient at the chosen places, x̂ the normalised values and M the plane's size:
    ∂x = γ/σ · (g − Σg/M − x̂ · Σ(g·x̂)/M), a multiple of x plus a constant, and something more at the chosen places.
    """
    sign = float32(-1) if gain < 0 else float32(1)
    sum_g, sum_gx = _gradient_sums(grad, out, best, sign, mean, scale, live)
    factor = gain * scale
    slope = -factor * scale * sum_gx / float32(x.size)
    level = -factor * sum_g / float32(x.size) - slope * mean
    _spread(x, width, stride, places, live, factor, slope, level, to)
    return sum_g, sum_gx


@njit(**_KERNEL)
def _pool_backward(grad, x, gain, out, best, places, mean, scale, grad_x, grad_gain, grad_bias):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `grad_x`, and add to `grad_gain` and `grad_bias`."""
    planes, size = x.shape
    live = np.empty(grad.shape[1], np.float32)
    for p in range(planes):
        c = p % gain.size
        plane = (grad[p], x[p], gain[c], out[p], best[p], places[p], mean[p], scale[p])
        sum_g, sum_gx = _plane_backward(*plane, size, size, live, grad_x[p])
        grad_bias[c] += sum_g
        grad_gain[c] += sum_gx


@njit(**_KERNEL)
def _pad(image, padded):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy the image into the middle of `padded`, whose border stays zero."""
    channels, height, width = image.shape
    for channel in range(channels):
        for y in range(height):
            start = (y + _PAD) * (width + 2 * _PAD) + _PAD
            for x in range(width):
                padded[channel, start + x] = image[channel, y, x]


@njit(**_KERNEL)
def _correlate(padded, offset, first, second, grad_first, grad_second):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the products of two planes with the image under three taps in a row."""
    a = b = c = d = e = f = float32(0)
    left, middle, right = uintp(offset), uintp(offset + 1), uintp(offset + 2)
    for signed in range(first.size):
        j = uintp(signed)
        p, q, r = padded[j + left], padded[j + middle], padded[j + right]
        g, h = first[j], second[j]
        a += g * p
        b += g * q
        c += g * r
        d += h * p
        e += h * q
        f += h * r
    grad_first[0] += a
    grad_first[1] += b
    grad_first[2] += c
    grad_second[0] += d
    grad_second[1] += e
    grad_second[2] += f


@njit(**_KERNEL)
def _first_block_backward(  # type: ignore[no-untyped-def]  # pragma: no cover
    images, grad, x, width, gain, out, best, places, mean, scale, grad_weight, grad_gain, grad_bias
):
    """Add to the gradients of the norm and of the weights of a 3×3 convolution with padding 2.

    images is (batch, channels, side, side); x, out and the others are planes as in `_pool_forward`, an even number for
    each image, with places for `stride`; grad_weight is (planes of an image, channels, 3, 3). A number added to all of
    a plane is taken away by the norm, so the gradient of the convolution's bias is zero.

    The gradient of the images is not needed, so that of the convolution's output is needed for the weights only: two
    planes of it are made in the nearest cache, multiplied with the image under each of the nine taps, and never written
    to memory. Image and planes have rows of `stride` = width + 2 numbers, so that a tap is a shift of the whole plane
    and the products run through one long loop; the two numbers between a plane's rows are zero.
    """
    planes, size = x.shape
    height, stride = size // width, width + _PAD
    padded = np.zeros((images.shape[1], (height + _PAD) * stride), np.float32)
    pair = np.zeros((2, height * stride - _PAD), np.float32)
    live = np.empty(grad.shape[1], np.float32)
    for p in range(0, planes, 2):
        c = p % gain.size
        if c == 0:
            _pad(images[p // gain.size], padded)
        for k in range(2):
            q = p + k
            plane = (grad[q], x[q], gain[c + k], out[q], best[q], places[q], mean[q], scale[q])
            sum_g, sum_gx = _plane_backward(*plane, width, stride, live, pair[k])
            grad_bias[c + k] += sum_g
            grad_gain[c + k] += sum_gx
        for channel in range(images.shape[1]):
            for row in range(3):
                to_first, to_second = grad_weight[c, channel, row], grad_weight[c + 1, channel, row]
                _correlate(padded[channel], row * stride, pair[0], pair[1], to_first, to_second)
