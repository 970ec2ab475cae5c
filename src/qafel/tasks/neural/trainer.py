"""What a client does with its samples: y ← y − η_ℓ g(y), in PyTorch. Algorithm 2, lines 3 to 6."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError, DataError
from qafel.params import Layout, Vector
from qafel.rng import Stream
from qafel.tasks.datasets.partition import Indices
from qafel.tasks.datasets.samples import Samples
from qafel.tasks.neural.networks import Dropout
from qafel.tasks.neural.runtime import autocast

# A torch module whose parameters, and their gradients, lie in one flat buffer each.


@final
class FlatModel:
    """A module on a device. Its parameters are views of `values`, their gradients views of `gradient`."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        _require_usable(module)
        self.module = module.to(device)
        parameters = dict(module.named_parameters())
        self.layout = Layout.of({name: tuple(p.shape) for name, p in parameters.items()})
        self.values = torch.empty(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size, device=device)
        stops = list(itertools.accumulate(p.numel() for p in parameters.values()))
        for parameter, start, stop in zip(parameters.values(), [0, *stops], stops, strict=False):
            view = self.values[start:stop].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
        self.dropouts = [child for child in module.modules() if isinstance(child, Dropout)]
        self._buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def load(self, vector: Vector) -> None:
        """Set the parameters; the module's other state returns to what it was when it was made."""
        if vector.shape != (self.layout.size,):
            raise DataError(f"the model has {self.layout.size} parameters, the vector has shape {vector.shape}")
        if self.values.device.type == "cpu":
            self.values.numpy()[...] = vector
        else:
            # Not from_numpy: it warns of arrays that are read-only, as a hidden state is.
            self.values.copy_(torch.tensor(vector))
        for buffer, original in self._buffers:
            buffer.copy_(original)

    def vector(self) -> Vector:
        """The parameters, as a copy."""
        return np.array(self.values.cpu().numpy(), np.float32)


def _require_usable(module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ConfigError("the module has no parameters, so there is nothing to learn")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise ConfigError(
                f"parameter {name!r} is {parameter.dtype}{'' if parameter.requires_grad else ', frozen'}: "
                "all parameters are float32 and trained; register others as buffers"
            )
    for name, child in module.named_modules():
        if isinstance(child, _NormBase) and child.track_running_stats:
            raise ConfigError(
                f"module {name!r} ({type(child).__name__}) keeps running statistics, which no client uploads: "
                "use GroupNorm, or track_running_stats=False"
            )


# In which order a client sees its samples.


def batches(rows: Indices, local: LocalTraining, generator: np.random.Generator) -> Iterator[Indices]:
    """The rows of every local step. Each epoch has a new order; its last batch may be smaller."""
    endless = (batch for _ in itertools.count() for batch in _epoch(rows, local.batch_size, generator))
    if len(rows) == 0:
        return iter(())
    if local.steps is not None:
        return itertools.islice(endless, local.steps)
    size = local.batch_size or len(rows)
    return itertools.islice(endless, (local.epochs or 1) * -(-len(rows) // size))


def _epoch(rows: Indices, batch_size: int | None, generator: np.random.Generator) -> Iterator[Indices]:
    if batch_size is None:
        yield rows
        return
    shuffled = generator.permutation(rows)
    for start in range(0, len(shuffled), batch_size):
        yield shuffled[start : start + batch_size]


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
