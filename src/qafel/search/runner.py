"""Make many runs, in this process or in worker processes.

`Runner` runs jobs of any kind. `make_runs` gives it simulations: it skips finished runs, resumes interrupted ones and
reports failures. Runs of small tasks get a process each. Runs of neural tasks follow one another, and all workers train
their clients.
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
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar, final

from qafel.config import Config
from qafel.errors import ConfigError, DataError, QafelError
from qafel.runs.directory import RunDirectory, settings_of, state_of
from qafel.runs.progress import Row
from qafel.runs.reading import Run
from qafel.runs.trackers import NOT_TRACKED, Track, group_tracks
from qafel.simulator.api import simulate
from qafel.simulator.executors import ExecutorName
from qafel.simulator.run import is_shorter_run, sound_checkpoint
from qafel.tasks.protocol import Task
from qafel.workers import Died, Perform, Tell, Workers, portable, thread_limits, worker_count

COST = {"cifar10": 80.0, "celeba": 100.0, "shakespeare": 6000.0}
"""Roughly how much longer an upload of a neural task takes than one of a small task."""

BETWEEN_ROWS_S = 0.2
"""The least time between two rows that a worker process reports."""

MAX_DEATHS = 2
"""A job fails if this many worker processes die while they run it."""

Key = TypeVar("Key")
Job: TypeAlias = Callable[[Tell, Task | None], Any]
"""A unit of work that can be pickled. It calls `tell` with news and receives the runner's shared task."""


class Ended(NamedTuple):
    """The end of a job: its value, or the error that ended it."""

    value: Any = None
    error: QafelError | None = None


@final
class Runner(Generic[Key]):
    """A context that runs jobs: one at a time in this process, or several in worker processes.

    The runner replaces a worker that dies and gives its job to the new one, which resumes from the last checkpoint.
    """

    def __init__(self, count: int, hear: Callable[[Key, Any], None], task: Task | None = None) -> None:
        """Run up to `count` jobs at a time.

        hear   Called in this process with a job's key and each of its news.
        task   A task that all jobs share, if it can be pickled. Without it, each job builds its task.
        """
        self._count, self._hear, self._task = count, hear, task
        self._here: tuple[Key, Job] | None = None
        self.busy = 0
        """The number of jobs that were started and have not been returned by `next_ended`."""
        self._pool: Workers[tuple[Key, Job], Any] | None = None
        self.cores = max(1, worker_count() // count)
        """How many cores each job may use."""
        if count > 1:
            limits = {name: value for name, value in thread_limits(self.cores).items() if name not in os.environ}
            make = partial(Workers, count, _begin, tries=MAX_DEATHS, environment=limits)
            try:
                self._pool = make((task,))
            except ConfigError:  # the task cannot be pickled, so that each job builds its own
                self._pool = make((None,))

    def __enter__(self) -> Self:
        if self._pool is not None:
            self._pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.__exit__()

    @property
    def room(self) -> int:
        """How many more jobs can start now."""
        return self._count - self.busy

    def start(self, key: Key, job: Job) -> None:
        """Start a job. There must be room."""
        self.busy += 1
        if self._pool is None:
            self._here = key, job
        else:
            self._pool.give((key, job))

    def next_ended(self) -> tuple[Key, Ended]:
        """Wait until a job ends. At least one must be under way."""
        value: Any
        if self._pool is None:
            assert self._here is not None
            (key, job), self._here = self._here, None
            value = _attempt(job, partial(self._hear, key), self._task)
        else:
            (key, _), value = self._pool.next()
            while not isinstance(value, Ended | Died):
                self._hear(key, value)
                (key, _), value = self._pool.next()
        self.busy -= 1
        if isinstance(value, Died):
            deaths = f"{value.times} worker processes died at it (last exit code {value.exit_code})"
            value = Ended(error=QafelError(f"{deaths}. If memory is short, try fewer `workers`."))
        return key, value


def _attempt(job: Job, tell: Tell, task: Task | None) -> Ended:
    try:
        return Ended(job(tell, task))
    except QafelError as error:
        return Ended(error=portable(error))
    except Exception as error:
        return Ended(error=QafelError(f"{type(error).__name__}: {error}"))


def _begin(task: Task | None) -> Perform[tuple[Any, Job], Ended]:
    return partial(_in_worker, task)


def _in_worker(task: Task | None, work: tuple[Any, Job], tell: Tell) -> Ended:
    """Run a job. On SIGTERM, a job that has reported a row saves its run first, as it does on Ctrl-C."""
    told_s = 0.0

    def report(news: object) -> None:
        nonlocal told_s
        if not isinstance(news, Row):
            tell(news)
        elif monotonic() - told_s > BETWEEN_ROWS_S:
            told_s = monotonic()
            tell(news)

    def end(*_: object) -> None:
        if not told_s:
            os._exit(1)
        if callable(interrupt := signal.getsignal(signal.SIGINT)):  # None: the run has received it already
            interrupt(signal.SIGINT, None)

    before = signal.signal(signal.SIGTERM, end)
    try:
        return _attempt(work[1], report, task)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)


