"""One trial: the recipe with some settings changed, run once for every seed, and cut off when it cannot be the best.

The objective says what is to be small and how near a run came to its target; outcomes say what came of runs.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np

from qafel.config import Config
from qafel.errors import ConfigError, DataError
from qafel.runs.directory import state_of
from qafel.runs.progress import Row, meets
from qafel.runs.reading import Run
from qafel.search.space import Settings, with_settings
from qafel.simulator.api import simulate
from qafel.simulator.executors import ExecutorName
from qafel.tasks.protocol import Goal
from qafel.text import human_bytes, human_count, human_metric

OutcomeState: TypeAlias = Literal["reached", "finished", "cut off", "missed", "diverged", "failed", "running"]

GOOD: tuple[OutcomeState, ...] = ("reached", "finished")

MISSED = 1e30
"""The score of a trial that used up its budget begins here; TPE looks at the order of scores alone."""
DIVERGED = 1e33
FAILED = 1e34

FARTHEST = 100.0
"""The largest gap: such a run got nowhere near its target."""

ObjectiveName: TypeAlias = Literal["uploads", "upload-bytes", "broadcast-bytes", "bytes", "virtual-time", "metric"]
"""What a search makes small: the cost of the target, or the metric at the end."""

OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""All of them."""

_COLUMNS = {
    "uploads": ("uploads",),
    "upload-bytes": ("upload_bytes_total",),
    "broadcast-bytes": ("broadcast_bytes_total",),
    "bytes": ("upload_bytes_total", "broadcast_bytes_total"),
    "virtual-time": ("virtual_time",),
    "metric": ("metric",),
}
"""The columns of a run whose sum is its cost so far."""


@final
@dataclass(frozen=True)
class RunOutcome:
    """What came of one run: `cost` until the target, or until the run's end; `gap` is what was left of the way."""

    seed: int
    state: OutcomeState
    cost: float
    gap: float
    metric: float | None
    uploads: int
    wall_s: float


@final
@dataclass(frozen=True)
class TrialOutcome:
    """What came of a trial: `score` is what the search sees, smaller is better."""

    state: OutcomeState
    score: float
    gap: float
    runs: tuple[RunOutcome, ...]
    error: str = ""
    """Why it failed."""

    @property
    def good(self) -> bool:
        """Whether every run did what it should, so that the score is measured and not an estimate."""
        return self.state in GOOD

    @property
    def wall_s(self) -> float:
        return sum(run.wall_s for run in self.runs)


RUNNING = TrialOutcome("running", math.inf, 0.0, ())


def combine(runs: Sequence[RunOutcome], seeds: int) -> TrialOutcome:
    """One outcome of a trial's runs, of which the last may have ended the trial before all `seeds` had their turn.

    Measured, the score is the mean cost. A trial that was cut off gets an estimate of it, for the run that was cut off
    no less than its other seeds took. One that used up its budget comes after all those, by how far it stayed away;
    one that diverged comes last.
    """
    last = runs[-1]
    state = "cut off" if last.state == "reached" and len(runs) < seeds else last.state
    gap = (sum(run.gap for run in runs) + (seeds - len(runs)) * last.gap) / seeds
    costs = [run.cost for run in runs]
    if last.state == "cut off":
        costs[-1] = estimate(last)
        costs[-1] = max(costs[-1], float(np.mean(costs[:-1]))) if len(costs) > 1 else costs[-1]
    match state:
        case "diverged":
            score = DIVERGED
        case "missed":
            score = MISSED * (1 + max(0.0, gap))
        case _:
            score = float(np.mean(costs))
    return TrialOutcome(state, score, gap, tuple(runs))


def estimate(run: RunOutcome) -> float:
    """What a run that was cut off might have cost at its pace so far: cost / (1 − gap).

    From 1 − gap = 0.1 on the estimate grows with the gap alone, so that a run that got nowhere, or worse, has a slope.
    """
    gap = max(0.0, run.gap)
    return run.cost * (1 / (1 - gap) if gap <= 0.9 else 10 + 10 * (gap - 0.9))


