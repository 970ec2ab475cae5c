"""Many runs made: what is finished is left alone, what was interrupted goes on, the rest is made.

Cheap runs go several at once, a process each; the others one after another, their clients trained by all workers.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeAlias, final

from qafel.config import Config
from qafel.errors import DataError, QafelError
from qafel.runs.directory import RunDirectory, settings_of, state_of
from qafel.runs.progress import Row
from qafel.runs.reading import Run
from qafel.runs.trackers import NOT_TRACKED, Track, group_tracks
from qafel.simulator.api import simulate
from qafel.simulator.executors import ExecutorName
from qafel.simulator.run import is_shorter_run, sound_checkpoint
from qafel.workers import Died, Perform, Tell, Workers, thread_limits

COST = {"cifar10": 80.0, "celeba": 100.0, "shakespeare": 6000.0}
"""Roughly how much longer an upload takes than one of a cheap task, of which several runs go at once."""

BETWEEN_ROWS_S = 0.2
"""The least time between two rows that a worker process reports."""


@final
@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: what it is called in tables and figures, where it stands in the sweep, and its configuration."""

    method: str
    config: Config
    at: Mapping[str, float | str] = field(default_factory=dict)
    """The values of what the entry varies, such as the concurrency."""

    @property
    def folder(self) -> str:
        return f"{self.config.name}-seed{self.config.seed}"

    @property
    def cheap(self) -> bool:
        """Whether several such runs go at once; a task of the user's own is taken to be small."""
        return self.config.task.name not in COST

    @property
    def work(self) -> float:
        """How much work it is, to compare with other runs: its uploads, as far as its limits tell, times their cost."""
        stop, timing = self.config.stop, self.config.timing
        limits = (
            stop.uploads,
            stop.server_steps and stop.server_steps * self.config.algorithm.buffer_size,
            stop.virtual_time and stop.virtual_time * timing.rate,
        )
        uploads = min((float(limit) for limit in limits if limit is not None), default=1.0)
        return uploads * COST.get(self.config.task.name, 1.0)


class Watcher(Protocol):
    """Who is told how the sweep goes."""

    def started(self, run: RunSpec) -> None: ...

    def progressed(self, run: RunSpec, row: Row) -> None: ...

    def noted(self, run: RunSpec, text: str) -> None: ...

    def ended(self, run: RunSpec, status: str) -> None: ...


