"""A module as one flat float32 vector: the parameters to train, the frozen ones, and the buffers."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import UninitializedParameter

from qafel.errors import ConfigError, DataError
from qafel.params import Layout, Vector
from qafel.tasks.neural.trainer import Dropout
from qafel.text import did_you_mean

Buffers: TypeAlias = Literal["refuse", "hold", "recompute", "batch"]
"""The treatment of state that is not a parameter, such as running statistics."""
_CHOICES = (
    'Choose TorchTask(…, buffers="hold") to keep the values of a pretrained model, "recompute" to calibrate them on '
    'training rows before each evaluation, or "batch" to use the statistics of each batch; or use GroupNorm'
)


def made_by(factory: Any) -> nn.Module:
    """Return the module that the factory makes. Raises `ConfigError` if it is not a factory of modules."""
    if isinstance(factory, nn.Module) or not callable(factory):
        found = f"the module {type(factory).__name__}" if isinstance(factory, nn.Module) else repr(factory)
        raise ConfigError(f"model is a function that returns a new module, such as `def model(): …`; got {found}")
    module = factory()
    if not isinstance(module, nn.Module):
        name = getattr(factory, "__name__", repr(factory))
        raise ConfigError(f"{name}() must return a torch.nn.Module; it returned {module!r:.60}")
    return module


def trainable_parameters(module: nn.Module, patterns: Sequence[str] | None) -> dict[str, list[nn.Parameter]]:
    """Freeze all parameters but those to train, and return these by name, in the order of `named_parameters`.

    patterns   names to train, such as "head.*"; None: all floating-point parameters that require a gradient
    Parameters that share their memory have one name.
    """
    named = dict(module.named_parameters())
    for name, parameter in named.items():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(f"parameter {name!r} has no shape yet: give lazy layers their sizes")
    if patterns is not None:
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in named):
                near = did_you_mean(pattern, named)
                raise ConfigError(f"trainable: {pattern!r} does not match a parameter{near}")
        for name, parameter in named.items():
            matches = any(fnmatchcase(name, pattern) for pattern in patterns)
            parameter.requires_grad_(matches and (parameter.is_floating_point() or parameter.is_complex()))
    chosen = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if not chosen:
        raise ConfigError("the module must have parameters to train: set requires_grad, or trainable=[…]")
    found: dict[str, list[nn.Parameter]] = {}
    places: dict[tuple[Any, ...], str] = {}
    for name, parameter in chosen.items():
        if not parameter.is_floating_point():
            raise ConfigError(f"parameter {name!r} is {parameter.dtype}: parameters to train are floating-point")
        place = (parameter.data_ptr() or id(parameter), parameter.shape, parameter.stride(), parameter.dtype)
        found.setdefault(places.setdefault(place, name), []).append(parameter)
    frozen = [(name, parameter) for name, parameter in named.items() if name not in chosen]
    _refuse_overlap([*((name, parameters[0]) for name, parameters in found.items()), *frozen])
    return found


def _refuse_overlap(parameters: list[tuple[str, nn.Parameter]]) -> None:
    """Raise if a parameter to train shares memory with another one: its move to the flat vector would untie them."""
    last, end, trains = "", 0, False
    spans = [(p.data_ptr(), p.data_ptr() + _reach(p) * p.element_size(), name, p) for name, p in parameters]
    for start, stop, name, parameter in sorted(spans, key=lambda span: span[:2]):
        if start and start < end and (trains or parameter.requires_grad):
            raise ConfigError(
                f"parameters {last!r} and {name!r} share memory: tie whole parameters, and train or freeze both"
            )
        if stop > end:
            last, end, trains = name, stop, parameter.requires_grad


def _reach(tensor: Tensor) -> int:
    """Return the number of elements from the first one in memory to the last one."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def vector_of(module: nn.Module, patterns: Sequence[str] | None, layout: Layout) -> Vector:
    """Return the parameters to train of a new module as a flat vector. Its layout must be `layout`."""
    parameters = {name: shared[0] for name, shared in trainable_parameters(module, patterns).items()}
    found = Layout.of({name: tuple(parameter.shape) for name, parameter in parameters.items()})
    if found != layout:
        raise ConfigError("the model's function must return the same parameters at every call")
    vector = np.empty(layout.size, np.float32)
    for view, parameter in zip(layout.split(vector).values(), parameters.values(), strict=True):
        view[...] = parameter.detach().float().cpu().numpy()
    return vector