def failure(error: str) -> TrialOutcome:
    """What came of a trial that could not be run: after all others, with the sentence that says why."""
    return TrialOutcome("failed", FAILED, FARTHEST, (), error)


def together(parts: Sequence[TrialOutcome], seeds: int, allowance: float) -> TrialOutcome:
    """One outcome of a trial whose seeds ran one by one, in their order: as if each had waited for the one before."""
    runs: list[RunOutcome] = []
    for part in parts:
        if part.state == "failed":
            return part
        runs += part.runs
        if not part.good or sum(run.cost for run in runs) >= allowance:
            break
    return combine(runs, seeds)


@final
@dataclass(frozen=True)
class Objective:
    """The cost of a run until it reaches its target; or, for "metric", the metric at the run's end."""

    name: ObjectiveName
    target: float | None
    goal: Goal
    metric_name: str

    @property
    def label(self) -> str:
        if self.target is None:
            return f"{self.metric_name} at the end"
        amount = {"upload-bytes": "bytes uploaded", "broadcast-bytes": "bytes broadcast", "bytes": "bytes"}
        what = amount.get(self.name, self.name.replace("-", " "))
        return f"{what} to {self.metric_name} {'≤' if self.goal == 'min' else '≥'} {self.target:g}"

    def cost(self, column: Callable[[str], float]) -> float:
        """What a run has cost at an evaluation with these values of its columns; a metric to be large is negative."""
        return self.shown(float(sum(map(column, _COLUMNS[self.name]))))

    @property
    def more_is_better(self) -> bool:
        """Whether the figure that people read is to be large, as an accuracy is."""
        return self.name == "metric" and self.goal == "max"

    def shown(self, score: float) -> float:
        """A score as people read it: without the sign that makes every objective one to minimise."""
        return -score if self.more_is_better else score

    def text(self, score: float) -> str:
        match self.name:
            case "uploads":
                return f"{score:,.0f}"
            case "metric":
                return human_metric(self.shown(score))
            case "virtual-time":
                return human_count(score)
            case _:
                return human_bytes(score)

    def gap(self, start: float, end: float) -> float:
        """The share of the way to the target that is left: 1 at the start, 0 at the target, above 1 if it got worse.

        In the logarithm, where all are positive and small is good, since a convex loss falls like that.
        """
        if self.target is None:
            return 0.0
        if self.goal == "min" and min(start, end, self.target) > 0:
            left, whole = math.log(end / self.target), math.log(start / self.target)
        else:
            left, whole = end - self.target, start - self.target
        return min(FARTHEST, left / whole) if whole else FARTHEST

    def judge(self, run: Run, seed: int) -> RunOutcome:
        """What came of a run, from its directory. One that has no summary was cut off."""
        metric = run.column("metric")
        reached = None if self.target is None else run.first_at(self.target, self.goal)
        row = len(metric) - 1 if reached is None else reached
        state: OutcomeState
        if reached is not None:
            state, gap = "reached", 0.0
        elif run.diverged:
            state, gap = "diverged", FARTHEST
        else:
            is_done = self.target is None and run.summary.get("status") != "stalled"
            state = "cut off" if not run.finished else "finished" if is_done else "missed"
            gap = self.gap(float(metric[0]), float(metric[-1]))
        return RunOutcome(
            seed=seed,
            state=state,
            cost=self.cost(lambda name: run.column(name)[row]) if state != "diverged" else 0.0,
            gap=gap,
            metric=float(metric[row]) if math.isfinite(metric[row]) else None,
            uploads=int(run.column("uploads")[row]),
            wall_s=float(run.column("wall_s")[-1]),
        )


