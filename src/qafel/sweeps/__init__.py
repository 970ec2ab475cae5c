"""All runs of some entries: what is finished is left alone, what was interrupted goes on, the rest is made.

Cheap runs go several at once, a process each; the others one after another, their clients trained by all workers.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Protocol, Self, final

from qafel.errors import QafelError
from qafel.runs.directory import state_of
from qafel.runs.progress import Row
from qafel.simulator.executors import ExecutorName
from qafel.sweeps.run import Order, Planned, perform

# Several runs at once: processes that each simulate one run at a time and tell how it goes.
#
# A process that dies takes only its own run with it.


BETWEEN_ROWS_S = 0.2


class News(NamedTuple):
    """What a process says of its run: a row or a note on the way, its status at the end, or why it failed."""

    number: int
    row: Row | None = None
    status: str | None = None
    failure: str | None = None
    note: str | None = None

    @property
    def last(self) -> bool:
        return self.status is not None or self.failure is not None


def why(error: BaseException) -> str:
    """A failure in one line: our own errors speak for themselves."""
    return str(error) if isinstance(error, QafelError) else f"{type(error).__name__}: {error}"


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started within ignores interrupts from its first moment on: they are the parent's business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def serve(connection: Connection) -> None:
    """Perform orders until the other end closes."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            number, order = connection.recv()
            shown = 0.0

            def progress(row: Row, number: int = number) -> None:
                nonlocal shown
                if monotonic() - shown > BETWEEN_ROWS_S:
                    shown = monotonic()
                    connection.send(News(number, row=row))

            def note(text: str, number: int = number) -> None:
                connection.send(News(number, note=text))

            try:
                status = perform(order, progress, note)
            except Exception as error:  # a failed run is news, and the next may succeed
                connection.send(News(number, failure=why(error)))
            else:
                connection.send(News(number, status=status))


@final
class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(theirs,), daemon=True)
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()
        self.number: int | None = None

    def give(self, number: int, order: Order) -> None:
        self.number = number
        self.connection.send((number, order))

    def stop(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


@final
class Pool:
    """A context with a number of processes, started as they are needed."""

    def __init__(self, workers: int) -> None:
        self._most = workers
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def perform(self, orders: Sequence[Order]) -> Iterator[News]:
        """Give out all orders, and yield the news of them as they come."""
        waiting = list(enumerate(orders))[::-1]
        while waiting or any(worker.number is not None for worker in self._workers):
            for worker in self._idle(len(waiting)):
                self._give(worker, waiting)
            busy = {worker.connection: worker for worker in self._workers if worker.number is not None}
            # With nobody to hear from, as when the only process died idle, `wait` would wait for ever.
            for connection in wait(list(busy)) if busy else ():
                yield self._hear(busy[connection])  # type: ignore[index]

    def _idle(self, wanted: int) -> list[_Worker]:
        idle = [worker for worker in self._workers if worker.number is None]
        while len(idle) < wanted and len(self._workers) < self._most:
            idle.append(_Worker())
            self._workers.append(idle[-1])
        return idle[:wanted]

    def _give(self, worker: _Worker, waiting: list[tuple[int, Order]]) -> None:
        """Hand over the next order; a process that died idle had no run to take with it, and another is hired."""
        number, order = waiting.pop()
        try:
            worker.give(number, order)
        except OSError:
            self._workers.remove(worker)
            worker.stop()
            waiting.append((number, order))

    def _hear(self, worker: _Worker) -> News:
        assert worker.number is not None
        try:
            news: News = worker.connection.recv()
        except (EOFError, OSError):  # it died, perhaps in the middle of a message
            worker.connection.close()
            worker.process.join()
            self._workers.remove(worker)
            return News(worker.number, failure=f"its process ended with exit code {worker.process.exitcode}")
        if news.last:
            worker.number = None
        return news


class Watcher(Protocol):
    """Who is told how the sweep goes."""

    def started(self, run: Planned) -> None: ...

    def progressed(self, run: Planned, row: Row) -> None: ...

    def noted(self, run: Planned, text: str) -> None: ...

    def ended(self, run: Planned, status: str) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A run that could not be made."""

    run: Planned
    reason: str


def unique(runs: Sequence[Planned]) -> list[Planned]:
    """Every folder once: entries share runs."""
    return list({run.folder: run for run in runs}.values())


def unfinished(runs: Sequence[Planned], folder: Path) -> list[Planned]:
    """The runs that are still to be made, or to go on."""
    return [run for run in unique(runs) if state_of(folder / run.folder, run.config) != "finished"]


def sweep(
    runs: Sequence[Planned],
    folder: Path,
    watcher: Watcher,
    *,
    executor: ExecutorName = "processes",
    workers: int = 1,
    quick: bool = False,
) -> list[Failure]:
    """Make all runs that are not finished; return those that failed. A run that diverges is a result like any other."""
    todo = unfinished(runs, folder)
    at_once = executor != "inline" and workers > 1
    together = [run for run in todo if run.cheap and at_once]
    others = [run for run in todo if not (run.cheap and at_once)]
    failures = _at_once(together, folder, watcher, min(workers, len(together))) if together else []
    # A quick run is over before another process has loaded torch.
    inside: ExecutorName = "inline" if workers == 1 or quick else executor
    return failures + _in_turn(others, folder, watcher, inside, workers)


def _at_once(runs: Sequence[Planned], folder: Path, watcher: Watcher, workers: int) -> list[Failure]:
    failures, begun = [], set()
    with Pool(workers) as pool:
        for news in pool.perform([Order(run.config, folder / run.folder) for run in runs]):
            run = runs[news.number]
            if news.number not in begun:
                begun.add(news.number)
                watcher.started(run)
            if news.row is not None:
                watcher.progressed(run, news.row)
            elif news.note is not None:
                watcher.noted(run, news.note)
            elif news.failure is not None:
                failures.append(Failure(run, news.failure))
                watcher.ended(run, "failed")
            else:
                watcher.ended(run, news.status or "finished")
    return failures


def _in_turn(
    runs: Sequence[Planned], folder: Path, watcher: Watcher, executor: ExecutorName, workers: int
) -> list[Failure]:
    failures = []
    for run in runs:
        watcher.started(run)
        inside: ExecutorName = "inline" if run.cheap else executor
        order = Order(run.config, folder / run.folder, inside, None if inside == "inline" else workers)
        try:
            status = perform(order, partial(watcher.progressed, run), partial(watcher.noted, run))
        except Exception as error:  # the rest is still to be made
            failures.append(Failure(run, why(error)))
            status = "failed"
        watcher.ended(run, status)
    return failures
