"""Search settings of a recipe for the least cost of reaching its target.

Trials go to the workers until there are enough; then the best of them run again, on unseen seeds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, final

from qafel.config import Config
from qafel.errors import ConfigError, OutputError, QafelError, UserError
from qafel.lazy import require_installed
from qafel.params import Layout
from qafel.runs.progress import Row
from qafel.search.result import Save, SearchProgress, Tuning, Watch, check_best
from qafel.search.space import Search, check_search, default_search
from qafel.search.trial import (
    OBJECTIVES,
    Objective,
    ObjectiveName,
    Trial,
    TrialOutcome,
    TrialWork,
    best_of,
    failure,
    run_trial,
    together,
)
from qafel.simulator.executors import ExecutorName
from qafel.workers import Died, Perform, Workers, thread_limits, worker_count

if TYPE_CHECKING:
    from qafel.search.study import Study  # needs Optuna, an optional extra

FEW = 5
"""If so many trials failed and none did not, the rest would fail as well."""

MAX_DEATHS = 2
"""A trial at which so many workers died has failed."""

SAVE_EVERY_S = 30.0


class FinishedTrial(NamedTuple):
    """A trial, or some seeds of it, that has ended. If it failed, `outcome` says so, and `error` may be raised."""

    work: TrialWork
    outcome: TrialOutcome
    error: QafelError | None = None


def attempt(work: TrialWork, progress: Callable[[Row], None] | None = None) -> FinishedTrial:
    """Run a trial. What goes wrong in it is an outcome too: other settings may do better."""
    try:
        return FinishedTrial(work, run_trial(work, progress))
    except QafelError as error:
        return FinishedTrial(work, failure(str(error)), error)
    except Exception as error:
        return _failed(work, f"{type(error).__name__}: {error}")


def _failed(work: TrialWork, told: str) -> FinishedTrial:
    return FinishedTrial(work, failure(told), QafelError(f"trial {work.trial.number} failed: {told}"))


def _begin() -> Perform[TrialWork, FinishedTrial]:
    return lambda work, tell: attempt(work)


@final
class TrialRunner:
    """A context in which trials run: one at a time in this process, or several in others, which share its cores.

    A worker process that dies is replaced, and its trial goes on from its last checkpoint.
    """

    def __init__(self, count: int, progress: Callable[[Row], None] | None = None) -> None:
        """Run `count` trials at a time; `progress` hears of the rows of those that run in this process."""
        self._count = count
        self._progress = progress
        self._here: TrialWork | None = None
        self._pool: Workers[TrialWork, FinishedTrial] | None = None
        self.cores = max(1, worker_count() // count)
        """How many cores a trial has to itself."""
        if count > 1:
            limits = {name: value for name, value in thread_limits(self.cores).items() if name not in os.environ}
            self._pool = Workers(count, _begin, tries=MAX_DEATHS, environment=limits)

    def __enter__(self) -> Self:
        if self._pool is not None:
            self._pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.__exit__()

    @property
    def busy(self) -> int:
        """How many trials are under way."""
        return int(self._here is not None) if self._pool is None else self._pool.busy

    @property
    def room(self) -> int:
        """How many more may be started."""
        return self._count - self.busy

    def start(self, work: TrialWork) -> None:
        """Begin a trial; there must be room."""
        if self._pool is None:
            self._here = work
        else:
            self._pool.give(work)

    def next_finished(self) -> FinishedTrial:
        """Wait for a trial that has ended; one must be under way."""
        if self._pool is None:
            assert self._here is not None
            work, self._here = self._here, None
            return attempt(work, self._progress)
        work, answer = self._pool.next()
        if not isinstance(answer, Died):
            return answer
        deaths = f"workers died {answer.times} times (last exit code {answer.exit_code}) at it"
        return _failed(work, f"{deaths}: is memory short? Try fewer `workers`")


@final
@dataclass
class SearchLoop:
    """One search, from its first trial in this process to its end; the fields are named as the arguments of `tune`."""

    begun: Tuning
    """What is searched."""
    study: Study
    runner: TrialRunner
    executor: ExecutorName
    watch: Watch | None
    save: Save | None
    saved_s: float = field(default_factory=time.monotonic)
    exhausted: bool = False
    checks: dict[int, TrialOutcome] = field(default_factory=dict)

    def run(self, trials: int, seconds: float, check: int) -> Tuning:
        """Run so many trials, begin none after so many seconds, and check the best with so many unseen seeds."""
        try:
            self._search(trials, time.monotonic() + seconds)
            if check:
                unseen = range(self.begun.seeds, self.begun.seeds + check)
                check_best(self.study.finished(), lambda trial, most: self._check(trial, most, unseen), self.checks)
        except BaseException:
            if self.study.finished():
                with suppress(OSError, QafelError):  # what ended the search is what should be told
                    self._save()
            raise
        return self._save()

    def _search(self, trials: int, deadline: float) -> None:
        while True:
            while self.runner.room and time.monotonic() < deadline and not self.exhausted:
                if len(self.study.finished()) + self.runner.busy >= trials:
                    break
                if (trial := self.study.next()) is None:
                    self.exhausted = True
                else:
                    self._start(trial, range(self.begun.seeds))
                    self._tell(trial)
            if not self.runner.busy:
                return
            self._take(self.runner.next_finished(), trials)
            self._save_now_and_then()

    def _take(self, done: FinishedTrial, trials: int) -> None:
        """Write down what came of a trial. Raise a failure that is not these settings' alone.

        Then the trial has not ended: the same command begins with it.
        """
        number = done.work.trial.number
        is_own = number == 0 and self.begun.own is not None
        if done.error is not None and (is_own or isinstance(done.error, OutputError)):
            raise done.error
        self._tell(self.study.finish(number, done.outcome))
        finished = self.study.finished()
        if len(finished) >= min(FEW, trials) and all(trial.state == "failed" for trial in finished):
            kind = UserError if isinstance(done.error, UserError) else QafelError
            raise kind(f"every trial failed ({len(finished)} so far); the last error: {done.outcome.error}")

    def _check(self, trial: Trial, most: float, unseen: range) -> TrialOutcome:
        """Run a trial again on unseen seeds, each by itself, while it may still cost less than `most` on average."""
        seeds = list(unseen)
        allowance = most * len(unseen) if self.begun.objective.target is not None else math.inf
        parts: dict[int, TrialOutcome] = {}
        while True:
            self._tell(trial, checked=len(parts))
            spent = sum(run.cost for part in parts.values() for run in part.runs)
            while self.runner.room and seeds and spent < allowance and all(part.good for part in parts.values()):
                self._start(replace(trial, allowance=allowance - spent), [seeds.pop(0)])
            if not self.runner.busy:
                return together([parts[seed] for seed in sorted(parts)], len(unseen), allowance)
            done = self.runner.next_finished()
            if isinstance(done.error, OutputError):
                raise done.error
            parts[done.work.seeds[0]] = done.outcome
            self._save_now_and_then()

    def _start(self, trial: Trial, seeds: Iterable[int]) -> None:
        """Let a trial run; its seeds are counted from the configuration's own on."""
        config = self.begun.config
        self.runner.start(
            TrialWork(
                trial=trial,
                folder=self.begun.out / "trials" / f"{trial.number:04d}",
                config=config,
                seeds=tuple(config.seed + seed for seed in seeds),
                objective=self.begun.objective,
                executor=self.executor,
                executor_workers=self.runner.cores,
            )
        )

    def _tell(self, trial: Trial, checked: int | None = None) -> None:
        if self.watch is not None:
            done = self.study.finished()
            self.watch(SearchProgress(trial, best_of(done), len(done), self.begun.objective, checked))

    def _save(self) -> Tuning:
        found = replace(
            self.begun,
            trials=self.study.finished(),
            checks=dict(self.checks),
            importance=self.study.importance(),
            exhausted=self.exhausted,
        )
        if self.save is not None:
            self.save(found)
        self.saved_s = time.monotonic()
        return found

    def _save_now_and_then(self) -> None:
        if time.monotonic() - self.saved_s >= SAVE_EVERY_S:
            self._save()


