"""Neural networks as tasks, in PyTorch (the extra `torch`). In the order in which data flows:

trainer      a module as one flat vector, a client's batches, a step, and how PyTorch runs here
winograd     convolutions of 32 channels
blocks       the paper's first convolution, norm, ReLU and pooling
cnn          the gradient of the paper's network from these
products     products of matrices from tiles that stay in registers
lstm         the LSTM's layers, forward and back through time, from these
task         `TorchTask`: local training of any module, any samples, any partition
published    the paper's networks, and its three tasks: cifar10, celeba, shakespeare
"""

from pathlib import Path

from qafel.lazy import is_installed, require_installed

if not (is_installed("torch") and is_installed("numba")):
    require_installed("a neural task", "torch", torch="PyTorch", numba="Numba")

from qafel.compiled import forget_stale_kernels
from qafel.tasks.neural.published import celeba, cifar10, shakespeare
from qafel.tasks.neural.task import TorchTask

forget_stale_kernels(Path(__file__).parent)

__all__ = ["TorchTask", "celeba", "cifar10", "shakespeare"]
