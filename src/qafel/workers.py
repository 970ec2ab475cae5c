"""Supervised worker processes. If a worker dies, another one gets its work.

A worker calls `begin` once, then performs its work in the order received. An answer therefore belongs to the oldest
work without one, and that work caused a death.

Workers ignore Ctrl-C, which the parent handles, and exit with their parent. See
docs/decisions/simulator.md.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pickle import dumps, loads
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar, final

from qafel.errors import ConfigError, QafelError, UserError, WorkerLost
from qafel.parts import current_folder_first
from qafel.text import counted

Work = TypeVar("Work")
Value = TypeVar("Value")

Tell: TypeAlias = Callable[[Any], None]
Perform: TypeAlias = Callable[[Work, Tell], Value]
"""Performs work and returns the answer. May report progress with `tell`."""

MAX_FAILED_STARTS = 2
"""More failed starts than this raise `WorkerLost`."""

MOST_PER_CORE = 16
"""The most workers per core: more only take memory."""

WORKER = "QAFEL_WORKER"
"""The environment variable with a worker's number, from zero. A worker that replaces another one has its number."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def worker_count(asked: int | None = None, elsewhere: bool = False) -> int:
    """The number of workers to start: `asked`, or one per core.

    Raises `ConfigError` for more than this machine can use, unless they run `elsewhere`.
    """
    cores = os.cpu_count() or 1
    if asked is None:
        return cores
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ConfigError(f"workers is a whole number of at least 1; got {asked!r}")
    if asked > MOST_PER_CORE * cores and not elsewhere:
        have = f"this machine has {counted(cores, 'core')}"
        raise ConfigError(f"{asked:,} workers are too many: {have}, for at most {MOST_PER_CORE * cores:,}")
    return asked


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that limit numerical libraries to `threads` threads."""
    return dict.fromkeys(_THREADS, str(threads))


def pack(value: object, dumps: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """Pickle a value for another process. `unpack` reads it."""
    try:
        return dumps(value)
    except Exception as error:  # objects may raise anything here
        raise _not_portable(error) from error


def unpack(data: bytes) -> Any:
    """Read a value that `pack` wrote. Custom modules are imported from the current folder first."""
    try:
        with current_folder_first():
            return loads(data)
    except Exception as error:
        raise _not_portable(error) from error


def _not_portable(error: Exception) -> ConfigError:
    text = " ".join(str(error).split())
    return ConfigError(
        f"an object cannot be sent to another process ({type(error).__name__}: {text}). Define it at module level in "
        "a file, without locks or open files, or train inline"
    )


def portable(error: QafelError) -> QafelError:
    """Add the cause of an error as a note, because pickle drops causes."""
    if error.__cause__ is not None:
        error.add_note(f"In a worker process:\n{''.join(traceback.format_exception(error.__cause__))}")
    return error


class Died(NamedTuple):
    """The answer if too many workers died at the same work: how many, and the last exit code."""

    times: int
    exit_code: int | None


class Report(NamedTuple, Generic[Work, Value]):
    """Progress of some work, or its answer."""

    work: Work
    value: Value | Died


@final
@dataclass(eq=False)
class _Worker(Generic[Work]):
    """A process, our end of its connection, and the work without an answer, oldest first."""

    process: BaseProcess
    connection: Connection
    pending: deque[Work] = field(default_factory=deque)
    deaths: int = 0
    """Workers that died at the oldest work."""
    ready: bool = False


@final
class Workers(Generic[Work, Value]):
    """A context with worker processes. They start on entry and end on exit."""

    def __init__(
        self,
        count: int,
        begin: Callable[..., Perform[Work, Value]],
        arguments: Sequence[object] = (),
        *,
        tries: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare `count` workers, at least one.

        Each calls `begin(*arguments)` once and performs its work with the result. If `tries` workers died at the
        same work, its answer is `Died`. Workers inherit this process's environment, with the changes in `environment`.
        Functions, arguments, work and answers are pickled.
        """
        self._count = count
        self._opening = pack((begin, tuple(arguments)))
        self._tries = tries
        self._environment = environment or {}
        self._failed_starts = 0
        self._workers: list[_Worker[Work]] = []
        self._reports: deque[Report[Work, Value]] = deque()

    def __enter__(self) -> Self:
        try:
            for number in range(self._count):
                self._workers.append(self._start(number))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    def give(self, work: Work, at_most: int = 1) -> bool:
        """Give work to the least busy worker. False, without effect, if each has `at_most` pieces already."""
        worker = min(self._workers, key=lambda worker: len(worker.pending))
        if len(worker.pending) >= at_most:
            return False
        self._hand(worker, work)
        return True

    def give_each(self, works: Sequence[Work]) -> None:
        """Append one piece of work to each worker's queue. There are at most as many pieces as workers."""
        for index, work in enumerate(works):
            self._hand(self._workers[index], work)

    def next(self) -> Report[Work, Value]:
        """Wait for progress or an answer. At least one worker must have work.

        Raises `WorkerLost` if workers die at their start.
        """
        while not self._reports:
            by_connection: dict[object, _Worker[Work]] = {worker.connection: worker for worker in self._workers}
            for connection in wait(by_connection):  # type: ignore[arg-type]
                self._hear(by_connection[connection])
        return self._reports.popleft()

    def _hear(self, worker: _Worker[Work]) -> None:
        try:
            last, value = loads(worker.connection.recv_bytes())
        except (EOFError, OSError):  # between two messages, or in the middle of one
            self._replace(worker)
            return
        if not worker.ready:
            if value is not None:
                raise value
            worker.ready = True
        elif last:
            worker.deaths = 0
            self._reports.append(Report(worker.pending.popleft(), value))
        else:
            self._reports.append(Report(worker.pending[0], value))

    def _hand(self, worker: _Worker[Work], work: Work) -> None:
        message = dumps(work)
        try:
            worker.connection.send_bytes(message)
        except OSError:  # the worker died; `next` notices it if the worker was busy
            if not worker.pending:
                worker = self._replace(worker)
                with suppress(OSError):
                    worker.connection.send_bytes(message)
        worker.pending.append(work)

    def _start(self, number: int) -> _Worker[Work]:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        worker: _Worker[Work] = _Worker(context.Process(target=_serve, args=(theirs,)), ours)
        with _conditions({**self._environment, WORKER: str(number)}):
            worker.process.start()
        theirs.close()
        # Not as arguments of the process: `start` would wait forever for a child that died while reading them.
        with suppress(OSError):
            ours.send_bytes(self._opening)
        return worker

    def _replace(self, dead: _Worker[Work]) -> _Worker[Work]:
        """Start another worker with the work of a dead one, except for work that killed too many."""
        dead.connection.close()
        dead.process.join()
        code = dead.process.exitcode
        if not dead.ready:
            self._failed_starts += 1
        if self._failed_starts > MAX_FAILED_STARTS:
            raise WorkerLost(
                f"worker processes die at their start (exit code {code}); see their output above. A script that uses "
                'them must have its work under `if __name__ == "__main__":`'
            )
        pending = dead.pending
        deaths = dead.deaths + 1 if dead.ready and pending else dead.deaths
        if deaths >= self._tries:
            self._reports.append(Report(pending.popleft(), Died(deaths, code)))
            deaths = 0
        number = self._workers.index(dead)
        worker = self._workers[number] = self._start(number)
        worker.pending, worker.deaths = pending, deaths
        with suppress(OSError):
            for work in pending:
                worker.connection.send_bytes(dumps(work))
        return worker


def _serve(connection: Connection) -> None:
    """Worker main loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    def answer(value: object, last: bool = True) -> None:
        with suppress(OSError):  # the parent is gone; the next receive notices it
            connection.send_bytes(dumps((last, value)))

    try:
        opening = connection.recv_bytes()
    except (EOFError, OSError):
        return
    try:
        begin, arguments = unpack(opening)
        perform = begin(*arguments)
    except UserError as error:
        answer(portable(error))
        return
    answer(None)
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # nothing to clean up
        answer(perform(loads(message), partial(answer, last=False)))


def _exit_with_parent() -> None:
    """Exit when the parent dies, so that a restarted parent does not meet old workers."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _conditions(environment: Mapping[str, str]) -> Iterator[None]:
    """Processes started meanwhile inherit this environment, and ignore interrupts from the beginning."""
    before = {name: os.environ[name] for name in environment if name in os.environ}
    os.environ.update(environment)
    # Only the main thread may set signal handlers.
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGINT, handler)
        for name in environment:
            del os.environ[name]
        os.environ.update(before)
