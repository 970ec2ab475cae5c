"""Jobs, and what runs them. Same seed, same bits, on any executor with any number of workers.

What a client will report follows from what it copied, its data and its random streams: all known when it starts. So a
job is a value, and `Trainer.perform` gives the same bytes in any process, at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, Protocol, Self, final

from qafel.algorithm import Algorithm, Client, ClientRule, HiddenState, LocalTraining, Made, State, Trained
from qafel.errors import NonFiniteVector, PartFailed
from qafel.params import Vector
from qafel.parts import raise_blamed
from qafel.rng import Stream
from qafel.tasks.protocol import Task, evaluated
from qafel.text import path_of


@final
class Job(NamedTuple):
    """A client in flight."""

    number: int
    """Counts the run's starts."""
    client: int
    sequence: int
    """Counts the client's own starts."""
    version: int
    """Of the hidden state that it starts from."""
    weight: float
    steps: int | None
    """How many local steps the client gets done by a round's deadline; None: all of them."""
    memory: State
    """The client rule's, when the client started."""
    start: HiddenState | None
    """None of a job that crosses to a worker: its vector takes another way."""

    def detached(self) -> Job:
        """The job without its vector."""
        return self._replace(start=None)

    def attached(self, vector: Vector) -> Job:
        """The job with the vector that it starts from; the vector is copied."""
        return self._replace(start=HiddenState.of(vector.copy(), self.version))


@final
class Trainer:
    """Trains and encodes: the part of a run that costs time, without the clock."""

    def __init__(self, task: Task, algorithm: Algorithm, seed: int) -> None:
        self.task = task
        self.algorithm = algorithm
        self.seed = seed
        self.training_s = 0.0
        self._client: Client | None = None
        """Each job's client in its turn: making a new one for every job takes a twentieth of a small update."""

    def perform(self, job: Job) -> Made:
        """The upload that the job's client will send, and its memory after it. Algorithm 2."""
        _, number, sequence, _, weight, steps, memory, start = job
        assert start is not None
        local = self.algorithm.local if steps is None else replace(self.algorithm.local, steps=steps, epochs=None)
        if (client := self._client) is None:
            client = self._client = Client(number, start, self.algorithm, self.seed)
        client.number, client.hidden_state, client.sequence = number, start, sequence
        client.weight, client.memory = weight, memory
        return client.update(self._train, local)

    def _train(self, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
        assert self._client is not None
        began = perf_counter()
        try:
            trained = self.task.train(self._client.number, start, local, stream)
        except (Exception, SystemExit) as error:
            raise_blamed(error, self.task, "train")
        self.training_s += perf_counter() - began
        return trained


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

    def result(self, job: Job) -> Made:
        """The job's upload and memory; waits for it, and begins it first if it was not submitted."""
        ...

    def discard(self, job: Job) -> None:
        """Give up a job, whether it was submitted or not."""
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

    def discard(self, job: Job) -> None:
        """Nothing began."""

    def evaluate(self, task: Task, model: Vector) -> dict[str, float]:
        return evaluated(task, model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to release."""


_MOST_CHECK_S = 10.0


def require_pure(
    executor: Executor, task: Task, rule: ClientRule, start: HiddenState, say: Callable[[str], None]
) -> None:
    """Raise `PartFailed` if two jobs of one client, trained again one after the other, give other bits than before.

    The executor has nothing else to do yet, so that one worker trains all of them. A check that takes too long is
    skipped, and `say` is told.
    """
    client, memory = task.clients - 1, rule.new_memory(start.vector.size)
    jobs = [Job(number, client, number, start.version, 1.0, None, memory, start) for number in (0, 1)]
    uploads: list[bytes] = []
    began = perf_counter()
    for job in (*jobs, *jobs):
        if perf_counter() - began > _MOST_CHECK_S:
            say(f"skipped the check that {task.name} trains the same bits again: it takes over 10 s")
            return
        try:
            uploads.append(executor.result(job).upload)
        except NonFiniteVector:  # the run itself says that it diverges
            return
        if len(uploads) == 1:
            began = perf_counter()  # the first one also starts workers and compiles
    if uploads[:2] != uploads[2:]:
        raise PartFailed(
            f"{path_of(task)}.train gave other bits when it trained two jobs of one client again: move what it keeps "
            "of a client to a client rule (qafel.ClientRule), draw random numbers from `stream`, or use "
            "simulate(…, pure=False), which trains inline and does not resume"
        )


def spans(parts: int, workers: int) -> list[range]:
    """The parts 0 … parts−1 cut into one span per worker, none of them empty."""
    count = min(parts, workers)
    return [range(parts * i // count, parts * (i + 1) // count) for i in range(count)]
