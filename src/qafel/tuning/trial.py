"""One trial: the recipe with some settings changed, run once for every seed, and cut off when it cannot be the best."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from qafel.config import Config
from qafel.errors import ConfigError, DataError
from qafel.runs.directory import state_of
from qafel.runs.listeners import Calling
from qafel.runs.reading import Run
from qafel.simulator import Row
from qafel.simulator.executors import ExecutorName
from qafel.simulator.run import run as simulate
from qafel.tuning.objective import GOOD, Objective, Outcome, RunOutcome, State, combine
from qafel.tuning.search import Settings, with_settings


@final
@dataclass(frozen=True)
class Trial:
    """Settings to try, and what came of them; without an outcome it is still running, or yet to be run."""

    number: int
    settings: Settings
    allowance: float
    """What all its seeds together may cost: as much as the best trial's did, when this one began."""
    outcome: Outcome | None = None

    @property
    def state(self) -> State:
        return "running" if self.outcome is None else self.outcome.state

    @property
    def score(self) -> float:
        """What the search sees, smaller is better."""
        return math.inf if self.outcome is None else self.outcome.score

    @property
    def good(self) -> bool:
        """Whether every run did what it should, so that the score is measured and not an estimate."""
        return self.state in GOOD

    @property
    def lost(self) -> bool:
        """Whether there is no telling what it would have cost."""
        return self.state in ("missed", "diverged", "failed")


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The trial with the least measured score, the earlier of two equals."""
    return min((trial for trial in trials if trial.good), key=lambda trial: trial.score, default=None)


@final
@dataclass(frozen=True)
class Job:
    """A trial as a value that travels to a worker process."""

    number: int
    folder: Path
    config: Config
    """The recipe, without the trial's settings."""
    settings: Settings
    seeds: tuple[int, ...]
    objective: Objective
    allowance: float
    executor: ExecutorName
    executor_workers: int

    def configs(self) -> list[Config]:
        """What to run: one configuration for every seed. ConfigError where the settings do not go together."""
        data: dict[str, Any] = with_settings(self.config, self.settings).model_dump(exclude_none=True)
        data["name"] = f"{self.config.name}-trial-{self.number}"
        data["stop"]["at_target"] = self.objective.target is not None
        return [Config.from_dict({**data, "seed": seed}) for seed in self.seeds]


class _CutOff(Exception):
    """A run has shown that its trial cannot be the best."""


def run_trial(job: Job, progress: Callable[[Row], None] | None = None) -> Outcome:
    """Run a trial, or what is left of it; runs that are finished are not run again.

    Seeds take their turns. The costs of all together are held against the allowance, so a trial is cut off only when
    its mean cost is certainly no better than the best one's, however much luck its seeds have.
    """
    outcomes: list[RunOutcome] = []
    spent = 0.0
    for config in job.configs():
        outcomes.append(_outcome(config, job, job.allowance - spent, progress))
        if outcomes[-1].state not in GOOD:
            break
        spent += outcomes[-1].cost
        if spent >= job.allowance:
            break
    return combine(outcomes, len(job.seeds))


def _outcome(config: Config, job: Job, allowance: float, progress: Callable[[Row], None] | None) -> RunOutcome:
    """What came of one seed. Where what an earlier attempt left is damaged, the run begins anew."""
    out = job.folder / f"seed-{config.seed}"
    went_before = out.exists()
    try:
        _run(config, out, job, allowance, progress)
        return job.objective.judge(Run.load(out), config.seed)
    except DataError:
        if not went_before:
            raise
    shutil.rmtree(out, ignore_errors=True)
    _run(config, out, job, allowance, progress)
    return job.objective.judge(Run.load(out), config.seed)


def _run(config: Config, out: Path, job: Job, allowance: float, progress: Callable[[Row], None] | None) -> None:
    state = state_of(out, config)
    if state == "finished":
        return
    resume = state == "interrupted"
    if not resume:
        shutil.rmtree(out, ignore_errors=True)

    def watch(row: Row) -> None:
        if progress is not None:
            progress(row)
        if job.objective.meets(row.metric):
            if not row.uploads:
                raise ConfigError(f"the target {job.objective.target:g} is met before the first upload: set another")
        elif job.objective.cost_of_row(row) >= allowance or not math.isfinite(row.metric):
            raise _CutOff

    settings: dict[str, Any] = {"executor": job.executor, "workers": job.executor_workers, "resume": resume}
    # To diverge is nothing unusual in a search.
    with suppress(_CutOff), np.errstate(over="ignore", invalid="ignore"):
        simulate(config, out, [Calling(watch)], tensorboard=False, **settings)
