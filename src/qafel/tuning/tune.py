"""Search settings of a recipe for the least cost of reaching its target."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from qafel.config import Config
from qafel.errors import ConfigError, OutputError, QafelError, UserError
from qafel.simulator import Row
from qafel.simulator.executors import ExecutorName
from qafel.tuning.objective import OBJECTIVES, Objective, ObjectiveName, Outcome, together
from qafel.tuning.result import Moment, Save, Tuning, Watch, check_best
from qafel.tuning.search import Search, check_search, default_search, own_settings
from qafel.tuning.study import SearchFolder
from qafel.tuning.trial import Job, Trial, best_of
from qafel.tuning.workers import Done, Elsewhere, Here, Workers

# The search as it goes: trials to the workers until there are enough, then the best of them again, on unseen seeds.


if TYPE_CHECKING:
    from qafel.tuning.study import Study  # needs Optuna, an optional extra


FEW = 5
"""Where so many trials failed and none did not, the rest would fail as well."""


SAVE_EVERY_S = 30.0


@final
@dataclass(frozen=True)
class Plan:
    """What is asked of a search."""

    config: Config
    search: Search
    objective: Objective
    trials: int
    seconds: float | None
    seeds: int
    check: int
    workers: int
    executor: ExecutorName


@final
class Loop:
    """One search, from its first trial in this process to its end."""

    def __init__(
        self, plan: Plan, folder: SearchFolder, study: Study, crew: Workers, watch: Watch | None, save: Save | None
    ) -> None:
        self._plan, self._folder, self._study, self._crew = plan, folder, study, crew
        self._watch, self._save_to = watch, save
        self._deadline = math.inf if plan.seconds is None else time.monotonic() + plan.seconds
        self._saved_s = time.monotonic()
        self._exhausted = False
        self._checks: dict[int, Outcome] = {}

    def run(self) -> Tuning:
        try:
            self._search()
            if self._plan.check:
                check_best(self._study.finished(), self._check)
        except BaseException:
            if self._study.finished():
                with suppress(OSError, QafelError):  # what ended the search is what should be told
                    self._save()
            raise
        self._save()
        return self._found()

    def _search(self) -> None:
        while True:
            while self._crew.room and self._wants_more():
                if (trial := self._study.next()) is None:
                    self._exhausted = True
                    break
                self._crew.start(self._job(trial, self._seeds(0, self._plan.seeds)))
                self._tell(trial)
            if not self._crew.busy:
                return
            self._take(self._crew.next_done())
            self._save_now_and_then()

    def _wants_more(self) -> bool:
        if self._exhausted or time.monotonic() >= self._deadline:
            return False
        return len(self._study.finished()) + self._crew.busy < self._plan.trials

    def _take(self, done: Done) -> None:
        """Write down what came of a trial. A failure is raised where it is not these settings' alone.

        Then the trial has not ended: the same command begins with it.
        """
        is_own = done.job.number == 0 and own_settings(self._plan.config, self._plan.search) is not None
        if done.error is not None and (is_own or isinstance(done.error, OutputError)):
            raise done.error
        self._tell(self._study.finish(done.job.number, done.outcome))
        finished = self._study.finished()
        if len(finished) >= min(FEW, self._plan.trials) and all(trial.state == "failed" for trial in finished):
            kind = UserError if isinstance(done.error, UserError) else QafelError
            raise kind(f"every trial failed ({len(finished)} so far), the last one thus: {done.outcome.error}")

    def _check(self, trial: Trial, most: float) -> Outcome:
        """Run a trial again on unseen seeds, a job for each, while it may still cost less than `most` on average."""
        count = self._plan.check
        seeds = list(self._seeds(self._plan.seeds, count))
        allowance = most * count if self._plan.objective.target is not None else math.inf
        parts: dict[int, Outcome] = {}
        while True:
            self._tell(trial, checked=len(parts))
            spent = sum(run.cost for part in parts.values() for run in part.runs)
            while self._crew.room and seeds and spent < allowance and all(part.good for part in parts.values()):
                self._crew.start(self._job(replace(trial, allowance=allowance - spent), [seeds.pop(0)]))
            if not self._crew.busy:
                break
            done = self._crew.next_done()
            if isinstance(done.error, OutputError):
                raise done.error
            parts[done.job.seeds[0]] = done.outcome
            self._save_now_and_then()
        self._checks[trial.number] = together([parts[seed] for seed in sorted(parts)], count, allowance)
        return self._checks[trial.number]

    def _seeds(self, first: int, count: int) -> range:
        return range(self._plan.config.seed + first, self._plan.config.seed + first + count)

    def _job(self, trial: Trial, seeds: Iterable[int]) -> Job:
        plan = self._plan
        return Job(
            number=trial.number,
            folder=self._folder.trial(trial.number),
            config=plan.config,
            settings=trial.settings,
            seeds=tuple(seeds),
            objective=plan.objective,
            allowance=trial.allowance,
            executor=plan.executor,
            executor_workers=max(1, (os.cpu_count() or 1) // plan.workers),
        )

    def _tell(self, trial: Trial, checked: int | None = None) -> None:
        if self._watch is not None:
            done = self._study.finished()
            self._watch(Moment(trial, best_of(done), len(done), self._plan.objective, checked))

    def _found(self) -> Tuning:
        plan, done = self._plan, self._study.finished()
        checks = dict(self._checks)
        return Tuning(
            self._folder.path,
            plan.config,
            plan.search,
            plan.objective,
            plan.seeds,
            done,
            checks,
            self._study.importance(),
            self._exhausted,
        )

    def _save(self) -> None:
        if self._save_to is not None:
            self._save_to(self._found())
        self._saved_s = time.monotonic()

    def _save_now_and_then(self) -> None:
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
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
    """Run trials in `out` until there are `trials`, or no new one after so many seconds; go on from what is there.

    The first trial is the configuration as it is, where the search holds it. Every trial runs the same `seeds` seeds,
    from the configuration's own on, which also seeds the search. At the end the best trials are run again with the
    `check` seeds that follow, however long that takes.

    A trial that raises an error has failed, and the search goes on; unless it is the configuration itself, or all
    fail. `save` is called with what there is every so often, and when the search ends, however it ends.
    """
    require_optuna()
    from qafel.tuning.study import Study  # noqa: PLC0415  (an optional extra)

    search = default_search(config) if search is None else search
    check_search(config, search)
    config, sought = _aim(config, objective, target)
    out = out or Path("tune") / config.name
    setup = {
        "config": config.model_dump(exclude_none=True),
        "search": {path: str(dimension) for path, dimension in search.items()},
        "objective": objective,
        "target": sought.target,
        "seeds": seeds,
    }
    plan = Plan(config, search, sought, trials, seconds, seeds, check, workers, executor)
    with SearchFolder(out, setup) as folder, _workers(workers, progress) as crew:
        study = Study(folder, search, own_settings(config, search), config.seed)
        return Loop(plan, folder, study, crew, watch, save).run()


def require_optuna() -> None:
    """The search's library is an extra: say so, where it is missing."""
    if not importlib.util.find_spec("optuna"):
        raise ConfigError("a search needs Optuna: pip install 'qafel[tune]'")


def _aim(config: Config, name: ObjectiveName, target: float | None) -> tuple[Config, Objective]:
    """The configuration with its target, and what is to be small."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    if name == "metric":
        if target is not None:
            raise ConfigError(
                "the metric at a run's end has no target: leave out --target, or choose another objective"
            )
    elif (target := config.evaluation.target if target is None else target) is None:
        raise ConfigError(f"{name} until when? Give --target, for the recipe has no evaluation.target")
    else:
        aimed = config.model_dump(exclude_none=True)
        aimed["evaluation"]["target"] = float(target)
        config = Config.from_dict(aimed)
    task = config.task.make()
    return config, Objective(name, target, task.metric_goal, task.metric_name)


def _workers(count: int, progress: Callable[[Row], None] | None) -> Workers:
    return Here(progress) if count == 1 else Elsewhere(count)
