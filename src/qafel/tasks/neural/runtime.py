"""How PyTorch runs here: on one thread, in which precision, and with random numbers from our streams only."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Literal, TypeAlias, get_args

import torch

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.tasks.neural.networks import Dropout

Precision: TypeAlias = Literal["float32", "bfloat16", "auto"]


def choose_device(device: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {error}") from None
    return chosen


def choose_precision(precision: Precision, device: torch.device) -> torch.dtype:
    """The type in which matrices are multiplied; "auto" is bfloat16 where the hardware has it, float32 elsewhere."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision is one of {', '.join(get_args(Precision))}; got {precision!r}")
    if precision == "float32":
        return torch.float32
    if has_bfloat16(device):
        return torch.bfloat16
    if precision == "bfloat16":
        raise ConfigError(f"PyTorch has no fast bfloat16 on this {device.type}: use precision float32 or auto")
    return torch.float32


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
def random_numbers_of(stream: Stream, device: torch.device, dropouts: Iterable[Dropout] = ()) -> Iterator[None]:
    """Take all random numbers from the stream: our `Dropout` from a generator, anything else from torch's global state.

    The global state is set, and put back afterwards.
    """
    # Two words: one for a generator of our own, one for the global state.
    generator = torch.Generator(device).manual_seed(stream.words[0])
    for dropout in dropouts:
        dropout.generator = generator
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # Not torch.manual_seed: it looks for every kind of accelerator, which takes longer than all else here.
        torch.default_generator.manual_seed(stream.words[1])
        if device.type == "cuda":
            torch.cuda.manual_seed(stream.words[1])
        yield


# Keep freed memory in the process.
#
# glibc returns every large block to the system when it is freed, and takes it back, page by page and zeroed, at the
# next
# batch: a quarter of the time of training a small network. Two settings of its allocator end that.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more on 64-bit machines


_NEVER = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Tell glibc to serve blocks up to 32 MiB from its heap and never to shrink that; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has no mallopt
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
