"""Supervised worker processes: start, hand out work, notice a death, hand the work out again.

A worker first makes what it works with (`begin`), then performs one piece of work after another, in the order in which
it was given them. So an answer needs no label: it belongs to the oldest piece that the worker has not answered, and a
death is the fault of that piece alone.

Workers ignore Ctrl-C, which is their parent's business, and end with their parent, however it ends. See
docs/decisions/one-supervisor-of-workers.md.
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
from qafel.parts import import_module, own_modules
from qafel.text import counted

Work = TypeVar("Work")
Value = TypeVar("Value")

Tell: TypeAlias = Callable[[Any], None]
Perform: TypeAlias = Callable[[Work, Tell], Value]
"""Performs a piece of work and returns the answer; calls `tell` with any news on the way."""

MAX_FAILED_STARTS = 2
"""So many workers may end before they are ready; one more, and they all would."""

MOST_PER_CORE = 16
"""So many workers a core may be asked for: more only take memory, and thousands take the machine."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def worker_count(asked: int | None = None, elsewhere: bool = False) -> int:
    """How many workers to start: as many as were `asked` for, or one per core.

    Raises `ConfigError` for more than this machine can use, unless they run `elsewhere`.
    """
    cores = os.cpu_count() or 1
    if asked is None:
        return cores
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ConfigError(f"workers is a number of processes, 1 or more; got {asked!r}")
    if asked > MOST_PER_CORE * cores and not elsewhere:
        have = f"{counted(cores, 'core')}, of use to at most {MOST_PER_CORE * cores:,}"
        raise ConfigError(f"{asked:,} workers are too many: this machine has {have}")
    return asked


def thread_limits(threads: int) -> dict[str, str]:
    """The environment in which numerical libraries use at most `threads` threads."""
    return dict.fromkeys(_THREADS, str(threads))


def pack(value: object, dumps: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """The value for another process, with the user's own modules that it may need; `unpack` reads it there."""
    try:
        packed = dumps(value)
    except Exception as error:  # of pickle's or of an object's own, and of any type
        raise _not_portable(error) from error
    return pickle.dumps((own_modules(), packed))


def unpack(data: bytes) -> Any:
    """What `pack` packed. The user's own modules are found as they were there: in the current folder first."""
    modules, packed = loads(data)
    for module in modules:
        with suppress(ConfigError):  # of another value, it may be gone by now; whether this one needs it shows below
            import_module(module)
    try:
        return loads(packed)
    except Exception as error:
        raise _not_portable(error) from error


def _not_portable(error: Exception) -> ConfigError:
    text = " ".join(str(error).split())
    return ConfigError(
        f"an object cannot be sent to another process ({type(error).__name__}: {text}): define it, its class or "
        "function at module level in a file, without locks or open files; or train inline"
    )


def portable(error: QafelError) -> QafelError:
    """The error for another process: its cause, which does not travel, is told in a note."""
    if error.__cause__ is not None:
        error.add_note(f"In a worker process:\n{''.join(traceback.format_exception(error.__cause__))}")
    return error


class Died(NamedTuple):
    """Stands for an answer when too many workers died at a piece of work: how many, and how the last one ended."""

    times: int
    exit_code: int | None


class Report(NamedTuple, Generic[Work, Value]):
    """What became of a piece of work: news on the way, or at last its answer."""

    work: Work
    value: Value | Died


@final
@dataclass(eq=False)
class _Worker(Generic[Work]):
    """One process, our end of its connection, and the work that it has not answered, the oldest first."""

    process: BaseProcess
    connection: Connection
    pending: deque[Work] = field(default_factory=deque)
    deaths: int = 0
    """How many workers died at the oldest piece of work."""
    ready: bool = False


@final
class Workers(Generic[Work, Value]):
    """A context with worker processes; they start when it is entered and have ended when it is left."""

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

        Each calls `begin(*arguments)` once and performs its work with what that returns. Work at which `tries` workers
        died is answered with `Died`. The `environment` is added to the workers' own. Functions, arguments, work and
        answers are pickled.
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
            for _ in range(self._count):
                self._workers.append(self._start())
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

    @property
    def busy(self) -> int:
        """How many workers have something to do."""
        return sum(bool(worker.pending) for worker in self._workers)

    def give(self, work: Work, at_most: int = 1) -> bool:
        """Hand the work to the least busy worker; False, and nothing done, if each has `at_most` pieces already."""
        worker = min(self._workers, key=lambda worker: len(worker.pending))
        if len(worker.pending) >= at_most:
            return False
        self._hand(worker, work)
        return True

    def give_each(self, works: Sequence[Work]) -> None:
        """Hand one piece of work to each worker, behind what it has; there are at most as many as workers."""
        for index, work in enumerate(works):
            self._hand(self._workers[index], work)

    def next(self) -> Report[Work, Value]:
        """Wait for news or an answer. Something must have been handed out.

        Raises `WorkerLost` if workers end before they are ready.
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
        except OSError:  # it has died; if it was busy, that shows when its answers have been read
            if not worker.pending:
                worker = self._replace(worker)
                with suppress(OSError):
                    worker.connection.send_bytes(message)
        worker.pending.append(work)

    def _start(self) -> _Worker[Work]:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        worker: _Worker[Work] = _Worker(context.Process(target=_serve, args=(theirs,)), ours)
        with _conditions(self._environment):
            worker.process.start()
        theirs.close()
        # Not as arguments of the process: `start` would wait for ever for a child that died before it read them all.
        with suppress(OSError):
            ours.send_bytes(self._opening)
        return worker

    def _replace(self, dead: _Worker[Work]) -> _Worker[Work]:
        """Start another worker in place of a dead one, with its work; but for that which killed too many."""
        dead.connection.close()
        dead.process.join()
        code = dead.process.exitcode
        if not dead.ready:
            self._failed_starts += 1
        if self._failed_starts > MAX_FAILED_STARTS:
            raise WorkerLost(
                f"worker processes end before they begin (exit code {code}): what they print above says why; a script "
                'that uses them must have its work under `if __name__ == "__main__":`'
            )
        pending = dead.pending
        deaths = dead.deaths + 1 if dead.ready and pending else dead.deaths
        if deaths >= self._tries:
            self._reports.append(Report(pending.popleft(), Died(deaths, code)))
            deaths = 0
        worker = self._workers[self._workers.index(dead)] = self._start()
        worker.pending, worker.deaths = pending, deaths
        with suppress(OSError):
            for work in pending:
                worker.connection.send_bytes(dumps(work))
        return worker


def _serve(connection: Connection) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()

    def answer(value: object, last: bool = True) -> None:
        with suppress(OSError):  # nobody listens any more, which shows when the next work is awaited
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
            os._exit(0)  # what a worker holds ends with it: nothing is to be tidied up
        answer(perform(loads(message), partial(answer, last=False)))


def _leave_with_the_parent() -> None:
    """Work must not go on beside that of a parent that was killed and started again."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _conditions(environment: Mapping[str, str]) -> Iterator[None]:
    """What starts meanwhile has this environment too, and ignores interrupts from its first moment on."""
    before = {name: os.environ[name] for name in environment if name in os.environ}
    os.environ.update(environment)
    # Only the main thread may say what a signal does.
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
