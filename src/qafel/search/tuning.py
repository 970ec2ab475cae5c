"""Search settings of a recipe for the least cost of reaching its target.

The search runs trials until there are enough. Then the best of them run again on unseen seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from qafel.config import Config
from qafel.errors import ConfigError, OutputError, QafelError, UserError
from qafel.lazy import require_installed
from qafel.params import Layout
from qafel.runs.progress import Row
from qafel.search.result import Save, SearchProgress, Tuning, Watch, next_to_check
from qafel.search.runner import Ended, Runner
from qafel.search.space import Search, check_search, default_search
from qafel.search.trial import (
    OBJECTIVES,
    Objective,
    ObjectiveName,
    Trial,
    TrialWork,
    best_of,
    run_trial,
)
from qafel.simulator.executors import ExecutorName
from qafel.workers import worker_count

if TYPE_CHECKING:
    from qafel.search.study import Study  # needs Optuna, an optional extra

FEW = 5
"""The search ends if this many trials failed and no trial did not."""

SAVE_EVERY_S = 30.0


@final
@dataclass
class SearchLoop:
    """One search, from its first trial in this process to its end. The fields are arguments of `tune`."""

    begun: Tuning
    study: Study
    runner: Runner[Trial]
    executor: ExecutorName
    watch: Watch | None
    save: Save | None
    saved_s: float = field(default_factory=time.monotonic)
    exhausted: bool = False
    checks: dict[int, Trial] = field(default_factory=dict)

    def run(self, trials: int, seconds: float, check: int) -> Tuning:
        """Run `trials` trials, start none after `seconds`, and check the best with `check` unseen seeds."""
        try:
            self._search(trials, time.monotonic() + seconds)
            if check:
                self._check_best(range(self.begun.seeds, self.begun.seeds + check))
        except BaseException:
            if self.study.finished():
                with suppress(OSError, QafelError):  # the first error matters more
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
                    self._start(trial, range(self.begun.seeds), prune=True)
                    self._tell(trial)
            if not self.runner.busy:
                return
            trial, ended = self.runner.next_ended()
            self._finish(trial, ended, trials)
            self._save_if_due()

    def _finish(self, trial: Trial, ended: Ended, trials: int) -> None:
        """Record the outcome of a trial. Raise an error that is not due to its settings.

        A trial whose error is raised has not ended. The same command starts with it.
        """
        is_recipe = trial.number == 0 and self.begun.recipe_settings is not None
        if ended.error is not None and (is_recipe or isinstance(ended.error, OutputError)):
            raise ended.error
        done: Trial = ended.value or trial.failed(str(ended.error))
        self.study.finish(done)
        self._tell(done)
        finished = self.study.finished()
        if len(finished) >= min(FEW, trials) and all(one.state == "failed" for one in finished):
            kind = UserError if isinstance(ended.error, UserError) else QafelError
            raise kind(f"All {len(finished)} trials failed. The last error: {finished[-1].error}")

    def _check_best(self, unseen: range) -> None:
        """Run the best trials again on unseen seeds."""
        started: set[int] = set()
        while True:
            while self.runner.room and (trial := next_to_check(self.study.finished(), self.checks, started)):
                started.add(trial.number)
                self._start(trial, unseen, prune=False)
                self._tell(trial, checking=True)
            if not self.runner.busy:
                return
            trial, ended = self.runner.next_ended()
            if isinstance(ended.error, OutputError):
                raise ended.error
            self.checks[trial.number] = ended.value or trial.failed(str(ended.error))
            self._save_if_due()

    def _start(self, trial: Trial, seeds: Iterable[int], prune: bool) -> None:
        """Start a trial. Its seeds count from the configuration's seed."""
        from qafel.search.study import JOURNAL, StudyPruner  # noqa: PLC0415  (needs Optuna)

        begun = self.begun
        work = TrialWork(
            trial=trial,
            folder=begun.out / "trials" / f"{trial.number:04d}",
            config=begun.config,
            seeds=tuple(begun.config.seed + seed for seed in seeds),
            objective=begun.objective,
            executor=self.executor,
            executor_workers=self.runner.cores,
            prune=partial(StudyPruner, begun.out / JOURNAL, trial.number) if prune else None,
        )
        self.runner.start(trial, partial(run_trial, work))

    def _tell(self, trial: Trial, checking: bool = False) -> None:
        if self.watch is not None:
            done = self.study.finished()
            self.watch(SearchProgress(trial, best_of(done), len(done), self.begun.objective, checking))

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

    def _save_if_due(self) -> None:
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
    """Search settings for the least cost. Resumes a search that is in the folder.

    Trial 0 has the recipe's settings if the search space contains them. A trial that raises an error fails, and the
    search continues. The search ends if trial 0 fails or all trials fail.

    config      The recipe.
    search      The settings to vary. By default the learning rates that the method leaves open.
    objective   The cost to minimise.
    target      The metric to reach. By default the recipe's.
    trials      The number of trials, including those in the folder.
    seconds     Start no trial after this time.
    seeds       The number of runs of each trial. Their seeds start at the configuration's.
    check       The number of unseen seeds. The best trials run again with them at the end.
    out         The folder. By default tune/NAME.
    workers     The number of trials that run in parallel.
    executor    The executor of the clients of a trial.
    watch       Called when a trial starts or ends.
    progress    Called with every row, if there is one worker.
    save        Called with the results from time to time and at the end, also after an error.
    """
    require_installed("a search", "tune", optuna="Optuna")
    from qafel.search.study import open_study  # noqa: PLC0415  (an optional extra)

    worker_count(workers)
    search = default_search(config) if search is None else search
    check_search(config, search)
    config, sought, layout = _aim(config, objective, target)
    begun = Tuning(out or Path("tune") / config.name, config, search, sought, seeds, layout=layout)

    def hear(_: Trial, row: Row) -> None:
        if progress is not None and workers == 1:
            progress(row)

    with open_study(begun) as study, Runner(workers, hear) as runner:
        loop = SearchLoop(begun, study, runner, executor, watch, save)
        return loop.run(trials, math.inf if seconds is None else seconds, check)


def _aim(config: Config, name: ObjectiveName, target: float | None) -> tuple[Config, Objective, Layout]:
    """The configuration with its target, the objective, and the model's layout."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    if name == "metric":
        if target is not None:
            raise ConfigError("The objective metric takes no target. Leave out `target` or choose another objective.")
    elif (target := config.evaluation.target if target is None else target) is None:
        raise ConfigError(f"The objective {name} needs a `target`: set it, or evaluation.target in the recipe.")
    else:
        aimed = config.model_dump(exclude_none=True)
        aimed["evaluation"]["target"] = float(target)
        config = Config.from_dict(aimed)
    task = config.task.make()
    return config, Objective(name, target, task.metric_goal, task.metric_name), task.layout
