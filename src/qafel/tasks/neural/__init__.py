"""Neural networks as tasks, in PyTorch (the extra `torch`).

model        a module as one flat vector: parameters to train, frozen ones, buffers
data         arrays, samples and torch Datasets, read by row
trainer      a client's batches, gradients and optimizers, PyTorch's threads and random numbers
task         `TorchTask`: local training of any module with any samples and any partition
published    the paper's networks and its three tasks: cifar10, celeba, shakespeare
language     `language`: causal language models of Hugging Face, with LoRA; not imported here
compiled     the paper's networks in compiled loops
"""

from qafel.lazy import is_installed, require_installed

if not (is_installed("torch") and is_installed("numba")):
    require_installed("a neural task", "torch", torch="PyTorch", numba="Numba")

from qafel.tasks.neural.published import celeba, cifar10, shakespeare
from qafel.tasks.neural.task import TorchTask

__all__ = ["TorchTask", "celeba", "cifar10", "shakespeare"]
