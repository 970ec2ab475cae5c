"""A torch module whose parameters, and their gradients, lie in one flat buffer each."""

from __future__ import annotations

import itertools
from typing import final

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from qafel.errors import ConfigError, DataError
from qafel.params import Layout, Vector
from qafel.tasks.dropout import Dropout


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
