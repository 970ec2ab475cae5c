"""Trials of a search: the recipe with some settings changed, run once for every seed.

`Objective` defines the cost to minimise. A trial reports its progress to a pruner, which may end it early. `Tuning`
holds all trials of a search.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, final, get_args

import numpy as np

from qafel.config import Config
from qafel.errors import ConfigError, DataError
from qafel.params import Layout
from qafel.runs.progress import Row, meets
from qafel.runs.reading import Run
from qafel.search.runner import perform
from qafel.search.space import Search, Settings, recipe_settings, with_settings
from qafel.simulator.executors import ExecutorName
from qafel.tasks.protocol import Goal, Task
from qafel.text import human_bytes, human_count, human_metric
from qafel.workers import Tell

OutcomeState: TypeAlias = Literal["reached", "finished", "pruned", "missed", "diverged", "failed", "running"]

GOOD: tuple[OutcomeState, ...] = ("reached", "finished")

FARTHEST = 100.0
"""The largest gap."""

ObjectiveName: TypeAlias = Literal[
    "uploads", "upload-bytes", "broadcast-bytes", "received-bytes", "total-bytes", "virtual-time", "metric"
]
"""What a search minimises: the cost of the target, or the metric at the end."""

OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""The names of all objectives."""

_COSTS: Mapping[ObjectiveName, tuple[str, str, Callable[[float], str]]] = {
    "uploads": ("uploads", "uploads", "{:,.0f}".format),
    "upload-bytes": ("upload_bytes_total", "bytes uploaded", human_bytes),
    "broadcast-bytes": ("broadcast_bytes_total", "bytes broadcast", human_bytes),
    "received-bytes": ("received_bytes_total", "bytes received", human_bytes),
    "total-bytes": ("total_bytes", "total bytes", human_bytes),
    "virtual-time": ("virtual_time", "virtual time", human_count),
    "metric": ("metric", "metric", human_metric),
}
"""The column of a run with its cost so far, the name of the cost, and how it is written."""

CANDIDATES = 8
"""The largest number of trials that run again on unseen seeds."""


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
        return f"{_COSTS[self.name][1]} to {self.metric_name} {'≤' if self.goal == 'min' else '≥'} {self.target:g}"

    @property
    def more_is_better(self) -> bool:
        """Whether the figure shown to people should be large, as an accuracy should."""
        return self.name == "metric" and self.goal == "max"

    def displayed(self, score: float) -> float:
        """A score as people read it, without the sign that makes every objective one to minimise."""
        return -score if self.more_is_better else score

    def cost(self, column: Callable[[str], float]) -> float:
        """The cost of a run at an evaluation with these columns. A metric to maximise is negated."""
        return self.displayed(float(column(_COSTS[self.name][0])))

    def text(self, score: float) -> str:
        return _COSTS[self.name][2](self.displayed(score))

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


Pruner: TypeAlias = Callable[[float, float | None], bool]
"""Takes the cost of a trial so far and a value, smaller is better; None: it succeeded. Returns whether to end it."""


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
        runs.append(_run(work, Config.from_dict({**data, "seed": seed}), tuple(runs), pruner, tell))
        if runs[-1].state not in GOOD:
            break
    trial = work.trial.ended(runs, len(work.seeds))
    if pruner is not None and trial.good and work.objective.target is not None:
        pruner(sum(run.cost for run in runs), None)
    return trial


def _run(
    work: TrialWork,
    config: Config,
    before: Sequence[RunOutcome],
    pruner: Pruner | None,
    tell: Tell,
    retry: bool = True,
) -> RunOutcome:
    """Bring one seed's run to its end, or to where it is hopeless. Start again if its files are damaged.

    before   The outcomes of the trial's earlier seeds.
    """
    objective, seeds, out = work.objective, len(work.seeds), work.folder / f"seed-{config.seed}"
    starts: list[float] = []

    def hopeless(row: Row, pruner: Pruner) -> bool:
        cost = objective.cost(partial(getattr, row))
        if objective.target is None:
            return not before and pruner(row.uploads, cost)
        if not starts:  # the run was resumed
            starts.append(float(Run.load(out).column("metric")[0]))
        left = objective.gap(starts[0], row.metric) + seeds - 1 - len(before)
        return pruner(cost + sum(run.cost for run in before), left / seeds)

    def watch(row: Row) -> None:
        tell(row)
        if not math.isfinite(row.metric):
            raise _Pruned
        reached = meets(row.metric, objective.target, objective.goal)
        if not row.uploads:
            starts.append(row.metric)
            if reached:
                raise ConfigError(f"Training starts at or beyond the target {objective.target:g}. Set another target.")
        elif pruner is not None and not reached and hopeless(row, pruner):
            raise _Pruned

    try:
        with np.errstate(over="ignore", invalid="ignore"), suppress(_Pruned):  # trials often diverge
            perform(config, out, watch, executor=work.executor, workers=work.executor_workers)
        return objective.judge(Run.load(out), config.seed)
    except DataError:
        if not (retry and out.exists()):
            raise
    shutil.rmtree(out)
    return _run(work, config, before, pruner, tell, retry=False)


def next_to_check(trials: Iterable[Trial], checks: Mapping[int, Trial], started: Container[int]) -> Trial | None:
    """The next trial to run again with unseen seeds. None if there is none left.

    The least of many noisy costs is a lucky one. So the best trials run again in order, each setting once, until no
    remaining trial has a score below the best mean on unseen seeds.

    checks    The trials that were checked, by number, with their outcomes on unseen seeds.
    started   The numbers of the trials that were checked or are being checked.
    """
    candidates: dict[tuple[object, ...], Trial] = {}  # the first trial of each setting
    for trial in sorted((trial for trial in trials if trial.good), key=lambda trial: trial.score):
        candidates.setdefault(tuple(trial.settings.items()), trial)
    best = min((check.score for check in checks.values() if check.good), default=math.inf)
    left = (trial for trial in list(candidates.values())[:CANDIDATES] if trial.number not in started)
    return next((trial for trial in left if trial.score < best), None)


class SearchProgress(NamedTuple):
    """The trial that starts or ended, and the progress of the search."""

    trial: Trial
    best: Trial | None
    done: int
    objective: Objective
    checking: bool = False
    """Whether the trial runs again with unseen seeds."""


@final
@dataclass(frozen=True)
class Tuning:
    """A search and its results so far."""

    out: Path
    config: Config
    search: Search
    objective: Objective
    seeds: int
    trials: tuple[Trial, ...] = ()
    checks: Mapping[int, Trial] = field(default_factory=dict)
    """The best trials by number, with their outcomes on unseen seeds."""
    importance: Mapping[str, float] = field(default_factory=dict)
    layout: Layout | None = None
    exhausted: bool = False
    """Whether the search ended because it had tried everything."""

    @property
    def best(self) -> Trial | None:
        """The best trial on unseen seeds, or in the search if none was checked. None if no trial is good."""
        checked = [trial for trial in self.trials if trial.good and trial.number in self.checks]
        unseen_first = min(checked, key=lambda trial: (self.checks[trial.number].score, trial.score), default=None)
        return unseen_first or best_of(self.trials)

    @property
    def recipe_settings(self) -> Settings | None:
        """The recipe's settings, which trial 0 tries. None if the search space does not contain them."""
        return recipe_settings(self.config, self.search)

    @property
    def tuned(self) -> Config | None:
        """The recipe with the best settings and the recipe's limits. None if no trial is good."""
        if (best := self.best) is None:
            return None
        return with_settings(self.config, best.settings).model_copy(update={"name": f"{self.config.name}-tuned"})
