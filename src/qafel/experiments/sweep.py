"""All runs of some entries: what is finished is left alone, what was interrupted goes on, the rest is made.

Cheap runs go several at once, a process each; the others one after another, their clients trained by all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, final

from qafel.experiments.one_run import Order, perform, state_of
from qafel.experiments.plan import Planned
from qafel.experiments.pool import Pool, why
from qafel.simulator.executor_choice import ExecutorName
from qafel.simulator.measure import Row


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
    return [run for run in unique(runs) if state_of(run.config, folder / run.folder) != "finished"]


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
