"""Local training at a client: the run's own task, in a thread or in another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeAlias

from qafel.algorithm import HiddenState, LocalTraining, Trained
from qafel.algorithm.client import Train
from qafel.config import Config
from qafel.config.tasks import CustomTask
from qafel.deployment.client import ClientSettings
from qafel.deployment.messages import Agreement
from qafel.errors import ConfigError, QafelError, WorkerLost
from qafel.params import Vector
from qafel.parts import errors_of
from qafel.rng import Stream
from qafel.tasks import Task
from qafel.tasks.protocol import ClientTraining, require_digest, sample_weights
from qafel.workers import Died, Tell, Workers, portable


def train_task(
    agreement: Agreement, client: int, settings: ClientSettings, expected: str | None = None
) -> tuple[Train, float]:
    """Return the training function of the run's task, and the weight of the client's updates.

    agreement  the run's agreement, which has its configuration
    client     the client whose data are used
    settings   the client's settings, which must name a custom task
    expected   the task that the user named, if any. Another task is refused.
    """
    config = agreement.config
    if expected not in (None, config.task.name):
        raise ConfigError(
            f"the run learns {config.task.name}, not {expected}: leave out `task`, or choose another `run`"
        )
    if isinstance(config.task, CustomTask):
        settings.require_named("task", config.task.name)
    toml = config.to_toml()
    return partial(_train_task, toml, client), _require_agreed(_made_task(toml), agreement, client)


def train_with(train: ClientTraining, agreement: Agreement, client: int, _: ClientSettings) -> tuple[Train, float]:
    """Return the training function of a task that exists already, and the weight of the client's updates."""
    if train.client != client:
        raise ConfigError(f"the training function is of client {train.client}, this is client {client}")
    return train, _require_agreed(train.task, agreement, client)


def initial_model(train: Train, agreement: Agreement) -> HiddenState | None:
    """x⁰, if the training function has the run's task, which makes it."""
    task = train.task if isinstance(train, ClientTraining) else None
    if isinstance(train, partial) and train.func is _train_task:
        task = _made_task(train.args[0])
    return None if task is None else HiddenState.of(agreement.config.initial_model(task))


def _require_agreed(task: Task, agreement: Agreement, client: int) -> float:
    """Return the weight of the client's updates. Raises unless the task is that of the run."""
    if not 0 <= client < task.clients:
        raise ConfigError(f"expected a client from 0 to {task.clients - 1}, got {client}")
    if task.layout != agreement.layout:
        found, expected = (f"{layout.size:,} parameters" for layout in (task.layout, agreement.layout))
        raise ConfigError(f"this client's model is not that of the run: it has {found}, expected {expected}")
    agreed = getattr(agreement.config.task, "digest", None)
    if agreed is not None:
        require_digest(task, agreed)
    return 1.0 if agreement.config.algorithm.client_weights == "equal" else sample_weights(task)[client]


@lru_cache(maxsize=1)
def _made_task(toml: str) -> Task:
    task: Task = Config.from_toml(toml, "the run's configuration").task.make()
    return task


def _train_task(toml: str, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
    """Train the task. Another process makes its own task."""
    return _made_task(toml).train(client, start, local, stream)


@contextmanager
def training_in(worker: str, train: Train) -> Iterator[Train]:
    """A context with the training function itself, for "thread", or with one that runs it in another process."""
    if worker == "thread":
        yield train
        return
    with Workers[_Work, Any](1, partial, (_answer, train), tries=1) as workers:

        def train_elsewhere(*work: Any) -> Vector | Trained:
            workers.give_each([work])
            while (report := workers.next()).work is not work:
                pass  # work of an attempt that failed before the process was ready
            if isinstance(report.value, Died):  # another process runs the next attempt
                raise WorkerLost(f"the training process died (exit code {report.value.exit_code})")
            if isinstance(report.value, Exception):
                raise report.value
            trained: Vector | Trained = report.value
            return trained

        yield train_elsewhere


_Work: TypeAlias = tuple[HiddenState, LocalTraining, Stream]


def _answer(train: Train, work: _Work, _: Tell) -> Vector | Trained | Exception:
    """Train in a worker process. Errors are answers, because an exception would end the process."""
    try:
        with errors_of("the training function"):
            return train(*work)
    except QafelError as error:
        return portable(error)
    except MemoryError as error:
        return error
