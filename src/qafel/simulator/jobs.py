"""What a client will report follows from what it copied, its data and its random streams: all known when it starts.

So a job is a value, and `Trainer.perform` gives the same bytes in any process, at any time.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, final

from qafel.algorithm import Algorithm, HiddenState, LocalTraining, PolynomialStaleness, make_upload
from qafel.rng import Stream
from qafel.tasks.protocol import Task


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
    work: float = 1.0
    """The share of its local steps that the client gets done."""


@final
class Trainer:
    """Trains and encodes: the part of a run that costs time, without the clock."""

    def __init__(self, task: Task, algorithm: Algorithm, seed: int) -> None:
        self.task = task
        # The staleness law is the server's business; a user's own may not travel to another process.
        self.algorithm = replace(algorithm, staleness=PolynomialStaleness())
        self.seed = seed
        self.training_s = 0.0

    def perform(self, job: Job) -> bytes:
        """The upload that the job's client will send. Algorithm 2."""
        _, client, sequence, start, weight, work = job
        local = self.algorithm.local if work == 1 else _part_of(self.algorithm.local, work)
        began = perf_counter()
        trained = self.task.train(client, start.vector, local, Stream.named(self.seed, "train", client, sequence))
        self.training_s += perf_counter() - began
        stream = Stream.named(self.seed, "client-quantizer", client, sequence)
        return make_upload(start, trained, self.algorithm, stream, client=client, sequence=sequence, weight=weight)


def _part_of(local: LocalTraining, work: float) -> LocalTraining:
    """The whole steps or epochs that the share of work allows, at least one."""
    if local.steps is not None:
        return replace(local, steps=max(1, int(local.steps * work)))
    assert local.epochs is not None
    return replace(local, epochs=max(1, int(local.epochs * work)))
