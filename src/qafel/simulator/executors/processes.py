"""Worker processes on this machine; vectors and uploads cross through shared memory.

At most eight jobs per worker are under way or wait for the clock: enough that no worker idles while the clock waits for
one late result, and so few that memory stays at some vectors however many clients are in flight. A worker holds as many
of them as keep it busy for a moment; the others wait here for whoever is free first, because a client may have a
hundred times the data of the next one. A worker that dies is replaced, and its jobs run again: they give the same
bytes.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import NamedTuple, Self, final

import numpy as np

from qafel.algorithm import Algorithm, HiddenState
from qafel.algorithm.messages import HEADER_BYTES
from qafel.errors import ConfigError, QafelError
from qafel.params import Vector
from qafel.simulator.executors.jobs import Job, Trainer, shares
from qafel.tasks.protocol import Divisible, Task

# The life of a worker process: make the task once, then train what comes, until the other end closes.


class Order(NamedTuple):
    """A job as it crosses to a worker: its vector lies in shared memory, and its upload will."""

    number: int
    client: int
    sequence: int
    weight: float
    work: float
    version: int
    vector_slot: int
    upload_slot: int


class Done(NamedTuple):
    """What comes back: how many bytes of the upload slot are filled, or why there are none."""

    number: int
    length: int
    training_s: float
    error: QafelError | None = None


class Exam(NamedTuple):
    """Parts of an evaluation as they cross to a worker; the model lies in shared memory."""

    number: int
    vector_slot: int
    first: int
    last: int


class Marks(NamedTuple):
    """What comes back: the sums of every part, or why there are none."""

    number: int
    sums: list[tuple[float, ...]]
    error: QafelError | None = None


class Arena(NamedTuple):
    """The shared memory of an executor: `slots` vectors and one to be evaluated, then `slots` uploads."""

    name: str
    slots: int
    dimension: int
    upload_bytes: int

    @property
    def size(self) -> int:
        return 4 * self.dimension * (self.slots + 1) + self.slots * self.upload_bytes

    def vectors(self, memory: SharedMemory) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        assert memory.buf is not None
        rows = self.slots + 1
        return np.frombuffer(memory.buf, np.float32, rows * self.dimension).reshape(rows, self.dimension)

    def upload(self, memory: SharedMemory, slot: int) -> memoryview:
        assert memory.buf is not None
        start = 4 * self.dimension * (self.slots + 1) + slot * self.upload_bytes
        return memory.buf[start : start + self.upload_bytes]


class Employment(NamedTuple):
    """What a worker is told first."""

    make_task: Callable[[], Task]
    algorithm: Algorithm
    seed: int
    arena: Arena


def serve(connection: Connection) -> None:
    """Perform orders until the connection closes. One thread: parallelism is the number of workers."""
    try:
        make_task, algorithm, seed, arena = Employment(*connection.recv())
    except EOFError:
        return  # the other end has gone already
    trainer = Trainer(make_task(), algorithm, seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    memory = SharedMemory(arena.name)
    vectors = arena.vectors(memory)
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        connection.send(None)
        while True:
            order: Order | Exam = connection.recv()
            if isinstance(order, Exam):
                connection.send(_examine(order, trainer.task, vectors[order.vector_slot]))
            else:
                connection.send(_perform(order, trainer, vectors, arena, memory))
    del vectors
    memory.close()


def _perform(
    order: Order,
    trainer: Trainer,
    vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    arena: Arena,
    memory: SharedMemory,
) -> Done:
    before = trainer.training_s
    start = HiddenState.of(vectors[order.vector_slot].copy(), order.version)
    try:
        upload = trainer.perform(Job(order.number, order.client, order.sequence, start, order.weight, order.work))
    except QafelError as error:
        return Done(order.number, 0, trainer.training_s - before, error)
    arena.upload(memory, order.upload_slot)[: len(upload)] = upload
    return Done(order.number, len(upload), trainer.training_s - before)


def _examine(exam: Exam, task: Task, model: Vector) -> Marks:
    assert isinstance(task, Divisible)
    try:
        return Marks(exam.number, [task.evaluate_part(model, part) for part in range(exam.first, exam.last)])
    except QafelError as error:
        return Marks(exam.number, [], error)


JOBS_PER_WORKER = 8


MAX_DEATHS = 2


_BUSY_S = 0.02  # handing a job over takes far less


_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


class WorkerLost(QafelError):
    """Workers died again and again at the same job."""

    reason = "worker-lost"


@final
class _Worker:
    """One process, its connection, and the orders it has not answered."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.orders: dict[int, Order | Exam] = {}
        self.ready = False


