"""Workers on a Ray cluster. Without a running cluster, a local one starts for the run.

Needs the extra `ray`. If a machine is lost, Ray restarts its actors, and their jobs run again.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from typing import Any, final

import numpy as np

from qafel.algorithm import Algorithm, Made
from qafel.errors import QafelError
from qafel.lazy import require_installed
from qafel.params import Vector
from qafel.simulator.executors.jobs import Executor, Job, WorkerSide, rows_of
from qafel.simulator.executors.processes import JOBS_PER_WORKER
from qafel.tasks.protocol import Task
from qafel.workers import WORKER, pack, unpack, worker_count


class _Actor(WorkerSide):
    """A worker. It makes the task once, then trains jobs."""

    def __init__(self, opening: bytes, number: int) -> None:
        os.environ[WORKER] = str(number)
        super().__init__(*unpack(opening))

    def perform(self, vectors: Vector, job: Job, exact: bool) -> tuple[Made | QafelError, float]:
        return self.train(job.attached(vectors, exact))

    def evaluate(self, model: Vector, parts: range) -> list[tuple[Any, ...]] | QafelError:
        return super().evaluate(model.copy(), parts)


@final
class RayCluster(Executor):
    """An executor of Ray actors on the cluster at `RAY_ADDRESS`, or on a new local cluster."""

    looks_ahead = True

    def __init__(self, workers: int, make_task: Callable[[], Task], algorithm: Algorithm, seed: int) -> None:
        require_installed("the ray executor", "ray", ray="Ray")
        ray: Any = importlib.import_module("ray")
        opening = pack((make_task, algorithm, seed), ray.cloudpickle.dumps)
        self._ray = ray
        self.workers = workers
        self.training_s = 0.0
        self._started = not ray.is_initialized()
        if self._started:
            address = os.environ.get("RAY_ADDRESS")
            local = {} if address else {"num_cpus": worker_count(workers), "include_dashboard": False}
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(_Actor)
        self._actors = [actor.remote(opening, number) for number in range(workers)]
        self._load = [0] * workers
        self._vectors: dict[int, tuple[Any, int]] = {}  # digest: (reference, how many jobs use it)
        self._pending: dict[int, tuple[Any, int, int]] = {}  # job: (reference, worker, digest)

    @property
    def room(self) -> int:
        return JOBS_PER_WORKER * len(self._actors) - len(self._pending)

    def submit(self, job: Job) -> None:
        start = job.start
        assert start is not None
        vectors, users = self._vectors.get(start.digest) or (self._ray.put(np.stack(rows_of(start))), 0)
        self._vectors[start.digest] = (vectors, users + 1)
        worker = min(range(len(self._actors)), key=self._load.__getitem__)
        self._load[worker] += 1
        reference = self._actors[worker].perform.remote(vectors, job.detached(), start.exact)
        self._pending[job.number] = (reference, worker, start.digest)

    def result(self, job: Job) -> Made:
        if job.number not in self._pending:
            self.submit(job)
        result, training_s = self._ray.get(self._forget(job))
        self.training_s += training_s
        if isinstance(result, QafelError):
            raise result
        made: Made = result
        return made

    def discard(self, job: Job) -> None:
        if job.number in self._pending:
            self._ray.cancel(self._forget(job))

    def _forget(self, job: Job) -> Any:
        """Forget a job; return the reference to its result."""
        reference, worker, digest = self._pending.pop(job.number)
        self._load[worker] -= 1
        vectors, users = self._vectors.pop(digest)
        if users > 1:
            self._vectors[digest] = (vectors, users - 1)
        return reference

    def evaluate_spans(self, model: Vector, spans: list[range]) -> list[list[tuple[Any, ...]] | QafelError]:
        reference = self._ray.put(model)
        asked = [actor.evaluate.remote(reference, span) for actor, span in zip(self._actors, spans, strict=False)]
        answers: list[list[tuple[Any, ...]] | QafelError] = self._ray.get(asked)
        return answers

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()
