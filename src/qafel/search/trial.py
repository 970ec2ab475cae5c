"""One trial of a search: the recipe with some settings changed, run once for every seed.

`Objective` defines the cost to minimise. A trial reports its progress to Optuna, whose pruner may end it early.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final, get_args

import numpy as np

from qafel.config import Config
from qafel.errors import ConfigError, DataError
from qafel.runs.progress import Row, meets
from qafel.runs.reading import Run
from qafel.search.runner import perform
from qafel.search.space import Settings, with_settings
from qafel.simulator.executors import ExecutorName
from qafel.tasks.protocol import Goal, Task
from qafel.text import human_bytes, human_count, human_metric
from qafel.workers import Tell

OutcomeState: TypeAlias = Literal["reached", "finished", "pruned", "missed", "diverged", "failed", "running"]

GOOD: tuple[OutcomeState, ...] = ("reached", "finished")

FARTHEST = 100.0
"""The largest gap."""

ObjectiveName: TypeAlias = Literal["uploads", "upload-bytes", "broadcast-bytes", "bytes", "virtual-time", "metric"]
"""What a search minimises: the cost of the target, or the metric at the end."""

OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""The names of all objectives."""

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
    """The outcome of one run.

    cost   Its cost until the target, or until its end.
    gap    The share of the way to the target that was left.
    """

    seed: int
    state: OutcomeState
    cost: float
    gap: float
    metric: float | None
    uploads: int
    wall_s: float


@final
@dataclass(frozen=True)
class Trial:
    """Settings to try, and their outcome.

    score   The mean cost of its runs, smaller is better. Infinite unless the trial is good.
    gap     The mean share of the way to the target that was left.
    error   The reason of a failure.
    """

    number: int
    settings: Settings
    state: OutcomeState = "running"
    score: float = math.inf
    gap: float = 0.0
    runs: tuple[RunOutcome, ...] = ()
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether every run reached the target; without a target, whether every run finished."""
        return self.state in GOOD

    def ended(self, runs: Sequence[RunOutcome], seeds: int) -> Trial:
        """The trial with the outcome of its runs. The last run may have ended it before all `seeds` ran."""
        last = runs[-1]
        gap = (sum(run.gap for run in runs) + (seeds - len(runs)) * last.gap) / seeds
        score = float(np.mean([run.cost for run in runs])) if last.state in GOOD else math.inf
        return replace(self, state=last.state, score=score, gap=gap, runs=tuple(runs))

    def failed(self, error: str) -> Trial:
        """The trial with an error as its outcome."""
        return replace(self, state="failed", gap=FARTHEST, error=error)


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The good trial with the least score, the earlier of two equals."""
    return min((trial for trial in trials if trial.good), key=lambda trial: trial.score, default=None)


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
        """The cost of a run at an evaluation with these columns. A metric to maximise is negated."""
        return self.displayed(float(sum(map(column, _COLUMNS[self.name]))))

    @property
    def more_is_better(self) -> bool:
        """Whether the figure shown to people should be large, as an accuracy should."""
        return self.name == "metric" and self.goal == "max"

    def displayed(self, score: float) -> float:
        """A score as people read it, without the sign that makes every objective one to minimise."""
        return -score if self.more_is_better else score

    def text(self, score: float) -> str:
        match self.name:
            case "uploads":
                return f"{score:,.0f}"
            case "metric":
                return human_metric(self.displayed(score))
            case "virtual-time":
                return human_count(score)
            case _:
                return human_bytes(score)

    def gap(self, start: float, end: float) -> float:
        """The share of the way to the target that is left: 1 at the start, 0 at the target.

        A positive loss counts by its logarithm.
        """
        if self.target is None:
            return 0.0
        if self.goal == "min" and min(start, end, self.target) > 0:
            left, whole = math.log(end / self.target), math.log(start / self.target)
        else:
            left, whole = end - self.target, start - self.target
        return min(FARTHEST, left / whole) if whole else FARTHEST

    def judge(self, run: Run, seed: int) -> RunOutcome:
        """The outcome of a run, from its directory. A run without a summary was pruned."""
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
            state = "pruned" if not run.finished else "finished" if is_done else "missed"
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