@final
class Processes:
    """An executor of `workers` processes."""

    looks_ahead = True

    def __init__(
        self, workers: int, make_task: Callable[[], Task], algorithm: Algorithm, seed: int, dimension: int
    ) -> None:
        if workers < 1:
            raise ConfigError(f"there is at least one worker, got {workers}")
        self.workers = workers
        self.training_s = 0.0
        slots = JOBS_PER_WORKER * workers
        upload_bytes = HEADER_BYTES + algorithm.client_quantizer.max_payload_bytes(dimension)
        self._arena = Arena("", slots, dimension, upload_bytes)
        self._memory = SharedMemory(create=True, size=self._arena.size)
        self._arena = self._arena._replace(name=self._memory.name)
        self._vectors = self._arena.vectors(self._memory)
        self._employment = Employment(make_task, algorithm, seed, self._arena)
        self._free_uploads = list(range(slots))
        self._free_vectors = list(range(slots))
        self._held: dict[int, tuple[int, int]] = {}  # version: (slot, how many orders use it)
        self._waiting: OrderedDict[int, Order] = OrderedDict()  # the one to be handed out next first
        self._ready: dict[int, bytes | QafelError] = {}
        self._jobs_done = 0
        self._marks: dict[int, Marks] = {}
        self._deaths: dict[int, int] = {}
        self._stillborn = 0
        self._workers = [self._hire() for _ in range(workers)]

    @property
    def room(self) -> int:
        return max(0, len(self._free_uploads) - len(self._ready))

    def submit(self, job: Job) -> None:
        while not self._free_uploads:
            self._collect()
        order = Order(
            job.number,
            job.client,
            job.sequence,
            job.weight,
            job.work,
            job.hidden_state.version,
            self._hold(job),
            self._free_uploads.pop(),
        )
        self._waiting[order.number] = order
        self._hand_out()

    def result(self, job: Job) -> bytes:
        if not self._is_known(job.number):
            self.submit(job)
        if job.number in self._waiting:
            self._waiting.move_to_end(job.number, last=False)
        while job.number not in self._ready:
            self._collect()
        ready = self._ready.pop(job.number)
        if isinstance(ready, QafelError):
            raise ready
        return ready

    def evaluate(self, task: Task, model: Vector) -> dict[str, float]:
        if not isinstance(task, Divisible):
            return task.evaluate(model)
        slot = self._arena.slots
        self._vectors[slot] = model
        exams = [
            Exam(-1 - i, slot, first, last)  # jobs count from 0 upwards, exams from −1 downwards
            for i, (first, last) in enumerate(shares(task.evaluation_parts, len(self._workers)))
        ]
        for worker, exam in zip(self._workers.copy(), exams, strict=False):
            self._send(worker, exam)
        while len(self._marks) < len(exams):
            self._collect()
        marks = [self._marks.pop(exam.number) for exam in exams]
        for mark in marks:
            if mark.error is not None:
                raise mark.error
        return task.combine([sums for mark in marks for sums in mark.sums])

    def _is_known(self, number: int) -> bool:
        known = number in self._ready or number in self._waiting
        return known or any(number in worker.orders for worker in self._workers)

    def _hold(self, job: Job) -> int:
        """The slot with the job's hidden state; one slot per version in use."""
        version = job.hidden_state.version
        slot, users = self._held.get(version) or (self._free_vectors.pop(), 0)
        if not users:
            self._vectors[slot] = job.hidden_state.vector
        self._held[version] = (slot, users + 1)
        return slot

    def _release(self, order: Order) -> None:
        slot, users = self._held.pop(order.version)
        if users > 1:
            self._held[order.version] = (slot, users - 1)
        else:
            self._free_vectors.append(slot)
        self._free_uploads.append(order.upload_slot)

    def _hand_out(self) -> None:
        """Give every worker as much as it should have, the least busy one first."""
        depth = min(JOBS_PER_WORKER, 1 + int(_BUSY_S * self._jobs_done / (self.training_s or _BUSY_S)))
        while self._waiting:
            worker = min(self._workers, key=lambda worker: len(worker.orders))
            if len(worker.orders) >= depth:
                return
            self._send(worker, self._waiting.popitem(last=False)[1])

    def _send(self, worker: _Worker, order: Order | Exam) -> None:
        worker.orders[order.number] = order
        try:
            worker.connection.send(order)
        except OSError:
            self._replace(worker)

    def _collect(self) -> None:
        """Wait for one or more answers, and take them."""
        by_connection = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection)):
            assert isinstance(connection, Connection)
            worker = by_connection[connection]
            try:
                done: Done | Marks | None = connection.recv()
            except (EOFError, OSError):  # at the end of a message, or in the middle of one
                self._replace(worker)
                continue
            if done is None:
                worker.ready = True
            else:
                self._take(worker.orders.pop(done.number), done)
        self._hand_out()

    def _take(self, order: Order | Exam, done: Done | Marks) -> None:
        self._deaths.pop(order.number, None)
        if isinstance(done, Marks):
            self._marks[done.number] = done
            return
        assert isinstance(order, Order)
        self.training_s += done.training_s
        self._jobs_done += 1
        upload = bytes(self._arena.upload(self._memory, order.upload_slot)[: done.length])
        self._ready[order.number] = done.error or upload
        self._release(order)

    def _hire(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        with _environment(_ONE_THREAD):
            process.start()
        theirs.close()
        # Not as arguments of the process: `start` would wait for ever for a child that died before it read them all.
        with suppress(OSError):
            ours.send(self._employment)
        return _Worker(process, ours)

    def _replace(self, dead: _Worker) -> None:
        """Hire another worker for the dead one's orders."""
        dead.process.join()
        dead.connection.close()
        code = dead.process.exitcode
        if not dead.ready:
            self._stillborn += 1
        if self._stillborn > MAX_DEATHS:
            raise WorkerLost(
                f"worker processes end before they begin (exit code {code}): what they print above says why; a script "
                'that uses them must have its work under `if __name__ == "__main__":`'
            )
        for number, order in dead.orders.items():
            self._deaths[number] = self._deaths.get(number, 0) + 1
            if self._deaths[number] > MAX_DEATHS:
                at = "an evaluation" if isinstance(order, Exam) else f"the update of client {order.client}"
                raise WorkerLost(
                    f"workers died {self._deaths[number]} times (last exit code {code}) at {at}: is memory short? "
                    "Try fewer workers, or the inline executor"
                )
        worker = self._hire()
        self._workers[self._workers.index(dead)] = worker
        worker.orders.update(dead.orders)
        for order in dead.orders.values():
            if worker in self._workers:  # else it died as well, and its successor has all of them
                self._send(worker, order)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        del self._vectors
        self._memory.close()
        self._memory.unlink()


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Change the environment for what starts meanwhile."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
