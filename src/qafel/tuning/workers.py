"""Where trials run: in this process, or in several others (`processes`), one job each at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import NamedTuple, Protocol, Self, final

from qafel.errors import QafelError
from qafel.simulator import Row
from qafel.tuning.objective import Outcome, failure
from qafel.tuning.trial import Job, run_trial


class Done(NamedTuple):
    """A job that has ended. Where it failed, the outcome says so, and `error` is there to be raised."""

    job: Job
    outcome: Outcome
    error: QafelError | None = None


class Workers(Protocol):
    """`start` while there is room; `next_done` waits for one that has ended."""

    @property
    def room(self) -> int: ...
    @property
    def busy(self) -> int: ...
    def start(self, job: Job) -> None: ...
    def next_done(self) -> Done: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def attempt(job: Job, progress: Callable[[Row], None] | None = None) -> tuple[Outcome, QafelError | None]:
    """Run a job. What goes wrong in it is an outcome too: other settings may do better."""
    try:
        return run_trial(job, progress), None
    except QafelError as error:
        return failure(str(error)), error
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return failure(told), QafelError(f"trial {job.number} failed: {told}")


@final
class Here:
    """One trial at a time, in this process."""

    def __init__(self, progress: Callable[[Row], None] | None = None) -> None:
        self._progress = progress
        self._job: Job | None = None

    @property
    def room(self) -> int:
        return int(self._job is None)

    @property
    def busy(self) -> int:
        return int(self._job is not None)

    def start(self, job: Job) -> None:
        self._job = job

    def next_done(self) -> Done:
        assert self._job is not None
        job, self._job = self._job, None
        return Done(job, *attempt(job, self._progress))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


# Worker processes for trials.
#
# A worker that dies is replaced, and its job begins again from its last checkpoint; a job that kills two workers has
# failed, and the search goes on without it.


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
