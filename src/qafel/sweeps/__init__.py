"""All runs of some entries: what is finished is left alone, what was interrupted goes on, the rest is made.

Cheap runs go several at once, a process each; the others one after another, their clients trained by all workers. All
of them together are handled here:

run        one run in its folder: finished, to be resumed, or to be made
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeAlias, final

from qafel.config import Config
from qafel.errors import QafelError
from qafel.runs.directory import state_of
from qafel.runs.progress import Row
from qafel.simulator.executors import ExecutorName
from qafel.sweeps.run import Planned, perform
from qafel.workers import Died, Perform, Tell, Workers, thread_limits

BETWEEN_ROWS_S = 0.2


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
    """The runs that are still to be made, or to go on; each has its folder under `folder`."""
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
    """Make all runs that are not finished, each in its folder under `folder`; return those that failed.

    A run that diverges is a result like any other. The `watcher` is told how it goes. Clients train on the `executor`
    with so many `workers`; `quick` says that the runs are over before another process has loaded torch.
    """
    todo = unfinished(runs, folder)
    at_once = executor != "inline" and workers > 1
    together = [run for run in todo if run.cheap and at_once]
    others = [run for run in todo if not (run.cheap and at_once)]
    failures = _at_once(together, folder, watcher, min(workers, len(together))) if together else []
    inside: ExecutorName = "inline" if workers == 1 or quick else executor
    return failures + _in_turn(others, folder, watcher, inside, workers)


def _in_turn(
    runs: Sequence[Planned], folder: Path, watcher: Watcher, executor: ExecutorName, workers: int
) -> list[Failure]:
    failures = []
    for run in runs:
        watcher.started(run)
        inside: ExecutorName = "inline" if run.cheap else executor
        status, reason = _attempt(
            run.config,
            folder / run.folder,
            partial(watcher.progressed, run),
            partial(watcher.noted, run),
            executor=inside,
            workers=None if inside == "inline" else workers,
        )
        if status == "failed":
            failures.append(Failure(run, reason))
        watcher.ended(run, status)
    return failures


_Work: TypeAlias = tuple[int, Config, Path]  # the number of a run in the sweep, what, and where
_End: TypeAlias = tuple[str, str]  # the status of a run, and if it failed, why


def _at_once(runs: Sequence[Planned], folder: Path, watcher: Watcher, workers: int) -> list[Failure]:
    """A process that dies takes only its own run with it."""
    failures, begun = [], set()
    waiting = deque((number, run.config, folder / run.folder) for number, run in enumerate(runs))
    pool: Workers[_Work, Row | str | _End] = Workers(workers, _begin, tries=1, environment=thread_limits(1))
    with pool:
        while waiting or pool.busy:
            while waiting and pool.give(waiting[0]):
                waiting.popleft()
            (number, _, _), value = pool.next()
            if isinstance(value, Died):
                value = "failed", f"its process ended with exit code {value.exit_code}"
            run = runs[number]
            if number not in begun:
                begun.add(number)
                watcher.started(run)
            if isinstance(value, Row):
                watcher.progressed(run, value)
            elif isinstance(value, str):
                watcher.noted(run, value)
            else:
                status, reason = value
                if status == "failed":
                    failures.append(Failure(run, reason))
                watcher.ended(run, status)
    return failures


def _attempt(*arguments: Any, **options: Any) -> _End:
    """Make a run, and say how it ended. A run that fails is no reason not to make the others."""
    try:
        return perform(*arguments, **options), ""
    except QafelError as error:
        return "failed", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"


def _begin() -> Perform[_Work, _End]:
    return _in_worker


def _in_worker(work: _Work, tell: Tell) -> _End:
    _, config, path = work
    told_s = 0.0

    def progress(row: Row) -> None:
        nonlocal told_s
        if monotonic() - told_s > BETWEEN_ROWS_S:
            told_s = monotonic()
            tell(row)

    return _attempt(config, path, progress, tell)
