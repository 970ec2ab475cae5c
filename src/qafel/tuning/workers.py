"""Where trials run: in this process, or in several others, one trial each at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import NamedTuple, Protocol, Self, final

from qafel.errors import QafelError
from qafel.simulator import Row
from qafel.tuning.objective import Outcome
from qafel.tuning.trial import Job, run_trial

_DIED = "a worker process died; the same command goes on from here"


class Done(NamedTuple):
    """A trial that has ended: with an outcome, or an error that ends the search."""

    number: int
    outcome: Outcome | None
    error: str | QafelError | None = None


class Workers(Protocol):
    """`start` while there is room; `next_done` waits for one that has ended."""

    @property
    def room(self) -> int: ...
    @property
    def busy(self) -> int: ...
    def start(self, job: Job) -> None: ...
    def next_done(self) -> tuple[int, Outcome]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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

    def next_done(self) -> tuple[int, Outcome]:
        assert self._job is not None
        job, self._job = self._job, None
        return job.number, run_trial(job, self._progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@final
class Elsewhere:
    """Worker processes that share the machine's cores. They end with this process, however it ends."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._idle: list[Connection] = []
        self._working: list[Connection] = []
        self._processes: list[BaseProcess] = []

    @property
    def room(self) -> int:
        return len(self._idle)

    @property
    def busy(self) -> int:
        return len(self._working)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // self._count)
        for _ in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, threads))
            process.start()
            theirs.close()
            self._idle.append(ours)
            self._processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in (*self._idle, *self._working):
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()

    def start(self, job: Job) -> None:
        connection = self._idle.pop(0)
        self._working.append(connection)
        try:
            connection.send(job)
        except OSError:
            raise QafelError(_DIED) from None

    def next_done(self) -> tuple[int, Outcome]:
        ready = wait(self._working)[0]
        assert isinstance(ready, Connection)
        try:
            done: Done = ready.recv()
        except (EOFError, OSError):
            raise QafelError(_DIED) from None
        self._working.remove(ready)
        self._idle.append(ready)
        if isinstance(done.error, QafelError):
            raise done.error
        if done.outcome is None:
            raise QafelError(f"trial {done.number} failed: {done.error}")
        return done.number, done.outcome


def _serve(connection: Connection, threads: int) -> None:
    """Run the trials that come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends this process
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads))  # for torch, which is not loaded yet
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        try:
            done = Done(job.number, run_trial(job))
        except QafelError as error:
            done = Done(job.number, None, error)
        except Exception as error:
            done = Done(job.number, None, f"{type(error).__name__}: {error}")
        connection.send(done)


def _leave_with_the_parent() -> None:
    """A search that is killed must not go on in its workers, beside one that was started again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
