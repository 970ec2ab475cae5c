"""Problems to learn: partitions, model, local training and evaluation behind one protocol.

protocol     what a task is
mushrooms    the paper's logistic regression; its data ships with the package
synthetic    quadratic and logistic problems of any size with known optimum and constants
libsvm       LIBSVM's text format
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
