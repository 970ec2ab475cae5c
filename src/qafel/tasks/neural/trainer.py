"""What a client needs to train in PyTorch: y ← y − η_ℓ g(y).

First the model as one flat vector, batches and a step; then how PyTorch runs here: on one thread, in which precision,
and with random numbers from our streams only (docs/decisions/neural-randomness.md and neural-bfloat16.md).
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias, final, get_args, runtime_checkable

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

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Prepare: TypeAlias = Callable[[NDArray[Any], torch.device], Tensor]
Precision: TypeAlias = Literal["float32", "bfloat16", "auto"]


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


@runtime_checkable
class FillsGradient(Protocol):
    """A module that computes the gradient of the mean cross entropy itself, for float32 on a CPU, without autograd."""

    def fill_gradient(
        self, values: NDArray[np.float32], inputs: Tensor, targets: Tensor, gradient: NDArray[np.float32]
    ) -> bool:
        """Fill `gradient` with that of the parameters `values`, as in training; of random numbers, only `Dropout`'s.

        False, and nothing is done, for a batch that it does not know: torch computes it, or says what is wrong with it.
        """


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


def batches(rows: Indices, local: LocalTraining, generator: np.random.Generator) -> Iterator[Indices]:
    """The `rows` of each step of `local`; `generator` gives every epoch an order, and its last batch may be smaller."""
    if len(rows) == 0:
        return iter(())
    size = local.batch_size or len(rows)
    orders = (rows if local.batch_size is None else generator.permutation(rows) for _ in itertools.count())
    endless = (order[start : start + size] for order in orders for start in range(0, len(rows), size))
    return itertools.islice(endless, local.steps_for(len(rows)))


@torch.no_grad()
def descend_(model: FlatModel, local: LocalTraining, start: Tensor | None, correction: Tensor | None) -> None:
    """Take one step along `model`'s gradient, as `local` says; `start` is y₀, which only the proximal term needs.

    g = ∇loss(y) + μ(y − y₀), scaled down to the clipping norm, plus weight decay times y, plus the correction.
    """
    values, gradient = model.values, model.gradient
    if start is not None:
        gradient.add_(values - start, alpha=local.proximal)
    if local.clip_norm is not None:
        norm = torch.linalg.vector_norm(gradient)
        gradient.mul_(torch.clamp(local.clip_norm / (norm + 1e-6), max=1.0))
    if local.weight_decay:
        gradient.add_(values, alpha=local.weight_decay)
    if correction is not None:
        gradient.add_(correction)
    values.add_(gradient, alpha=-local.lr)


@final
class Dropout(nn.Module):
    """Zero each value with probability `rate` and scale the others by 1/(1 − rate), in training only.

    `torch.nn.Dropout` draws from torch's global state; this one draws from `generator`, which the trainer sets from the
    client's random stream.
    """

    generator: torch.Generator | None

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ConfigError(f"a dropout rate lies in [0, 1); got {rate}")
        self.rate = rate
        self.generator = None

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors(x.shape, x.device) if self.training and self.rate else x

    def factors(self, shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """What values of this shape are multiplied by in training: 0 or 1/(1 − rate)."""
        kept = torch.empty(shape, device=device).bernoulli_(1 - self.rate, generator=self.generator)
        return kept.div_(1 - self.rate)


def choose_device(device: str) -> torch.device:
    """The `device` of that name; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"PyTorch knows no device {device!r}: use auto, cpu, cuda, cuda:1 or mps") from None
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(f"device {device!r} cannot be used here ({reason}): use auto or cpu") from None
    return chosen


def choose_precision(precision: Precision, device: torch.device) -> torch.dtype:
    """The type in which `device` multiplies matrices; "auto" is bfloat16 if the hardware has it, else float32."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision is one of {', '.join(get_args(Precision))}; got {precision!r}")
    fast = precision != "float32" and has_bfloat16(device)
    if precision == "bfloat16" and not fast:
        raise ConfigError(f"PyTorch has no fast bfloat16 on this {device.type}: use precision float32 or auto")
    return torch.bfloat16 if fast else torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies in bfloat16: on a CPU it takes AVX-512 or better, and oneDNN knows."""
    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


def autocast(precision: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Operations inside run in the lower precision; parameters and gradients stay float32."""
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, precision)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread: clients train in parallel, not one client's matrices; and a sum has one order."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def random_numbers_of(
    stream: Stream, device: torch.device, dropouts: Iterable[Dropout] = (), others: bool = True
) -> Iterator[None]:
    """Take all random numbers from `stream`: `dropouts` by a generator on `device`, others by torch's global state.

    The global state is set, and put back afterwards; not so if there are no `others`.
    """
    # Two words: one for a generator of our own, one for the global state.
    generator = torch.Generator(device).manual_seed(stream.words[0])
    for dropout in dropouts:
        dropout.generator = generator
    if not others:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # Not torch.manual_seed: it looks for every kind of accelerator, which takes longer than all else here.
        torch.default_generator.manual_seed(stream.words[1])
        if device.type == "cuda":
            torch.cuda.manual_seed(stream.words[1])
        yield


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more on 64-bit machines
_NEVER = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Tell glibc to serve blocks up to 32 MiB from its heap and never to shrink that; False without glibc.

    It would return every large block to the system when it is freed, and take it back, page by page and zeroed, at the
    next batch: a quarter of the time of training a small network.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has no mallopt
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
