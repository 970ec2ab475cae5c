"""What is to be small, and how near a run came to its target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import numpy as np

from qafel.results.report_numbers import human_bytes, human_count, human_metric
from qafel.results.runs import Column, Run
from qafel.simulator import Row
from qafel.tasks.protocol import Goal
from qafel.tuning.outcome import FARTHEST, RunOutcome, State

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