@final
@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run to make.

    method   Its label in tables and figures.
    config   Its configuration, with name and seed.
    at       The values of the settings that the sweep varies.
    """

    method: str
    config: Config
    at: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of its run directory."""
        return f"{self.config.name}-seed{self.config.seed}"

    @property
    def cheap(self) -> bool:
        """Whether several such runs go in parallel. Custom tasks count as cheap."""
        return self.config.task.name not in COST

    @property
    def work(self) -> float:
        """An estimate of its work, to compare runs: its uploads, as far as its limits tell, times their cost."""
        stop, timing = self.config.stop, self.config.timing
        limits = (
            stop.uploads,
            stop.server_steps and stop.server_steps * self.config.algorithm.buffer_size,
            stop.virtual_time and stop.virtual_time * timing.rate,
        )
        uploads = min((float(limit) for limit in limits if limit is not None), default=1.0)
        return uploads * COST.get(self.config.task.name, 1.0)


class Watcher:
    """Receives the progress of runs. This one ignores it."""

    def started(self, run: RunSpec) -> None: ...

    def progressed(self, run: RunSpec, row: Row) -> None: ...

    def noted(self, run: RunSpec, text: str) -> None: ...

    def ended(self, run: RunSpec, status: str) -> None: ...


def unfinished(runs: Sequence[RunSpec], folder: Path) -> list[RunSpec]:
    """The runs without a finished run directory under `folder`, each once."""
    return [
        run
        for run in {run.folder: run for run in runs}.values()
        if state_of(folder / run.folder, run.config) != "finished"
    ]


def make_runs(
    runs: Sequence[RunSpec],
    folder: Path,
    watcher: Watcher,
    *,
    executor: ExecutorName = "processes",
    workers: int = 1,
    quick: bool = False,
    track: Track = NOT_TRACKED,
    task: Task | None = None,
) -> dict[str, str]:
    """Make all unfinished runs and return the reasons of failures by folder name. Divergence is not a failure.

    runs       The runs. Each gets a run directory under `folder`.
    watcher    Receives progress.
    executor   The executor for clients of neural tasks.
    workers    The number of worker processes.
    quick      Whether runs end before another process could load PyTorch. Then clients train inline.
    track      The trackers that show the runs.
    task       The built task, if all runs have the same one.
    """
    todo = unfinished(runs, folder)
    tracks = group_tracks(track, folder, {run.config.name: settings_of(run.config) for run in todo})
    parallel = [run for run in todo if run.cheap and executor != "inline" and workers > 1]
    failed: dict[str, str] = {}

    def hear(run: RunSpec, news: Row | str) -> None:
        if isinstance(news, Row):
            watcher.progressed(run, news)
        else:
            watcher.noted(run, news)

    for group, count in ((parallel, min(workers, len(parallel))), ([run for run in todo if run not in parallel], 1)):
        waiting = deque(group)
        with Runner(max(1, count), hear, task) as runner:
            while waiting or runner.busy:
                while waiting and runner.room:
                    run = waiting.popleft()
                    inside: ExecutorName = "inline" if run.cheap or workers == 1 or quick else executor
                    options = {"executor": inside, "workers": workers, "track": tracks[run.config.name]}
                    watcher.started(run)
                    runner.start(run, partial(_simulate, run.config, folder / run.folder, options))
                run, ended = runner.next_ended()
                if ended.error is not None:
                    failed[run.folder] = str(ended.error)
                watcher.ended(run, ended.value or "failed")
    return failed


def _simulate(config: Config, path: Path, options: Mapping[str, Any], tell: Tell, task: Task | None) -> str:
    return perform(config, path, tell, tell, task=task, **options)


def perform(
    config: Config,
    path: Path,
    progress: Callable[[Row], None] = lambda row: None,
    note: Callable[[str], None] = lambda text: None,
    *,
    task: Task | None = None,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    track: Track = NOT_TRACKED,
) -> str:
    """Bring a run to its end, from its checkpoint if that is sound, and return its status.

    A run that ended before the limits of `config` resumes up to them. Results of another run, or damaged ones, are
    moved aside and never removed.

    config     The run.
    path       Its run directory.
    progress   Called with every row.
    note       Called with messages, such as the new place of moved results.
    task       The configuration's task, if it is built already.
    executor   The executor for the clients, with `workers` processes.
    track      The trackers that show the run.
    """
    with RunDirectory(path) as directory:
        state = state_of(path, config)
        if state == "finished":  # another process finished it after the sweep began
            return str(Run.load(path).summary.get("status", "finished"))
        resume = state == "interrupted" and _is_sound(path)
        if state == "other limits":
            resume = is_shorter_run(path, config.stop)
        if not resume and (moved := directory.move_aside(rows_too=state != "absent")) is not None:
            found = "a damaged run" if state in ("damaged", "interrupted") else "a run with other settings"
            note(f"Moved {found} to {moved.name}.")
        result = simulate(
            **config.arguments(task),
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
    """Whether a run can resume. Raises errors other than damage."""
    try:
        sound_checkpoint(path)
    except DataError:
        return False
    return True
