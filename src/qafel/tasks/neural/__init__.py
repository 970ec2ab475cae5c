"""Neural networks as tasks, in PyTorch (the extra `torch`). In the order in which data flows:

kernels      compiled loops of norm, ReLU and pooling, forward and backward
trainer      a module as one flat vector, a client's local steps, and how PyTorch runs: threads, precision, randomness
networks     the paper's networks and the compiled operations inside them
task         `TorchTask`: any module, any samples, any partition
published    the paper's three tasks: cifar10, celeba, shakespeare
"""

from qafel.tasks.neural.published import celeba, cifar10, shakespeare
from qafel.tasks.neural.task import TorchTask

__all__ = ["TorchTask", "celeba", "cifar10", "shakespeare"]