@final
@dataclass(eq=False)
class _Buffer:
    """A buffer, and its value and version at the start. PyTorch counts a version for each change in place."""

    owner: nn.Module
    name: str
    tensor: Tensor
    version: int
    original: Tensor | None

    @property
    def value(self) -> Tensor:
        found = self.owner._buffers[self.name]
        assert found is not None
        return found

    @property
    def changed(self) -> bool:
        return self.value is not self.tensor or self.tensor._version != self.version

    def set(self, value: Tensor) -> None:
        self.tensor.copy_(value)
        self.owner._buffers[self.name] = self.tensor

    def restore(self) -> None:
        assert self.original is not None
        self.set(self.original)
        self.version = self.tensor._version


@final
class FlatModel:
    """A module on a device. Its parameters to train are views of `values`, their gradients views of `gradient`.

    Parameters of other types than float32 are copies instead: `push` and `pull` convert. Each tensor of `tensors` is a
    parameter's part of `values` in float32, for optimizers.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        trainable: Sequence[str] | None = None,
        buffers: Buffers = "refuse",
    ) -> None:
        if buffers not in get_args(Buffers):
            raise ConfigError(f"buffers is one of {', '.join(get_args(Buffers))}; got {buffers!r}")
        shared = trainable_parameters(module, trainable)
        self.module = module.to(device)
        self.layout = Layout.of({name: tuple(parameters[0].shape) for name, parameters in shared.items()})
        self.values = torch.empty(self.layout.size, device=device)
        self.gradient = self.values.grad = torch.zeros(self.layout.size, device=device)
        self.tensors: list[nn.Parameter] = []
        self._views: list[tuple[nn.Parameter, Tensor, int]] = []
        self._converted: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        stops = list(itertools.accumulate(parameters[0].numel() for parameters in shared.values()))
        for parameters, start, stop in zip(shared.values(), [0, *stops], stops, strict=False):
            shape = parameters[0].shape
            view, slope = self.values[start:stop].view(shape), self.gradient[start:stop].view(shape)
            view.copy_(parameters[0].detach())
            self.tensors.append(nn.Parameter(view))
            self.tensors[-1].grad = slope
            for parameter in parameters:
                if parameter.dtype == torch.float32:
                    parameter.data, parameter.grad = view, slope
                    self._views.append((parameter, view, view.data_ptr()))
                else:
                    self._converted.append((parameter, view, slope))
        self.dropouts = [child for child in module.modules() if isinstance(child, Dropout)]
        self._treatment = buffers
        self._digest: str | None = None
        self._mode: bool | None = None
        self._norms = [child for child in module.modules() if _keeps_statistics(child)]
        self._buffers = self._require_treated()
        self._calibrated: tuple[bytes, list[Tensor]] | None = None

    def _require_treated(self) -> list[_Buffer]:
        """Return the buffers. Raises `ConfigError` if the module has statistics and no treatment is chosen."""
        for name, child in self.module.named_modules():
            if self._treatment == "refuse" and any(child is norm for norm in self._norms):
                raise ConfigError(
                    f"module {name!r} ({type(child).__name__}) has running statistics, which clients do not upload. "
                    f"{_CHOICES}"
                )
            if self._treatment == "recompute" and _keeps_statistics(child) and not isinstance(child, _NormBase):
                raise ConfigError(
                    f"module {name!r} ({type(child).__name__}) updates its running statistics by itself, so "
                    'buffers="recompute" cannot average them: use "hold", "batch" or a normalization layer of PyTorch'
                )
            batchwise = isinstance(child, _BatchNorm) and not child.track_running_stats
            if batchwise and self._treatment != "batch":
                raise ConfigError(
                    f"module {name!r} ({type(child).__name__}) uses the statistics of each batch in evaluations too, "
                    'so that results depend on evaluation_batch. Allow it with TorchTask(…, buffers="batch")'
                )
        keep = self._treatment != "refuse"
        return [
            _Buffer(owner, name, tensor, tensor._version, tensor.clone() if keep else None)
            for owner in self.module.modules()
            for name, tensor in owner._buffers.items()
            if tensor is not None
        ]

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen parameters and saved buffers; empty if there are none."""
        if self._digest is None:
            trained = {id(parameter) for parameter, *_ in (*self._views, *self._converted)}
            frozen: dict[str, Tensor] = {name: p for name, p in self.module.named_parameters() if id(p) not in trained}
            originals = {id(kept.tensor): kept.original for kept in self._buffers if kept.original is not None}
            state = self.module.state_dict(keep_vars=True)
            frozen |= {
                name: originals.get(id(tensor), tensor)
                for name, tensor in state.items()
                if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter)
            }
            digest = hashlib.sha256()
            for name, tensor in sorted(frozen.items()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                for part in _strided(tensor.detach()):
                    digest.update(part.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
            self._digest = digest.hexdigest() if frozen else ""
        return self._digest

    def load(self, vector: Vector) -> None:
        """Set the parameters to train, and restore buffers that may change. Frozen parameters stay."""
        if vector.shape != (self.layout.size,):
            raise DataError(f"the model has {self.layout.size} parameters, the vector has shape {vector.shape}")
        if self.values.device.type == "cpu":
            self.values.numpy()[...] = vector
        else:
            # from_numpy would warn: the hidden state is read-only.
            self.values.copy_(torch.tensor(vector))
        self.restore_buffers()

    def restore_buffers(self) -> None:
        """Restore changed buffers. Raises `ConfigError` if their treatment was not chosen."""
        for kept in self._buffers:
            if not kept.changed:
                continue
            if self._treatment != "hold" and not any(kept.owner is norm for norm in self._norms):
                raise ConfigError(
                    f"training changed the buffer {kept.name!r} of {type(kept.owner).__name__}, which clients do not "
                    'upload. TorchTask(…, buffers="hold") restores it before each update. Other choices apply to '
                    "buffers whose names start with running_"
                )
            kept.restore()

    def switch(self, training: bool) -> None:
        """Put the module in training or evaluation mode, and layers with statistics in the mode of their treatment."""
        if self._mode is training:
            return
        self.module.train(training)
        for norm in self._norms if self._treatment in ("hold", "batch") else ():
            norm.train(self._treatment == "batch")
        self._mode = training

    def needs_calibration(self) -> bool:
        """Return whether the running statistics must be computed for the values. Known ones are set."""
        if self._treatment != "recompute" or not self._norms:
            return False
        digest = hashlib.blake2b(self.values.cpu().numpy().data).digest()
        if self._calibrated is None or self._calibrated[0] != digest:
            self._calibrated = digest, []
            return True
        for kept, value in zip(self._statistics(), self._calibrated[1], strict=True):
            kept.set(value)
        return False

    def start_calibration(self) -> None:
        """Let the layers with statistics, and only these, work as in training, with means over all batches."""
        self.switch(training=False)
        for norm in self._norms:
            norm.train()
            assert isinstance(norm, _NormBase)
            norm.reset_running_stats()
            norm.momentum = None

    def end_calibration(self) -> None:
        """Keep the statistics for further evaluations of the same values."""
        assert self._calibrated is not None
        for norm in self._norms:
            norm.eval()
        self._calibrated[1].extend(kept.value.clone() for kept in self._statistics())

    def _statistics(self) -> list[_Buffer]:
        return [kept for kept in self._buffers if any(kept.owner is norm for norm in self._norms)]

    def push(self) -> None:
        """Give the values to the parameters, converted to their types."""
        for parameter, view, place in self._views:
            if parameter.data_ptr() != place:
                parameter.data = view
        for parameter, view, _ in self._converted:
            parameter.data.copy_(view)
            parameter.grad = None

    def pull(self) -> None:
        """Convert gradients to float32, and take over the data that a forward pass has replaced.

        For example, a constraint on a layer's norm sets `weight.data = …`.
        """
        for parameter, view, place in self._views:
            if parameter.data_ptr() != place:
                view.copy_(parameter.data)
        for parameter, _, slope in self._converted:
            if parameter.grad is not None:
                slope.add_(parameter.grad)

    def vector(self) -> Vector:
        """Return a copy of the parameters."""
        values = self.values.cpu().numpy()
        return values.copy() if self.values.device.type == "cpu" else values


def _strided(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensor, or indices and values of a sparse one."""
    if tensor.layout == torch.strided:
        return (tensor,)
    sparse = tensor.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    return sparse.indices(), sparse.values()


def _keeps_statistics(module: nn.Module) -> bool:
    """Return whether a layer has running statistics: a norm of PyTorch's, or buffers named running_…"""
    if isinstance(module, _NormBase):
        return module.track_running_stats
    return any(name.startswith("running_") and tensor is not None for name, tensor in module._buffers.items())
