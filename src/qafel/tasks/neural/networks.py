"""The paper's networks, the compiled operations inside them, and their inputs as tensors.

GroupNorm with a group per channel, ReLU and 2×2 max-pooling are one operation, and so is the whole first block; the
loops are in `neural.kernels`. See docs/decisions/neural-fused-blocks.md.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from qafel.tasks.neural import kernels
from qafel.tasks.neural.trainer import Dropout


@final
class Cnn(nn.Module):
    """Four 3×3 convolutions of 32 channels, one shared GroupNorm, dropout, and a linear layer, for 32×32 images.

    Each convolution (padding 2) is followed by the same GroupNorm(32, 32), ReLU and 2×2 max-pooling:
    32 → 34 → 17 → 19 → 9 → 11 → 5 → 7 → 3, so 288 features remain. 31,594 parameters for 10 classes, 29,282 for 2.
    """

    def __init__(self, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv4 = nn.Conv2d(32, 32, 3, padding=2)
        self.norm = nn.GroupNorm(32, 32)
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(288, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = first_block(images, self.conv1, self.norm)
        for conv in (self.conv2, self.conv3, self.conv4):
            x = norm_relu_pool(conv(x), self.norm)
        scores: Tensor = self.linear(self.dropout(x.flatten(1)))
        return scores


@final
class CharacterLstm(nn.Module):
    """Embedding of 8, two LSTM layers of 256, and a linear layer on the last position: the next character's scores.

    819,920 parameters for a vocabulary of 80.
    """

    def __init__(self, vocabulary: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        scores: Tensor = self.linear(states[:, -1])
        return scores


@final
class Normalise:
    """(x/255 − mean)/std of each channel, from bytes."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        channels = (1, len(mean), 1, 1)
        centre, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self._gain = (1 / (255 * spread)).float().view(channels)
        self._shift = (-centre / spread).float().view(channels)

    def __call__(self, images: NDArray[Any], device: torch.device) -> Tensor:
        x = torch.from_numpy(images).to(device)
        return torch.addcmul(self._shift.to(device), x.float(), self._gain.to(device))


def as_numbers(characters: NDArray[Any], device: torch.device) -> Tensor:
    """The characters as 64-bit numbers, which embeddings take."""
    return torch.from_numpy(characters).to(device).long()


@final
class _NormReluPool(torch.autograd.Function):
    """The compiled operation, for float32 on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        x, gain = x.contiguous(), gain.contiguous()
        batch, channels, height, width = x.shape
        out, *kept = choose_and_normalise(x.view(batch * channels, -1), width, width, gain, bias, eps)
        ctx.save_for_backward(x, gain, out, *kept)
        return out.view(batch, channels, height // 2, width // 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, gain, out, *kept = ctx.saved_tensors
        grad_x, grad_gain, grad_bias = torch.empty_like(x), torch.zeros_like(gain), torch.zeros_like(gain)
        kernels.backward(
            as_array(grads[0].contiguous().view(out.shape)),
            as_array(x.view(len(out), -1)),
            *(as_array(tensor) for tensor in (gain, out, *kept)),
            as_array(grad_x.view(len(out), -1)),
            as_array(grad_gain),
            as_array(grad_bias),
        )
        return grad_x, grad_gain, grad_bias, None


def choose_and_normalise(
    planes: Tensor, width: int, stride: int, gain: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run the forward loops on a matrix of planes: the output, and what the backward loops want to know."""
    pooled = (len(planes), (planes.shape[1] // width // 2) * (width // 2))
    out, best, places = planes.new_empty(pooled), planes.new_empty(pooled), torch.empty(pooled, dtype=torch.int32)
    mean, scale = planes.new_empty(len(planes)), planes.new_empty(len(planes))
    results = (out, best, places, mean, scale)
    norm = (as_array(gain), as_array(bias), np.float32(eps))
    kernels.forward(as_array(planes), width, stride, *norm, *(as_array(result) for result in results))
    return results


def as_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as an array."""
    array: NDArray[Any] = tensor.detach().numpy()
    return array


def is_compiled(x: Tensor, norm: nn.GroupNorm, channels: int) -> bool:
    """Whether our loops can do it: float32 on a CPU, a group per channel, with gain and bias."""
    known = norm.affine and norm.num_groups == norm.num_channels == channels
    return known and x.device.type == "cpu" and x.dtype == torch.float32


def norm_relu_pool(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Normalise, rectify and halve: maxpool₂ₓ₂(relu(norm(x))), equal to torch's three operations up to rounding.

    Compiled for float32 on a CPU with a group per channel; torch's own operations do the rest, with the pool before the
    ReLU: the result is equal and a quarter of the values is left to rectify.
    """
    if not is_compiled(x, norm, x.shape[1]):
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
        kernels.first_block_backward(
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
