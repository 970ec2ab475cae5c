"""Problems to learn: partitions, model, local training and evaluation behind one protocol.

protocol     what a task is
mushrooms    the paper's logistic regression; its data ships with the package
libsvm       LIBSVM's text format
"""

from qafel.errors import ConfigError
from qafel.tasks.libsvm import LabelledRows, read_libsvm, write_libsvm
from qafel.tasks.mushrooms import Mushrooms, load_mushrooms
from qafel.tasks.protocol import Goal, Task

TASKS = {"mushrooms": "logistic regression on LIBSVM's mushrooms, 113 parameters; the data ships with the package"}
"""The tasks by name, each in a line."""


def make_task(name: str, clients: int) -> Task:
    """The task of that name, split over a number of clients."""
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}; choose from {', '.join(TASKS)}")
    return Mushrooms(clients)


__all__ = [
    "TASKS",
    "Goal",
    "LabelledRows",
    "Mushrooms",
    "Task",
    "load_mushrooms",
    "make_task",
    "read_libsvm",
    "write_libsvm",
]