def tune(
    config: Config,
    search: Search | None = None,
    *,
    objective: ObjectiveName = "uploads",
    target: float | None = None,
    trials: int = 30,
    seconds: float | None = None,
    seeds: int = 1,
    check: int = 5,
    out: Path | None = None,
    workers: int = 1,
    executor: ExecutorName = "inline",
    watch: Watch | None = None,
    progress: Callable[[Row], None] | None = None,
    save: Save | None = None,
) -> Tuning:
    """Search settings for the least cost; go on from what is in the folder.

    The first trial is the configuration as it is, if the search holds it. A trial that raises an error has failed, and
    the search goes on; unless it is the configuration itself, or all fail.

    config      the recipe
    search      what to search; by default the learning rates that the method leaves open
    objective   what is to be small until the target
    target      the metric to reach; the recipe's own by default
    trials      how many, with those that are in the folder
    seconds     begin no new trial after so long
    seeds       every trial runs so many, from the configuration's own on, which also seeds the search
    check       at the end the best trials run again with so many seeds that follow, however long that takes
    out         the folder; tune/NAME by default
    workers     trials, or seeds of the check, at a time
    executor    where the clients of a trial train
    watch       told when a trial begins or has ended
    progress    told every row, if there is one worker
    save        called with what there is every so often, and when the search ends, however it ends
    """
    require_installed("a search", "tune", optuna="Optuna")
    from qafel.search.study import open_study  # noqa: PLC0415  (an optional extra)

    worker_count(workers)
    search = default_search(config) if search is None else search
    check_search(config, search)
    config, sought, layout = _aim(config, objective, target)
    begun = Tuning(out or Path("tune") / config.name, config, search, sought, seeds, layout=layout)
    with open_study(begun) as study, TrialRunner(workers, progress) as runner:
        loop = SearchLoop(begun, study, runner, executor, watch, save)
        return loop.run(trials, math.inf if seconds is None else seconds, check)


def _aim(config: Config, name: ObjectiveName, target: float | None) -> tuple[Config, Objective, Layout]:
    """The configuration with its target, what is to be small, and the model's layout."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    if name == "metric":
        if target is not None:
            raise ConfigError(
                "the metric at a run's end has no target: leave out `target`, or choose another objective"
            )
    elif (target := config.evaluation.target if target is None else target) is None:
        raise ConfigError(f"{name} until when? Give a `target`: the recipe has no evaluation.target")
    else:
        aimed = config.model_dump(exclude_none=True)
        aimed["evaluation"]["target"] = float(target)
        config = Config.from_dict(aimed)
    task = config.task.make()
    return config, Objective(name, target, task.metric_goal, task.metric_name), task.layout