def unique(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Every folder once: entries share runs."""
    return list({run.folder: run for run in runs}.values())


def unfinished(runs: Sequence[RunSpec], folder: Path) -> list[RunSpec]:
    """The runs that are still to be made, or to go on; each has its folder under `folder`."""
    return [run for run in unique(runs) if state_of(folder / run.folder, run.config) != "finished"]


def make_runs(
    runs: Sequence[RunSpec],
    folder: Path,
    watcher: Watcher,
    *,
    executor: ExecutorName = "processes",
    workers: int = 1,
    quick: bool = False,
    track: Track = NOT_TRACKED,
) -> dict[str, str]:
    """Make all runs that are not finished, each in its folder under `folder`; return why runs failed, by their folders.

    A run that diverges is a result like any other. The `watcher` is told how it goes. Clients train on the `executor`
    with so many `workers`; `quick` says that the runs are over before another process has loaded torch. `track` names
    the trackers that show the runs.
    """
    todo = unfinished(runs, folder)
    tracks = group_tracks(track, folder, {run.config.name: settings_of(run.config) for run in todo})
    at_once = [run for run in todo if run.cheap and executor != "inline" and workers > 1]
    failed = _at_once(at_once, folder, watcher, min(workers, len(at_once)), tracks) if at_once else {}
    for run in todo:
        if run in at_once:
            continue
        watcher.started(run)
        inside: ExecutorName = "inline" if run.cheap or workers == 1 or quick else executor
        told = partial(watcher.progressed, run), partial(watcher.noted, run)
        tracked = tracks[run.config.name]
        status, reason = _attempt(
            run.config, folder / run.folder, *told, executor=inside, workers=workers, track=tracked
        )
        if status == "failed":
            failed[run.folder] = reason
        watcher.ended(run, status)
    return failed


_Work: TypeAlias = tuple[int, Config, Path, Track]  # the number of a run in the sweep, what, where, who hears of it
_End: TypeAlias = tuple[str, str]  # the status of a run, and if it failed, why


def _at_once(
    runs: Sequence[RunSpec], folder: Path, watcher: Watcher, workers: int, tracks: Mapping[str, Track]
) -> dict[str, str]:
    """A process that dies takes only its own run with it."""
    failed, begun = {}, set()
    waiting = deque(
        (number, run.config, folder / run.folder, tracks[run.config.name]) for number, run in enumerate(runs)
    )
    pool: Workers[_Work, Row | str | _End] = Workers(workers, _begin, tries=1, environment=thread_limits(1))
    with pool:
        while waiting or pool.busy:
            while waiting and pool.give(waiting[0]):
                waiting.popleft()
            (number, *_), value = pool.next()
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
                    failed[run.folder] = reason
                watcher.ended(run, status)
    return failed


def _begin() -> Perform[_Work, _End]:
    return _in_worker


def _in_worker(work: _Work, tell: Tell) -> _End:
    """Make a run. A worker that is told to end saves it first, as Ctrl-C does, if it has begun."""
    _, config, path, track = work
    told_s = 0.0

    def progress(row: Row) -> None:
        nonlocal told_s
        if monotonic() - told_s > BETWEEN_ROWS_S:
            told_s = monotonic()
            tell(row)

    def end(*_: object) -> None:
        if not told_s:
            os._exit(1)
        if callable(interrupt := signal.getsignal(signal.SIGINT)):  # else it has been told already
            interrupt(signal.SIGINT, None)

    before = signal.signal(signal.SIGTERM, end)
    try:
        return _attempt(config, path, progress, tell, track=track)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)


def _attempt(*arguments: Any, **options: Any) -> _End:
    """Make a run, and say how it ended. A run that fails is no reason not to make the others."""
    try:
        return perform(*arguments, **options), ""
    except QafelError as error:
        return "failed", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"


def perform(
    config: Config,
    path: Path,
    progress: Callable[[Row], None] = lambda row: None,
    note: Callable[[str], None] = lambda text: None,
    *,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    track: Track = NOT_TRACKED,
) -> str:
    """Bring the run `config` in the folder `path` to its end, from its checkpoint if that is good; return its status.

    A run that ended before the limits of `config` goes on to them. Results of another run, or damaged ones, are moved
    aside, never removed; `note` is told. `progress` is called with every row. Clients train on the `executor` with so
    many `workers`; `track` names the trackers that show the run, and `note` is told of one that fails.
    """
    with RunDirectory(path) as directory:
        state = state_of(path, config)
        if state == "finished":  # by another sweep, while this one made other runs
            return str(Run.load(path).summary.get("status", "finished"))
        resume = state == "interrupted" and _is_sound(path)
        if state == "other limits":
            resume = is_shorter_run(path, config.stop)
        if not resume and (moved := directory.move_aside(rows_too=state != "absent")) is not None:
            found = "a damaged run" if state in ("damaged", "interrupted") else "a run with other settings"
            note(f"{found} was there, and is now {moved.name}")
        result = simulate(
            **config.arguments(),
            out=directory,
            resume=resume,
            executor=executor,
            workers=workers,
            check=False,
            on_row=progress,
            track=track,
            say=note,
        )
        return str(result.summary["status"])


def _is_sound(path: Path) -> bool:
    """Whether a run can go on. From a damaged checkpoint it begins anew; other errors leave it where it is."""
    try:
        sound_checkpoint(path)
    except DataError:
        return False
    return True