@final
@dataclass(frozen=True)
class Trial:
    """Settings to try, and what came of them; a trial that is yet to be run counts as running."""

    number: int
    settings: Settings
    allowance: float
    """What all its seeds together may cost: as much as the best trial's did, when this one began."""
    outcome: TrialOutcome = RUNNING

    @property
    def state(self) -> OutcomeState:
        return self.outcome.state

    @property
    def score(self) -> float:
        """What the search sees, smaller is better."""
        return self.outcome.score

    @property
    def good(self) -> bool:
        """Whether every run did what it should, so that the score is measured and not an estimate."""
        return self.outcome.good

    @property
    def lost(self) -> bool:
        """Whether there is no telling what it would have cost."""
        return self.state in ("missed", "diverged", "failed")


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The trial with the least measured score, the earlier of two equals."""
    return min((trial for trial in trials if trial.good), key=lambda trial: trial.score, default=None)


@final
@dataclass(frozen=True)
class TrialWork:
    """A trial as a value that travels to a worker process."""

    trial: Trial
    folder: Path
    config: Config
    """The recipe, without the trial's settings."""
    seeds: tuple[int, ...]
    objective: Objective
    executor: ExecutorName
    executor_workers: int


class _CutOff(Exception):
    """A run has shown that its trial cannot be the best."""


def run_trial(work: TrialWork, progress: Callable[[Row], None] | None = None) -> TrialOutcome:
    """Run a trial, or what is left of it; runs that are finished are not run again. `progress` hears of every row.

    Seeds take their turns. The costs of all together are held against the allowance, so a trial is cut off only when
    its mean cost is certainly no better than the best one's, however much luck its seeds have. Raises `ConfigError` if
    its settings do not go together.
    """
    data: dict[str, Any] = with_settings(work.config, work.trial.settings).model_dump(exclude_none=True)
    data["name"] = f"{work.config.name}-trial-{work.trial.number}"
    data["stop"]["at_target"] = work.objective.target is not None
    outcomes: list[RunOutcome] = []
    spent = 0.0
    for seed in work.seeds:
        config = Config.from_dict({**data, "seed": seed})
        outcomes.append(_outcome(config, work, work.trial.allowance - spent, progress))
        spent += outcomes[-1].cost
        if outcomes[-1].state not in GOOD or spent >= work.trial.allowance:
            break
    return combine(outcomes, len(work.seeds))


def _outcome(config: Config, work: TrialWork, allowance: float, progress: Callable[[Row], None] | None) -> RunOutcome:
    """What came of one seed. If what an earlier attempt left is damaged, the run begins anew."""
    out, objective = work.folder / f"seed-{config.seed}", work.objective

    def watch(row: Row) -> None:
        if progress is not None:
            progress(row)
        if meets(row.metric, objective.target, objective.goal):
            if not row.uploads:
                raise ConfigError(f"the target {objective.target:g} is met before the first upload: set another")
        elif objective.cost(partial(getattr, row)) >= allowance or not math.isfinite(row.metric):
            raise _CutOff

    with suppress(DataError) if out.exists() else nullcontext():
        return _run(config, out, work, watch)
    shutil.rmtree(out, ignore_errors=True)
    return _run(config, out, work, watch)


def _run(config: Config, out: Path, work: TrialWork, watch: Callable[[Row], None]) -> RunOutcome:
    """Bring one seed's run to its end, or to where `watch` cuts it off."""
    if (state := state_of(out, config)) != "finished":
        if state != "interrupted":
            shutil.rmtree(out, ignore_errors=True)
        # To diverge is nothing unusual in a search.
        with suppress(_CutOff), np.errstate(over="ignore", invalid="ignore"):
            simulate(
                **config.arguments(),
                out=out,
                resume=state == "interrupted",
                executor=work.executor,
                workers=work.executor_workers,
                check=False,
                on_row=watch,
                track=(),
            )
    return work.objective.judge(Run.load(out), config.seed)
