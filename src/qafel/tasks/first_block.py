"""A network's first block as one operation: 3×3 convolution of images, GroupNorm, ReLU and 2×2 max-pooling."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from qafel.tasks import first_block_kernels as kernels
from qafel.tasks.norm_pool import as_array, choose_and_normalise, is_compiled, norm_relu_pool


@final
class _FirstBlock(torch.autograd.Function):
    """torch's convolution, then our loops; on the way back our loops alone."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, shift: Tensor, gain: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        images, gain = images.contiguous(), gain.contiguous()
        x = torch.conv2d(images, weight, shift, padding=kernels.PAD).contiguous()
        batch, channels, height, width = x.shape
        planes = x.view(batch * channels, -1)
        out, *kept = choose_and_normalise(planes, width, width + kernels.PAD, gain, bias, eps)
        ctx.save_for_backward(images, weight, planes, gain, out, *kept)
        ctx.width = width
        return out.view(batch, channels, height // 2, width // 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor, Tensor, None]:
        images, weight, planes, gain, out, *kept = ctx.saved_tensors
        grad_weight, grad_gain, grad_bias = torch.zeros(weight.shape), torch.zeros_like(gain), torch.zeros_like(gain)
        kernels.backward(
            as_array(images),
            as_array(grads[0].contiguous().view(out.shape)),
            as_array(planes),
            ctx.width,
            *(as_array(tensor) for tensor in (gain, out, *kept, grad_weight, grad_gain, grad_bias)),
        )
        return None, grad_weight, torch.zeros_like(gain), grad_gain, grad_bias, None


def first_block(images: Tensor, conv: nn.Conv2d, norm: nn.GroupNorm) -> Tensor:
    """Compute maxpool₂ₓ₂(relu(norm(conv(images)))), equal to torch's operations up to rounding.

    Compiled where `norm_relu_pool` is, if nobody asks for the gradient of the images and the convolution is 3×3 with
    padding 2 and an even number of channels.
    """
    shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
    known = shape == ((3, 3), (1, 1), (2, 2), (1, 1), 1) and conv.out_channels % 2 == 0 and conv.bias is not None
    if not known or images.requires_grad or not is_compiled(images, norm, conv.out_channels):
        return norm_relu_pool(conv(images), norm)
    return _FirstBlock.apply(images, conv.weight, conv.bias, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call, no-any-return]
