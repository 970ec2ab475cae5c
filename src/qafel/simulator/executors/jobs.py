"""Jobs, and what runs them. Same seed, same bits, on any executor with any number of workers.

What a client will report follows from what it copied, its data and its random streams: all known when it starts. So a
job is a value, and `Trainer.perform` gives the same bytes in any process, at any time.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, Protocol, Self, final

from qafel.algorithm import Algorithm, HiddenState, local_update
from qafel.params import Vector
from qafel.parts import blaming
from qafel.rng import Stream
from qafel.tasks.protocol import Task, evaluated, takes_version


@final
class Job(NamedTuple):
    """A client in flight."""

    number: int
    """Counts the run's starts."""
    client: int
    sequence: int
    """Counts the client's own starts."""
    hidden_state: HiddenState
    weight: float
    steps: int | None = None
    """How many local steps the client gets done by a round's deadline; None: all of them."""
    memory: Vector | None = None
    """What the client's upload is relative to (MCM); None: zero."""


@final
class Trainer:
    """Trains and encodes: the part of a run that costs time, without the clock."""

    def __init__(self, task: Task, algorithm: Algorithm, seed: int) -> None:
        self.task = task
        self.algorithm = algorithm
        self.seed = seed
        self.training_s = 0.0
        self._tells_version = takes_version(task.train)

    def perform(self, job: Job) -> bytes:
        """The upload that the job's client will send. Algorithm 2."""
        _, client, sequence, start, weight, steps, memory = job
        local = self.algorithm.local if steps is None else replace(self.algorithm.local, steps=steps, epochs=None)
        told = {"version": start.version} if self._tells_version else {}

        def train(vector: Vector, stream: Stream) -> Vector:
            began = perf_counter()
            with blaming(self.task, "train"):
                trained = self.task.train(client, vector, local, stream, **told)
            self.training_s += perf_counter() - began
            return trained

        return local_update(
            start, train, self.algorithm, self.seed, client=client, sequence=sequence, weight=weight, memory=memory
        )


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
        """What `task.evaluate` returns; workers share the work if the task can be divided."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


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
        return evaluated(task, model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to release."""


def spans(parts: int, workers: int) -> list[range]:
    """The parts 0 … parts−1 cut into one span per worker, none of them empty."""
    count = min(parts, workers)
    return [range(parts * i // count, parts * (i + 1) // count) for i in range(count)]
