"""Local training in PyTorch: y ← y − η_ℓ g(y).

The first part has batches, gradients and optimizers. The second part controls PyTorch: one thread, the precision, and
random numbers from named streams only. docs/decisions/neural.md gives the reasons.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Literal, Protocol, TypeAlias, final, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.tasks.datasets.partition import Indices
from qafel.workers import WORKER

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Prepare: TypeAlias = Callable[[Any, torch.device], Any]
Precision: TypeAlias = Literal["float32", "bfloat16", "auto"]
Optimizer: TypeAlias = Callable[..., torch.optim.Optimizer]
"""Makes an optimizer from parameters and `lr`: a class of torch.optim, or a partial of one."""


@runtime_checkable
class FillsGradient(Protocol):
    """A module that computes the gradient of the mean cross entropy without autograd, for float32 on a CPU."""

    def fill_gradient(
        self, values: NDArray[np.float32], inputs: Tensor, targets: Tensor, gradient: NDArray[np.float32]
    ) -> bool:
        """Fill `gradient` for the parameters `values` in training mode. Only `Dropout` may use random numbers.

        Return False without any effect for an unsupported batch: PyTorch then computes it, or reports its error.
        """


def batches(rows: Indices, local: LocalTraining, generator: np.random.Generator) -> Iterator[Indices]:
    """Yield the rows of each step of `local`. `generator` shuffles every epoch; its last batch may be smaller."""
    if len(rows) == 0:
        return iter(())
    size = local.batch_size or len(rows)
    orders = (rows if local.batch_size is None else generator.permutation(rows) for _ in itertools.count())
    endless = (order[start : start + size] for order in orders for start in range(0, len(rows), size))
    return itertools.islice(endless, local.steps_for(len(rows)))


@torch.no_grad()
def adjust_(
    gradient: Tensor, values: Tensor, local: LocalTraining, start: Tensor | None, correction: Tensor | None
) -> None:
    """Change the gradient at `values` by the settings of `local`.

    It becomes ∇loss(y) + μ(y − y₀), scaled down to the clipping norm, plus weight decay times y, plus the
    correction. `start` is y₀; None: without the proximal term.
    """
    if start is not None:
        gradient.add_(values - start, alpha=local.proximal)
    if local.clip_norm is not None:
        norm = torch.linalg.vector_norm(gradient)
        gradient.mul_(torch.clamp(local.clip_norm / (norm + 1e-6), max=1.0))
    if local.weight_decay:
        gradient.add_(values, alpha=local.weight_decay)
    if correction is not None:
        gradient.add_(correction)


def make_optimizer(make: Optimizer, flat: Tensor, tensors: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
    """Return a new optimizer: of the flat vector if it works element by element, else of the tensors."""
    if not callable(make):
        raise ConfigError(f"optimizer is a class of torch.optim or a partial of one; got a {type(make).__name__}")
    kind = make
    while isinstance(kind, partial):
        kind = kind.func
    made: object = make([flat] if kind in _ELEMENTWISE else list(tensors), lr=lr)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"optimizer(parameters, lr=…) must return a torch.optim.Optimizer; it returned {made!r:.60}")
    return made


_ELEMENTWISE = {
    getattr(torch.optim, name)
    for name in (
        *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    )
}
"""Optimizers that treat each number alike, so that one flat tensor gives the bits of many, faster."""


@final
class Dropout(nn.Module):
    """Set each value to zero with probability `rate` and scale the others by 1/(1 − rate), in training only.

    It draws from `generator`, which the trainer sets from the client's stream. `torch.nn.Dropout` uses global state.
    """

    generator: torch.Generator | None

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ConfigError(f"a dropout rate must be in [0, 1); got {rate}")
        self.rate = rate
        self.generator = None

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors(x.shape, x.device) if self.training and self.rate else x

    def factors(self, shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Return random factors of this shape: 0 or 1/(1 − rate)."""
        kept = torch.empty(shape, device=device).bernoulli_(1 - self.rate, generator=self.generator)
        return kept.div_(1 - self.rate)


def choose_device(device: str | torch.device) -> torch.device:
    """Return the device by name. "auto" is a GPU if there is one. In "cuda:{i}", i is the number of this worker."""
    device = str(device).replace("{i}", str(int(os.environ.get(WORKER, "0")) % max(1, torch.cuda.device_count())))
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"unknown device {device!r}: use auto, cpu, cuda, cuda:1, cuda:{{i}} or mps") from None
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(f"device {device!r} is not available ({reason}): use auto or cpu") from None
    return chosen


def choose_precision(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the type of matrix products on `device`. "auto" is bfloat16 if the hardware supports it."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision must be one of {', '.join(get_args(Precision))}; got {precision!r}")
    fast = precision != "float32" and has_bfloat16(device)
    if precision == "bfloat16" and not fast:
        raise ConfigError(f"this {device.type} does not support fast bfloat16: use precision float32 or auto")
    return torch.bfloat16 if fast else torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the hardware multiplies in bfloat16. A CPU needs AVX-512 or better."""
    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


def autocast(precision: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return a context with the lower precision. Parameters and gradients stay float32."""
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, precision)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread: clients train in parallel instead, and sums have a fixed order."""
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
def random_numbers_of(stream: Stream, device: torch.device, dropouts: Iterable[Dropout] = ()) -> Iterator[None]:
    """Take all random numbers from `stream`: `dropouts` from a generator on `device`, others from global states.

    The global states of torch, NumPy and Python are restored afterwards.
    """
    # Two words: one for the generator, one for the global state.
    generator = torch.Generator(device).manual_seed(stream.words[0])
    for dropout in dropouts:
        dropout.generator = generator
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(stream.words[1])
    np.random.seed(stream.words[1] & 0xFFFFFFFF)  # noqa: NPY002  (code of users may draw from it)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            # torch.manual_seed would search for every kind of accelerator, which is slow.
            torch.default_generator.manual_seed(stream.words[1])
            if device.type == "cuda":
                torch.cuda.manual_seed(stream.words[1])
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # the limit of glibc on 64-bit machines
_NEVER = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks up to 32 MiB in its heap. Return False without glibc.

    Otherwise every large block returns to the system, and each batch gets new zeroed pages. That takes a quarter of the
    training time of a small network.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl lacks mallopt
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
