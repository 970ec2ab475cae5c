"""Tasks: data of clients, a model, local training and evaluation behind one protocol.

protocol   the protocol of a task
convex     problems with a known optimum, the paper's mushrooms and synthetic ones of any size
datasets   CIFAR-10, CelebA and Shakespeare as samples, and partitions over clients
neural     neural networks in PyTorch; not imported here
"""

from qafel.tasks.convex.mushrooms import LabelledRows, Mushrooms, load_mushrooms, read_libsvm, write_libsvm
from qafel.tasks.convex.synthetic import Quadratic, SyntheticLogistic
from qafel.tasks.protocol import Goal, Task

__all__ = [
    "Goal",
    "LabelledRows",
    "Mushrooms",
    "Quadratic",
    "SyntheticLogistic",
    "Task",
    "load_mushrooms",
    "read_libsvm",
    "write_libsvm",
]
