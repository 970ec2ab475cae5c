"""Search settings of a recipe for the least cost of reaching its target."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, final

from qafel.config import Config
from qafel.errors import ConfigError
from qafel.simulator import Row
from qafel.simulator.executor_choice import ExecutorName
from qafel.tuning.check import best_checked, check_best
from qafel.tuning.folder import SearchFolder
from qafel.tuning.objective import OBJECTIVES, Objective, ObjectiveName, Outcome
from qafel.tuning.search import Search, Settings, check_search, default_search, own_settings, with_settings
from qafel.tuning.trial import Job, Trial, best_of, run_trial
from qafel.tuning.workers import Elsewhere, Here, Workers


@final
@dataclass(frozen=True)
class Moment:
    """A trial begins or has ended: which, and how the search stands."""

    trial: Trial
    best: Trial | None
    done: int
    objective: Objective


Watch: TypeAlias = Callable[[Moment], None]


@final
@dataclass(frozen=True)
class Tuning:
    """A search and what came of it."""

    out: Path
    config: Config
    search: Search
    objective: Objective
    seeds: int
    trials: tuple[Trial, ...]
    checks: Mapping[int, Outcome]
    """What the best trials did on seeds that the search has not seen."""
    importance: dict[str, float]

    @property
    def best(self) -> Trial | None:
        """The best on unseen seeds, of the trials that did what they should; None where none did."""
        return best_checked(self.trials, self.checks)

    @property
    def starts_with_own(self) -> bool:
        """Whether trial 0 is the recipe as it is."""
        return own_settings(self.config, self.search) is not None

    def config_of(self, settings: Settings) -> Config:
        """The recipe with these settings; where it stops is the recipe's own business."""
        tuned = with_settings(self.config, settings)
        return tuned.model_copy(update={"name": f"{self.config.name}-tuned"})


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
) -> Tuning:
    """Run trials in `out` until there are `trials`, or no new one after so many seconds; go on from what is there.

    The first trial is the configuration as it is, where the search holds it. Every trial runs the same `seeds` seeds,
    from the configuration's own on, which also seeds the search. At the end the best trials are run again with the
    `check` seeds that follow.
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
    deadline = None if seconds is None else time.monotonic() + seconds
    with SearchFolder(out, setup) as folder, _workers(workers, progress) as crew:
        study = Study(folder, search, own_settings(config, search), config.seed)

        def job_of(trial: Trial, count: int, first_seed: int = 0) -> Job:
            return Job(
                number=trial.number,
                folder=folder.trial(trial.number),
                configs=_configs(
                    config, trial, sought, range(config.seed + first_seed, config.seed + first_seed + count)
                ),
                objective=sought,
                allowance=trial.allowance,
                executor=executor,
                executor_workers=max(1, (os.cpu_count() or 1) // workers),
            )

        def wanted() -> bool:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            return len(study.finished()) + crew.busy < trials

        def tell(trial: Trial) -> None:
            if watch is not None:
                done = study.finished()
                watch(Moment(trial, best_of(done), len(done), sought))

        while True:
            while crew.room and wanted():
                trial = study.next()
                crew.start(job_of(trial, seeds))
                tell(trial)
            if not crew.busy:
                break
            tell(study.finish(*crew.next_done()))

        def run_again(trial: Trial, most: float) -> Outcome:
            again = replace(trial, allowance=most * check if sought.target is not None else math.inf)
            return run_trial(job_of(again, check, first_seed=seeds), progress)

        done = study.finished()
        checks = check_best(done, run_again) if check else {}
        return Tuning(out, config, search, sought, seeds, done, checks, study.importance())


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


def _configs(config: Config, trial: Trial, objective: Objective, seeds: Iterable[int]) -> tuple[Config, ...]:
    """What a trial runs: one configuration for every seed."""
    data: dict[str, Any] = with_settings(config, trial.settings).model_dump(exclude_none=True)
    data["name"] = f"{config.name}-trial-{trial.number}"
    data["stop"]["at_target"] = objective.target is not None
    return tuple(Config.from_dict({**data, "seed": seed}) for seed in seeds)
