"""Worker processes on this machine; vectors and uploads cross through shared memory.

At most eight jobs per worker run or wait for the clock. That keeps workers busy while the clock waits for a late
result, and bounds memory whatever the number of clients in flight. A worker holds enough jobs for a moment. The others
wait here for the first free worker, because a client may have a hundred times the data of another. A worker that dies
is replaced, and its jobs run again: they give the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple, Self, TypeAlias, final

import numpy as np

from qafel.algorithm import Algorithm, HiddenState, Made, State
from qafel.algorithm.messages import HEADER_BYTES
from qafel.errors import QafelError, WorkerLost
from qafel.params import Vector
from qafel.simulator.executors.jobs import Executor, Job, WorkerSide, rows_of
from qafel.tasks.protocol import Task
from qafel.workers import Died, Tell, Workers, thread_limits

JOBS_PER_WORKER = 8

MAX_DEATHS = 3

_BUSY_S = 0.02  # handing a job over takes far less
_READY_PER_WORKER = 64
"""How many uploads may wait for the clock. While the clock waits for a client that has just started, other workers
need work: with eight uploads, they idled a fifth of the time."""
_READY_BYTES = 1 << 28
_QUEUED_BYTES = 1 << 14
"""Jobs with a larger memory go to idle workers only. Otherwise parent and worker could each wait for the other to
receive: a connection buffers little."""


class TrainingWork(NamedTuple):
    """A job for a worker. Its start is in shared memory, and its upload will be."""

    job: Job
    """Without its start."""
    digest: int
    """Of the hidden state that it starts from."""
    rows: int
    """The number of vectors of that hidden state: one, or two if its memory is another vector."""
    exact: bool
    vector_slot: int
    upload_slot: int


class EvaluationWork(NamedTuple):
    """Some parts of an evaluation. The model is in shared memory."""

    parts: range


TrainingAnswer: TypeAlias = tuple[int, State, float]
"""The number of bytes in the upload slot, the client's memory, and the seconds of training."""

EvaluationAnswer: TypeAlias = list[tuple[Any, ...]]
"""The sums of every part."""


@final
class SharedSlots:
    """Shared memory for `slots` hidden states of two vectors, one vector to evaluate, and `slots` uploads.

    Pickled, it opens the same memory in another process.
    """

    def __init__(self, slots: int, dimension: int, upload_bytes: int, name: str | None = None) -> None:
        """Make the memory, or open the existing one with this `name`."""
        self._arguments = (slots, dimension, upload_bytes)
        self._first_upload = 4 * dimension * (2 * slots + 1)
        size = self._first_upload + slots * upload_bytes
        self._memory = SharedMemory(name) if name else SharedMemory(create=True, size=size)
        assert self._memory.buf is not None
        vectors = np.frombuffer(self._memory.buf, np.float32, (2 * slots + 1) * dimension)
        self.evaluated, self.states = vectors[:dimension], vectors[dimension:].reshape(slots, 2, dimension)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedSlots, (*self._arguments, self._memory.name)

    def upload(self, slot: int) -> memoryview:
        assert self._memory.buf is not None
        start = self._first_upload + slot * self._arguments[2]
        return self._memory.buf[start : start + self._arguments[2]]

    def remove(self) -> None:
        """Free the memory."""
        del self.evaluated, self.states
        self._memory.close()
        self._memory.unlink()


@final
class _Performer(WorkerSide):
    """Performs work in a worker process. One thread: parallelism is the number of workers."""

    def __init__(self, make_task: Callable[[], Task], algorithm: Algorithm, seed: int, shared: SharedSlots) -> None:
        super().__init__(make_task, algorithm, seed)
        self._shared = shared

    def __call__(
        self, work: TrainingWork | EvaluationWork, tell: Tell
    ) -> TrainingAnswer | EvaluationAnswer | QafelError:
        if isinstance(work, EvaluationWork):
            return self.evaluate(self._shared.evaluated, work.parts)
        rows = self._shared.states[work.vector_slot, : work.rows]
        made, training_s = self.train(work.job.attached(rows, work.exact))
        if isinstance(made, QafelError):
            return made
        self._shared.upload(work.upload_slot)[: len(made.upload)] = made.upload
        return len(made.upload), made.memory, training_s


