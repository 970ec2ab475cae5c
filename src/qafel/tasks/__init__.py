"""Problems to learn: partitions, model, local training and evaluation behind one protocol.

protocol     what a task is
mushrooms    the paper's logistic regression; its data ships with the package
synthetic    quadratic and logistic problems of any size with known optimum and constants
libsvm       LIBSVM's text format
"""

from collections.abc import Callable

from qafel.tasks.libsvm import LabelledRows, read_libsvm, write_libsvm
from qafel.tasks.mushrooms import Mushrooms, load_mushrooms
from qafel.tasks.protocol import Goal, Task
from qafel.tasks.synthetic import Quadratic, SyntheticLogistic


def make_task(name: str, clients: int) -> Task:
    """A task by its name with a number of clients and defaults otherwise."""
    known: dict[str, Callable[[int], Task]] = {
        "mushrooms": Mushrooms,
        "quadratic": Quadratic,
        "logistic": SyntheticLogistic,
    }
    return known[name](clients)


__all__ = [
    "Goal",
    "LabelledRows",
    "Mushrooms",
    "Quadratic",
    "SyntheticLogistic",
    "Task",
    "load_mushrooms",
    "make_task",
    "read_libsvm",
    "write_libsvm",
]
