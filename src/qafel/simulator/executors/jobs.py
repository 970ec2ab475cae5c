"""Jobs and executors. The same seed gives the same bits on any executor with any number of workers.

A client's upload follows from the model that it copied, its data and its random streams. All are known when it starts.
So a job is a value, and `Trainer.perform` gives the same bytes in any process, at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple, Self, final

from qafel.algorithm import Algorithm, Client, ClientRule, HiddenState, LocalTraining, Made, State, Trained
from qafel.errors import NonFiniteVector, PartFailed, QafelError
from qafel.params import Vector
from qafel.parts import raise_part_failed
from qafel.rng import Stream
from qafel.tasks.protocol import Divisible, Task, combined, evaluated, evaluated_parts, is_divisible
from qafel.text import path_of
from qafel.workers import portable


@final
class Job(NamedTuple):
    """A client in flight."""

    number: int
    """The number of starts in the run before this one."""
    client: int
    sequence: int
    """The number of this client's starts before this one."""
    version: int
    """Of the hidden state that it starts from."""
    weight: float
    steps: int | None
    """How many local steps the client completes before a round's deadline; None: all of them."""
    memory: State
    """The client rule's, when the client started."""
    start: HiddenState | None
    """None while a job travels to a worker, because its vectors travel separately, and once a job has trained early."""

    def detached(self) -> Job:
        """The job without its start."""
        return self._replace(start=None)

    def attached(self, vectors: Vector, exact: bool) -> Job:
        """The job with its start, from a copy of the rows that `rows_of` gave."""
        vector, *memory = vectors.copy()
        return self._replace(start=HiddenState.of(vector, self.version, *memory, exact=exact))


def rows_of(start: HiddenState) -> tuple[Vector, ...]:
    """The vector of a start, and its memory if that is another vector."""
    return (start.vector,) if start.memory is start.vector else (start.vector, start.memory)


