"""What a client does with its samples: y ← y − η_ℓ g(y), in PyTorch. Algorithm 2, lines 3 to 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from qafel.algorithm import LocalTraining
from qafel.rng import Stream
from qafel.tasks.batches import batches
from qafel.tasks.flat_model import FlatModel
from qafel.tasks.partition import Indices
from qafel.tasks.samples import Samples
from qafel.tasks.torch_runtime import autocast

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Prepare: TypeAlias = Callable[[NDArray[Any], torch.device], Tensor]


def train_locally_(
    model: FlatModel,
    samples: Samples,
    rows: Indices,
    local: LocalTraining,
    stream: Stream,
    *,
    prepare: Prepare,
    loss: Loss,
    precision: torch.dtype,
) -> None:
    """Change the model by the client's local steps of SGD.

    g = ∇loss(y) + μ(y − y₀), scaled down to the clipping norm, plus weight decay times y.
    """
    device = model.values.device
    start = model.values.clone() if local.proximal else None
    if not model.module.training:
        model.module.train()
    for batch in batches(rows, local, stream.generator()):
        inputs, targets = samples.batch(batch)
        model.gradient.zero_()
        with autocast(precision, device):
            outputs = model.module(prepare(inputs, device))
        loss(outputs.float(), as_targets(targets, device)).backward()  # type: ignore[no-untyped-call]
        _descend_(model, local, start)


def as_targets(targets: NDArray[Any], device: torch.device) -> Tensor:
    """Whole numbers become class numbers of torch's type; others stay as they are."""
    tensor = torch.from_numpy(targets)
    return (tensor if tensor.is_floating_point() else tensor.long()).to(device)


@torch.no_grad()
def _descend_(model: FlatModel, local: LocalTraining, start: Tensor | None) -> None:
    values, gradient = model.values, model.gradient
    if start is not None:
        gradient.add_(values - start, alpha=local.proximal)
    if local.clip_norm is not None:
        norm = torch.linalg.vector_norm(gradient)
        gradient.mul_(torch.clamp(local.clip_norm / (norm + 1e-6), max=1.0))
    if local.weight_decay:
        gradient.add_(values, alpha=local.weight_decay)
    values.add_(gradient, alpha=-local.lr)
