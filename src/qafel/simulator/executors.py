"""Where jobs run. Results do not depend on it: same seed, same bits, on any executor with any number of workers."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, final

from qafel.params import Vector
from qafel.simulator.jobs import Job, Trainer
from qafel.tasks.protocol import Task


class Executor(Protocol):
    """Takes jobs, gives uploads. A context manager, as it may hold processes."""

    @property
    def looks_ahead(self) -> bool:
        """Whether it ever begins jobs ahead of the clock."""
        ...

    @property
    def room(self) -> int:
        """How many more jobs it would begin now, ahead of the clock."""
        ...

    @property
    def workers(self) -> int:
        """How many train at once."""
        ...

    @property
    def training_s(self) -> float:
        """Time spent in training, summed over workers."""
        ...

    def submit(self, job: Job) -> None:
        """Begin a job whose result will be wanted later."""
        ...

    def result(self, job: Job) -> bytes:
        """The job's upload; waits for it, and begins it first if it was not submitted."""
        ...

    def evaluate(self, task: Task, model: Vector) -> dict[str, float]:
        """What `task.evaluate` returns; workers share the work where the task can be divided."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@final
class Inline:
    """Runs a job when its result is wanted, in this thread."""

    looks_ahead = False
    room = 0
    workers = 1

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.result = trainer.perform

    @property
    def training_s(self) -> float:
        return self._trainer.training_s

    def submit(self, job: Job) -> None:
        """Nothing begins ahead of time here."""

    def evaluate(self, task: Task, model: Vector) -> dict[str, float]:
        return task.evaluate(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to release."""


def shares(parts: int, workers: int) -> list[tuple[int, int]]:
    """The parts 0 … parts−1 cut into one span (first, behind the last) per worker, none of them empty."""
    count = min(parts, workers)
    return [(parts * i // count, parts * (i + 1) // count) for i in range(count)]
