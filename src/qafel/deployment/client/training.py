"""A client's local training: of a task of this package, in our process or in one of its own."""

from __future__ import annotations

from concurrent.futures import Executor, ProcessPoolExecutor
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


@final
class TaskTraining:
    """A training function that can be sent to another process: it makes its task again there."""

    def __init__(self, agreement: Agreement, client: int) -> None:
        self._config = agreement.config
        self._local: LocalTraining = agreement.algorithm().local
        self._client = client
        self._task: Task | None = self._make()
        if not 0 <= client < self._task.clients:
            raise ConfigError(f"the run has clients 0 to {self._task.clients - 1}, not {client}")
        self.weight = _weight(self._config, self._task, client)

    def __call__(self, start: Vector, stream: Stream) -> Vector:
        if self._task is None:
            self._task = self._make()
        return self._task.train(self._client, start, self._local, stream)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_task": None}

    def _make(self) -> Task:
        task: Task = self._config.task.make()
        return task


def _weight(config: Config, task: Task, client: int) -> float:
    """One, or the client's samples over the mean."""
    if config.algorithm.client_weights == "equal":
        return 1.0
    return sample_weights(task)[client]


def in_worker(train: Train, worker: str) -> tuple[Train, Executor | None]:
    """The training function as it is, or one that has it run in another process; and the executor to shut down."""
    if worker == "thread":
        return train, None
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_keep, initargs=(train,))

    def in_process(start: Vector, stream: Stream) -> Vector:
        return pool.submit(_train, start, stream).result()

    return in_process, pool


_kept: list[Train] = []  # in a worker process: what it trains with


def _keep(train: Train) -> None:
    _kept[:] = [train]


def _train(start: Vector, stream: Stream) -> Vector:
    return _kept[0](start, stream)