@final
class Processes(Executor):
    """An executor of `workers` processes."""

    looks_ahead = True

    def __init__(
        self, workers: int, make_task: Callable[[], Task], algorithm: Algorithm, seed: int, dimension: int
    ) -> None:
        """Prepare the processes, which start when the context is entered.

        `make_task` and `algorithm` are pickled. `dimension` is the length of the model's vector.
        """
        self.workers = workers
        self.training_s = 0.0
        slots = JOBS_PER_WORKER * workers
        upload_bytes = HEADER_BYTES + algorithm.client_quantizer.max_payload_bytes(dimension)
        self._shared = SharedSlots(slots, dimension, upload_bytes)
        with self._freed_on_error():
            self._pool: Workers[TrainingWork | EvaluationWork, Any] = Workers(
                workers,
                _Performer,
                (make_task, algorithm, seed, self._shared),
                tries=MAX_DEATHS,
                environment=thread_limits(1),
            )
        self._most_ready = max(slots, min(_READY_PER_WORKER * workers, _READY_BYTES // upload_bytes))
        memory = algorithm.client_rule.new_memory(dimension)
        queues = sum(value.nbytes for value in memory.values()) <= _QUEUED_BYTES
        self._most_queued = JOBS_PER_WORKER if queues else 1
        self._free_uploads = list(range(slots))
        self._free_vectors = list(range(slots))
        self._held: dict[int, tuple[int, int]] = {}  # digest: (slot, how many jobs use it)
        self._submitted: set[int] = set()
        self._discarded: set[int] = set()
        self._waiting: OrderedDict[int, TrainingWork] = OrderedDict()  # the one to be handed out next first
        self._ready: dict[int, Made | QafelError] = {}
        self._jobs_done = 0
        self._evaluated: dict[EvaluationWork, EvaluationAnswer | QafelError] = {}

    @property
    def room(self) -> int:
        return max(0, min(len(self._free_uploads), self._most_ready - len(self._ready)))

    def submit(self, job: Job) -> None:
        while not self._free_uploads:
            self._collect()
        start = job.start
        assert start is not None
        slots = self._hold(start), self._free_uploads.pop()
        work = TrainingWork(job.detached(), start.digest, len(rows_of(start)), start.exact, *slots)
        self._waiting[job.number] = work
        self._submitted.add(job.number)
        self._hand_out()

    def result(self, job: Job) -> Made:
        number = job.number
        if number not in self._submitted:
            self.submit(job)
        if number in self._waiting:
            self._waiting.move_to_end(number, last=False)
        while number not in self._ready:
            self._collect()
        self._submitted.remove(number)
        ready = self._ready.pop(number)
        if isinstance(ready, QafelError):
            raise ready
        return ready

    def discard(self, job: Job) -> None:
        number = job.number
        if (work := self._waiting.pop(number, None)) is not None:
            self._release(work)
        elif number in self._submitted and self._ready.pop(number, None) is None:
            self._discarded.add(number)  # a worker is at it
        self._submitted.discard(number)

    def evaluate_spans(self, model: Vector, spans: list[range]) -> list[EvaluationAnswer | QafelError]:
        """See docs/decisions/simulator.md."""
        self._shared.evaluated[:] = model
        works = [EvaluationWork(parts) for parts in spans]
        self._pool.give_each(works)
        while len(self._evaluated) < len(works):
            self._collect()
        return [self._evaluated.pop(work) for work in works]

    def _hold(self, hidden_state: HiddenState) -> int:
        """The slot with the hidden state. States with the same vectors share a slot."""
        digest = hidden_state.digest
        slot, users = self._held.get(digest) or (self._free_vectors.pop(), 0)
        if not users:
            rows = rows_of(hidden_state)
            self._shared.states[slot, : len(rows)] = rows
        self._held[digest] = (slot, users + 1)
        return slot

    def _release(self, work: TrainingWork) -> None:
        slot, users = self._held.pop(work.digest)
        if users > 1:
            self._held[work.digest] = (slot, users - 1)
        else:
            self._free_vectors.append(slot)
        self._free_uploads.append(work.upload_slot)

    def _hand_out(self) -> None:
        """Give each worker enough jobs, the least busy one first."""
        depth = min(self._most_queued, 1 + int(_BUSY_S * self._jobs_done / (self.training_s or _BUSY_S)))
        while self._waiting:
            number = next(iter(self._waiting))
            if not self._pool.give(self._waiting[number], depth):
                return
            del self._waiting[number]

    def _collect(self) -> None:
        """Wait for an answer and store it."""
        work, value = self._pool.next()
        if isinstance(value, Died):
            at = f"the update of client {work.job.client}" if isinstance(work, TrainingWork) else "an evaluation"
            raise WorkerLost(
                f"workers died {value.times} times (last exit code {value.exit_code}) at {at}, perhaps for lack of "
                "memory: use fewer workers, or the inline executor"
            )
        if isinstance(work, EvaluationWork):
            self._evaluated[work] = value
        else:
            self._take(work, value)
        self._hand_out()

    def _take(self, work: TrainingWork, answer: TrainingAnswer | QafelError) -> None:
        if work.job.number in self._discarded:
            self._discarded.remove(work.job.number)
        elif isinstance(answer, QafelError):
            self._ready[work.job.number] = answer
        else:
            length, memory, training_s = answer
            self.training_s += training_s
            self._jobs_done += 1
            self._ready[work.job.number] = Made(bytes(self._shared.upload(work.upload_slot)[:length]), memory)
        self._release(work)

    @contextmanager
    def _freed_on_error(self) -> Iterator[None]:
        """A context that frees the shared memory if it fails."""
        try:
            yield
        except BaseException:
            self._shared.remove()
            raise

    def __enter__(self) -> Self:
        with self._freed_on_error():
            self._pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._pool.__exit__()
        finally:
            self._shared.remove()