@final
class Trainer:
    """Trains and encodes. This is the expensive part of a run, and needs no clock."""

    def __init__(self, task: Task, algorithm: Algorithm, seed: int) -> None:
        self.task = task
        self.algorithm = algorithm
        self.seed = seed
        self.training_s = 0.0
        self._client: Client | None = None
        """Reused for all jobs: a new client per job costs a twentieth of a small update."""

    def perform(self, job: Job) -> Made:
        """The upload that the job's client will send, and its memory after it. Algorithm 2."""
        _, number, sequence, _, weight, steps, memory, start = job
        assert start is not None
        local = self.algorithm.local if steps is None else replace(self.algorithm.local, steps=steps, epochs=None)
        if (client := self._client) is None:
            client = self._client = Client(number, start, self.algorithm, self.seed)
        client.number, client.hidden_state, client.sequence = number, start, sequence
        client.weight, client.memory = weight, memory
        for value in memory.values():  # a rule that changes its memory fails by name, on every executor
            value.flags.writeable = False
        return client.update(self._train, local)

    def _train(self, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector | Trained:
        assert self._client is not None
        began = perf_counter()
        try:
            trained = self.task.train(self._client.number, start, local, stream)
        except (Exception, SystemExit) as error:
            raise_part_failed(error, self.task, "train")
        self.training_s += perf_counter() - began
        return trained


class WorkerSide:
    """Trains and evaluates in another process. An error of this package is an answer."""

    def __init__(self, make_task: Callable[[], Task], algorithm: Algorithm, seed: int) -> None:
        self.trainer = Trainer(make_task(), algorithm, seed)

    def train(self, job: Job) -> tuple[Made | QafelError, float]:
        """The upload, and the seconds of training."""
        before = self.trainer.training_s
        try:
            made: Made | QafelError = self.trainer.perform(job)
        except QafelError as error:
            made = portable(error)
        return made, self.trainer.training_s - before

    def evaluate(self, model: Vector, parts: range) -> list[tuple[Any, ...]] | QafelError:
        """The sums of every part."""
        task = self.trainer.task
        assert isinstance(task, Divisible)
        try:
            return evaluated_parts(task, model, parts)
        except QafelError as error:
            return portable(error)


class Executor:
    """Takes jobs, gives uploads. A context manager, because an executor may hold processes.

    This class is the base: an executor that starts no job before its result is needed.
    """

    looks_ahead = False
    """Whether it starts jobs before the clock reaches their end."""
    workers = 1
    """How many train in parallel."""
    training_s = 0.0
    """Time spent in training, summed over workers."""

    @property
    def room(self) -> int:
        """How many more jobs it would start now, ahead of the clock."""
        return 0

    def submit(self, job: Job) -> None:
        """Start a job whose result will be needed later."""

    def result(self, job: Job) -> Made:
        """The job's upload and memory. Waits for it, and starts it first if it was not submitted."""
        raise NotImplementedError

    def discard(self, job: Job) -> None:
        """Drop a job, whether it was submitted or not."""

    def evaluate(self, task: Task, model: Vector) -> dict[str, float]:
        """The result of `task.evaluate`. Workers share the work if the task is `Divisible`."""
        if not is_divisible(task):
            return evaluated(task, model)
        sums: list[tuple[Any, ...]] = []
        for answer in self.evaluate_spans(model, spans(task.evaluation_parts, self.workers)):
            if isinstance(answer, QafelError):
                raise answer
            sums += answer
        return combined(task, sums)

    def evaluate_spans(self, model: Vector, spans: list[range]) -> list[list[tuple[Any, ...]] | QafelError]:
        """The sums of each span of evaluation parts, one worker for each."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release what the executor holds."""


@final
class Inline(Executor):
    """Runs a job when its result is needed, in this thread."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.result = trainer.perform  # type: ignore[method-assign]  # one call less per upload

    @property
    def training_s(self) -> float:  # type: ignore[override]
        return self.trainer.training_s

    def evaluate(self, task: Task, model: Vector) -> dict[str, float]:
        return evaluated(task, model)


_MOST_CHECK_S = 10.0


def require_pure(
    executor: Executor,
    task: Task,
    rule: ClientRule,
    start: HiddenState,
    say: Callable[[str], None],
    *,
    again: bool = True,
) -> bytes:
    """Raise `PartFailed` if two jobs of one client give different bits when they are trained `again`.

    The executor is idle, so one worker trains all of them. A check that takes too long is skipped, and `say` reports
    it. Returns the first upload; empty if it is not finite.
    """
    client, memory = task.clients - 1, rule.new_memory(start.vector.size)
    jobs = [Job(number, client, number, start.version, 1.0, None, memory, start) for number in (0, 1)]
    uploads: list[bytes] = []
    began = perf_counter()
    for job in (*jobs, *jobs) if again else jobs[:1]:
        if perf_counter() - began > _MOST_CHECK_S:
            say(f"skipped the check that {task.name} trains the same bits again: it takes over 10 s")
            return uploads[0] if uploads else b""
        try:
            uploads.append(executor.result(job).upload)
        except NonFiniteVector:  # the run itself reports this
            return uploads[0] if uploads else b""
        if len(uploads) == 1:
            began = perf_counter()  # the first job also starts workers and compiles
    if again and uploads[:2] != uploads[2:]:
        raise PartFailed(
            f"{path_of(task)}.train gave different bits when two jobs of a client were trained again. Move state of a "
            "client to a client rule (qafel.ClientRule), and draw random numbers from `stream`. Or use "
            "simulate(…, pure=False), which trains inline and cannot resume"
        )
    return uploads[0]


def spans(parts: int, workers: int) -> list[range]:
    """Cut the parts 0 … parts−1 into at most one span per worker. No span is empty."""
    count = min(parts, workers)
    return [range(parts * i // count, parts * (i + 1) // count) for i in range(count)]
