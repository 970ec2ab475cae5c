"""Worker processes for trials.

A worker that dies is replaced, and its job begins again from its last checkpoint; a job that kills two workers has
failed, and the search goes on without it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self, final

from qafel.errors import QafelError
from qafel.tuning.outcome import failure
from qafel.tuning.trial import Job
from qafel.tuning.workers import Done, attempt

MAX_DEATHS = 2


@final
class _Worker:
    """One process, its connection, its job, and how many workers died at that job."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.ready = False
        self.job: Job | None = None
        self.deaths = 0

    def give(self, job: Job, deaths: int = 0) -> None:
        self.job, self.deaths = job, deaths
        with suppress(OSError):  # it has died, which shows when its answer is read
            self.connection.send(job)


@final
class Elsewhere:
    """Worker processes that share the machine's cores. They end with this process, however it ends."""

    def __init__(self, count: int) -> None:
        self._threads = max(1, (os.cpu_count() or 1) // count)
        self._count = count
        self._stillborn = 0
        self._workers: list[_Worker] = []

    @property
    def room(self) -> int:
        return sum(worker.job is None for worker in self._workers)

    @property
    def busy(self) -> int:
        return len(self._workers) - self.room

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._workers.append(self._hire())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.terminate()
            worker.process.join()

    def start(self, job: Job) -> None:
        next(worker for worker in self._workers if worker.job is None).give(job)

    def next_done(self) -> Done:
        while True:
            by_connection = {worker.connection: worker for worker in self._workers if worker.job is not None}
            connection = wait(list(by_connection))[0]
            assert isinstance(connection, Connection)
            if (done := self._hear(by_connection[connection])) is not None:
                return done

    def _hear(self, worker: _Worker) -> Done | None:
        """What a worker has to say: that it is ready, how its job ended, or, by its silence, that it died."""
        try:
            answer = worker.connection.recv()
        except (EOFError, OSError):
            return self._replace(worker)
        if answer is None:
            worker.ready = True
            return None
        job, worker.job = worker.job, None
        assert job is not None
        return Done(job, *answer)

    def _hire(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._threads))
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _replace(self, dead: _Worker) -> Done | None:
        """Hire another worker, and give it the dead one's job; unless that job has killed enough of them."""
        dead.process.join()
        dead.connection.close()
        code = dead.process.exitcode
        self._stillborn += not dead.ready
        if self._stillborn > MAX_DEATHS:
            raise QafelError(
                f"worker processes end before they begin (exit code {code}): what they print above says why; a script "
                'that uses them must have its work under `if __name__ == "__main__":`'
            )
        worker = self._hire()
        self._workers[self._workers.index(dead)] = worker
        job, deaths = dead.job, dead.deaths + dead.ready
        assert job is not None
        if deaths < MAX_DEATHS:
            worker.give(job, deaths)
            return None
        told = f"workers died {deaths} times (last exit code {code}) at it: is memory short? Try fewer --workers"
        return Done(job, failure(told), QafelError(f"trial {job.number} failed: {told}"))


def _serve(connection: Connection, threads: int) -> None:
    """Run the jobs that come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends this process
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads))  # for torch, which is not loaded yet
    connection.send(None)
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        connection.send(attempt(job))


def _leave_with_the_parent() -> None:
    """A search that is killed must not go on in its workers, beside one that was started again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
