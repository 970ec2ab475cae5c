"""GroupNorm with a group per channel, ReLU and 2×2 max-pooling as one operation."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from qafel.tasks import norm_pool_kernels as kernels


@final
class _NormReluPool(torch.autograd.Function):
    """The compiled operation, for float32 on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        x, gain = x.contiguous(), gain.contiguous()
        batch, channels, height, width = x.shape
        planes, pooled = batch * channels, (batch * channels, height // 2, width // 2)
        out, best = x.new_empty(pooled), x.new_empty(pooled)
        places = torch.empty(pooled, dtype=torch.int32)
        mean, scale = x.new_empty(planes), x.new_empty(planes)
        kernels.forward(
            x.detach().view(planes, height, width).numpy(),
            gain.detach().numpy(),
            bias.detach().numpy(),
            np.float32(eps),
            *(tensor.numpy() for tensor in (out, best, places, mean, scale)),
        )
        ctx.save_for_backward(x, gain, out, best, places, mean, scale)
        return out.view(batch, channels, height // 2, width // 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, gain, out, best, places, mean, scale = ctx.saved_tensors
        grad_x, grad_gain, grad_bias = torch.empty_like(x), torch.zeros_like(gain), torch.zeros_like(gain)
        plane = (-1, *x.shape[2:])
        kernels.backward(
            grads[0].contiguous().view(places.shape).numpy(),
            x.detach().view(plane).numpy(),
            gain.detach().numpy(),
            *(tensor.numpy() for tensor in (out, best, places, mean, scale)),
            grad_x.view(plane).numpy(),
            grad_gain.numpy(),
            grad_bias.numpy(),
        )
        return grad_x, grad_gain, grad_bias, None


def norm_relu_pool(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Normalise, rectify and halve: maxpool₂ₓ₂(relu(norm(x))), equal to torch's three operations up to rounding.

    Compiled for float32 on a CPU with a group per channel; torch's own operations do the rest, with the pool before the
    ReLU: the result is equal and a quarter of the values is left to rectify.
    """
    compiled = (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and norm.affine
        and norm.num_groups == norm.num_channels == x.shape[1]
    )
    if not compiled:
        return functional.relu(functional.max_pool2d(norm(x), 2))
    return _NormReluPool.apply(x, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call, no-any-return]
