"""The life of a worker process: make the task once, then train what comes, until the other end closes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple

import numpy as np

from qafel.algorithm import Algorithm, HiddenState
from qafel.errors import QafelError
from qafel.params import Vector
from qafel.simulator.jobs import Job, Trainer
from qafel.tasks.protocol import Divisible, Task


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