class Pruner(Protocol):
    """Compares a trial that runs with finished ones."""

    def hopeless(self, cost: float, value: float) -> bool:
        """Report `value`, smaller is better, after a trial has spent `cost`. Returns whether to end the trial."""

    def succeeded(self) -> None:
        """Report that the trial needs no further cost."""


@final
@dataclass(frozen=True)
class TrialWork:
    """A trial as a value that can be sent to a worker process.

    config   The recipe, without the trial's settings.
    prune    Makes the trial's pruner. None: nothing ends the trial early.
    """

    trial: Trial
    folder: Path
    config: Config
    seeds: tuple[int, ...]
    objective: Objective
    executor: ExecutorName
    executor_workers: int
    prune: Callable[[], Pruner] | None = None


class _Pruned(Exception):
    """The pruner ended the trial."""


def run_trial(work: TrialWork, tell: Tell, task: Task | None = None) -> Trial:
    """Run a trial, or the rest of it, one seed after another. `tell` receives every row.

    After each row the pruner sees the share of the way that is left over all seeds, and the cost so far. So one unlucky
    seed does not end a good trial. Raises `ConfigError` if the settings do not fit together.
    """
    data: dict[str, Any] = with_settings(work.config, work.trial.settings).model_dump(exclude_none=True)
    data["name"] = f"{work.config.name}-trial-{work.trial.number}"
    data["stop"]["at_target"] = work.objective.target is not None
    pruner = work.prune() if work.prune is not None else None
    runs: list[RunOutcome] = []
    for seed in work.seeds:
        out = work.folder / f"seed-{seed}"
        runs.append(_run(Config.from_dict({**data, "seed": seed}), out, work, _Watch(work, runs, out, tell, pruner)))
        if runs[-1].state not in GOOD:
            break
    trial = work.trial.ended(runs, len(work.seeds))
    if pruner is not None and trial.good and work.objective.target is not None:
        pruner.succeeded()
    return trial


@final
@dataclass
class _Watch:
    """Receives the rows of one run and raises if the run should end. `before` are the trial's earlier runs."""

    work: TrialWork
    before: Sequence[RunOutcome]
    out: Path
    tell: Tell
    pruner: Pruner | None
    first: float | None = None

    def __call__(self, row: Row) -> None:
        self.tell(row)
        objective = self.work.objective
        if not row.uploads:
            self.first = row.metric
        if not math.isfinite(row.metric):
            raise _Pruned
        if meets(row.metric, objective.target, objective.goal):
            if not row.uploads:
                raise ConfigError(f"Training starts at or beyond the target {objective.target:g}. Set another target.")
        elif self.pruner is not None and row.uploads and self._hopeless(row, self.pruner):
            raise _Pruned

    def _hopeless(self, row: Row, pruner: Pruner) -> bool:
        objective, seeds, done = self.work.objective, len(self.work.seeds), len(self.before)
        cost = objective.cost(partial(getattr, row))
        if objective.target is None:
            return not done and pruner.hopeless(row.uploads, cost)
        if self.first is None:  # the run was resumed
            self.first = float(Run.load(self.out).column("metric")[0])
        left = objective.gap(self.first, row.metric) + seeds - 1 - done
        return pruner.hopeless(cost + sum(run.cost for run in self.before), left / seeds)


def _run(config: Config, out: Path, work: TrialWork, watch: Callable[[Row], None], retry: bool = True) -> RunOutcome:
    """Bring one seed's run to its end, or to where `watch` ends it. Start again if its files are damaged."""
    try:
        with np.errstate(over="ignore", invalid="ignore"), suppress(_Pruned):  # trials often diverge
            perform(config, out, watch, executor=work.executor, workers=work.executor_workers)
        return work.objective.judge(Run.load(out), config.seed)
    except DataError:
        if not (retry and out.exists()):
            raise
    shutil.rmtree(out)
    return _run(config, out, work, watch, retry=False)
