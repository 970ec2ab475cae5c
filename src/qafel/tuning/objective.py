"""What is to be small, and how near a run came to its target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np

from qafel.runs.reading import Column, Run
from qafel.simulator import Row
from qafel.tasks.protocol import Goal
from qafel.text import human_bytes, human_count, human_metric

# What came of a run, and of a trial's runs together.


State: TypeAlias = Literal["reached", "finished", "cut off", "missed", "diverged", "failed", "running"]


GOOD: tuple[State, ...] = ("reached", "finished")


MISSED = 1e30
"""The score of a trial that used up its budget begins here; TPE looks at the order of scores alone."""


DIVERGED = 1e33


FAILED = 1e34


FARTHEST = 100.0


@final
@dataclass(frozen=True)
class RunOutcome:
    """What came of one run: `cost` until the target, or until the run's end."""

    seed: int
    state: State
    cost: float
    gap: float
    metric: float | None
    uploads: int
    wall_s: float


@final
@dataclass(frozen=True)
class Outcome:
    """What came of a trial: `score` is what the search sees, smaller is better."""

    state: State
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Outcome:
        return Outcome(**{**data, "runs": tuple(RunOutcome(**run) for run in data["runs"])})


def combine(runs: Sequence[RunOutcome], seeds: int) -> Outcome:
    """One outcome of a trial's runs, of which the last may have ended the trial before all seeds had their turn.

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
    return Outcome(state, score, gap, tuple(runs))


def estimate(run: RunOutcome) -> float:
    """What a run that was cut off might have cost at its pace so far: cost / (1 − gap).

    From 1 − gap = 0.1 on the estimate grows with the gap alone, so that a run that got nowhere, or worse, has a slope.
    """
    gap = max(0.0, run.gap)
    return run.cost * (1 / (1 - gap) if gap <= 0.9 else 10 + 10 * (gap - 0.9))


def failure(error: str) -> Outcome:
    """What came of a trial that could not be run: after all others, with the sentence that says why."""
    return Outcome("failed", FAILED, FARTHEST, (), error)


def together(parts: Sequence[Outcome], seeds: int, allowance: float) -> Outcome:
    """One outcome of a trial whose seeds ran one by one, in their order: as if each had waited for the one before."""
    runs: list[RunOutcome] = []
    for part in parts:
        if part.state == "failed":
            return part
        runs += part.runs
        if not part.good or sum(run.cost for run in runs) >= allowance:
            break
    return combine(runs, seeds)


ObjectiveName: TypeAlias = Literal["uploads", "upload-bytes", "broadcast-bytes", "bytes", "virtual-time", "metric"]


OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)


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

    def meets(self, metric: float) -> bool:
        if self.target is None:
            return False
        return metric <= self.target if self.goal == "min" else metric >= self.target

    def cost_of_row(self, row: Row) -> float:
        """What a run has cost so far."""
        return {
            "uploads": row.uploads,
            "upload-bytes": row.upload_bytes_total,
            "broadcast-bytes": row.broadcast_bytes_total,
            "bytes": row.upload_bytes_total + row.broadcast_bytes_total,
            "virtual-time": row.virtual_time,
            "metric": 0.0,
        }[self.name]

    def costs(self, run: Run) -> Column:
        """What the run had cost at each evaluation; a metric that should be large counts negatively."""
        match self.name:
            case "uploads" | "virtual-time":
                return run.column(self.name.replace("-", "_"))
            case "upload-bytes" | "broadcast-bytes":
                return run.column(f"{self.name.replace('-', '_')}_total")
            case "bytes":
                return run.traffic
            case "metric":
                return run.column("metric") * (1 if self.goal == "min" else -1)

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
        """The share of the way to the target that is left: 1 at the start, 0 at the target, above 1 where it got worse.

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
        metric, costs = run.column("metric"), self.costs(run)
        reached = np.flatnonzero([self.meets(value) for value in metric])
        row = int(reached[0]) if reached.size else len(metric) - 1
        state: State = "finished" if self.target is None else "reached" if reached.size else "missed"
        if state != "reached":
            if run.summary.get("status") == "diverged" or not math.isfinite(metric[-1]):
                state = "diverged"
            elif not run.finished:
                state = "cut off"
        gap = 0.0 if state in ("reached", "finished") else FARTHEST
        if state in ("missed", "cut off"):
            gap = self.gap(float(metric[0]), float(metric[-1]))
        return RunOutcome(
            seed=seed,
            state=state,
            cost=float(costs[row]) if state != "diverged" else 0.0,
            gap=gap,
            metric=float(metric[row]) if math.isfinite(metric[row]) else None,
            uploads=int(run.column("uploads")[row]),
            wall_s=float(run.column("wall_s")[-1]),
        )
