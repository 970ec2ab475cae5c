"""A client's local training: of a task of this package, in our process or in one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from typing import Any, final

from qafel.algorithm import LocalTraining
from qafel.algorithm.client import Train
from qafel.config import Config
from qafel.deployment.messages import Agreement
from qafel.errors import ConfigError
from qafel.params import Vector
from qafel.rng import Stream
from qafel.tasks import Task
from qafel.tasks.protocol import sample_weights


def train_task(agreement: Agreement, client: int, expected: str | None = None) -> tuple[Train, float]:
    """The training function of the run's own task, and how much the client's updates count.

    agreement  what the run's server says: its configuration
    client     the client whose data are trained on
    expected   the task that the user named, if any; another is refused
    """
    config = agreement.config
    if expected not in (None, config.task.name):
        raise ConfigError(
            f"the run learns {config.task.name}, not {expected}: leave out --task, or choose another --run"
        )
    training = _TaskTraining(config, agreement.algorithm().local, client)
    if not 0 <= client < training.task.clients:
        raise ConfigError(f"the run has clients 0 to {training.task.clients - 1}, not {client}")
    equal = config.algorithm.client_weights == "equal"
    return training, 1.0 if equal else sample_weights(training.task)[client]


@final
@dataclass(frozen=True)
class _TaskTraining:
    """A training function that can be sent to another process: it makes its task again there."""

    config: Config
    local: LocalTraining
    client: int

    @cached_property
    def task(self) -> Task:
        task: Task = self.config.task.make()
        return task

    def __call__(self, start: Vector, stream: Stream) -> Vector:
        return self.task.train(self.client, start, self.local, stream)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "task"}


@contextmanager
def training_in(worker: str, train: Train) -> Iterator[Train]:
    """A context with the training function as it is, for "thread", or one that has it run in another process."""
    if worker == "thread":
        yield train
        return
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_keep, initargs=(train,))
    try:
        yield lambda start, stream: pool.submit(_train, start, stream).result()
    finally:
        pool.shutdown(cancel_futures=True)


_kept: list[Train] = []  # in a worker process: what it trains with


def _keep(train: Train) -> None:
    _kept[:] = [train]


def _train(start: Vector, stream: Stream) -> Vector:
    return _kept[0](start, stream)
