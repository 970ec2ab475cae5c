"""Which part of the metric to show: scale and limits that one diverging run cannot ruin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.results.report_groups import Group
from qafel.results.report_numbers import human_count, human_metric
from qafel.results.runs import Column, Run

_DECADES = 30.0  # a range wider than this factor is read on a logarithmic axis


@final
@dataclass(frozen=True)
class Exit:
    """Where a run's metric leaves the view: the first row beyond it, or the first that is not finite. `run` is the
    run's place in its group.
    """

    run: int
    row: int


@final
@dataclass(frozen=True)
class MetricView:
    """The metric's axis: name, goal, scale, limits, targets in sight, and a sentence for everything not drawn."""

    name: str
    goal: str
    log: bool
    low: float
    high: float
    exits: tuple[Exit, ...]
    notes: tuple[str, ...]
    targets: tuple[float, ...] = ()

    @property
    def edge(self) -> float:
        """The limit through which a run gets worse out of the view."""
        return self.high if self.goal == "min" else self.low

    def within_reach(self, values: Column) -> Column:
        """The values, moved to just outside the view where they are far outside, for renderers that would overflow."""
        reach = 10.0 * (self.high - self.low)
        lowest = self.low / 10 if self.log else self.low - reach
        return np.where(np.isfinite(values), np.clip(values, lowest, self.high + reach), np.nan)


def metric_view(group: Group) -> MetricView:
    """Choose scale and limits from the runs that did not get worse than they started, and a target still to reach."""
    goal = group.goal
    sign = 1.0 if goal == "min" else -1.0
    # From here on smaller is better, whatever the goal.
    curves = [sign * run.column("metric") for run in group.runs]
    finite = [curve[np.isfinite(curve)] for curve in curves]
    everything = np.concatenate(finite)
    if not everything.size:
        nothing = "No run has a finite metric: nothing to draw."
        return MetricView(group.metric, goal, log=False, low=0.0, high=1.0, exits=(), notes=(nothing,))
    starts = [curve[0] for curve in finite if curve.size and _stays(curve)]
    ceiling = max(starts) if starts else _ceiling_of_the_diverged(everything)
    log = goal == "min" and is_wide(everything[everything <= ceiling])
    targets = tuple(target for target in group.targets if target > 0 or not log)
    everything = np.concatenate((everything, sign * np.array(targets)))
    low, high = _limits(everything, ceiling, log)
    exits = tuple(Exit(index, row) for index, curve in enumerate(curves) if (row := _first_outside(curve, high)) >= 0)
    notes = _notes(group, exits, log, curves)
    low, high = (low, high) if goal == "min" else (-high, -low)
    return MetricView(group.metric, goal, log, low, high, exits, notes, targets)


def is_wide(values: Column) -> bool:
    """Whether a logarithmic axis suits: positive but for rounding, and over more than a decade and a half."""
    positive = values[values > 0]
    return bool(positive.size >= 0.99 * values.size > 0 and positive.max() > _DECADES * positive.min())


def log_start(columns: Sequence[Column]) -> float:
    """Where a logarithmic x axis begins: with the first positive value, yet no earlier than the curves differ.

    That is two decades or so before the shortest curve ends; what lies further left is flat.
    """
    positive = [column[np.isfinite(column) & (column > 0)] for column in columns]
    ends = [float(column.max()) for column in positive if column.size]
    starts = [float(column.min()) for column in positive if column.size]
    return max(min(ends) / 200, min(starts) / 1.3) if ends else 1.0


def _stays(curve: Column) -> bool:
    """Whether a run ends no worse than it began, up to a quarter; one that does not has no say in the limits."""
    return bool(curve[-1] <= curve[0] + 0.25 * abs(curve[0]))


def _ceiling_of_the_diverged(values: Column) -> float:
    """Where to cut when every run diverges: six decades are enough to see it."""
    return float(min(values.max(), values[0] + 1e6 * max(abs(values[0]), 1e-6)))


def _limits(values: Column, ceiling: float, log: bool) -> tuple[float, float]:
    floor = float(values.min())
    if log:
        top = min(3.0 * ceiling, 1.3 * float(values.max()))
        return float(values[values > 0].min()) / 1.5, top
    spread = ceiling - floor or abs(ceiling) or 1.0
    return floor - 0.04 * spread, min(ceiling + 0.5 * spread, float(values.max()) + 0.04 * spread)


def _first_outside(curve: Column, high: float) -> int:
    outside = np.flatnonzero(~(curve <= high) | np.isneginf(curve))
    return int(outside[0]) if outside.size else -1


def _notes(group: Group, exits: Sequence[Exit], log: bool, curves: Sequence[Column]) -> tuple[str, ...]:
    notes = []
    for leaving in exits:
        label, curve = group.styles[leaving.run].label, curves[leaving.run]
        where = _where(group.runs[leaving.run], leaving.row)
        worst = float(np.max(curve[np.isfinite(curve)], initial=-np.inf)) * (1.0 if group.goal == "min" else -1.0)
        if np.isfinite(curve[leaving.row]):
            notes.append(f"{label} leaves the view {where} and reaches {human_metric(worst)}.")
        else:
            notes.append(f"{label} stops being finite {where}.")
    left = {leaving.run for leaving in exits}
    for index, (run, style) in enumerate(zip(group.runs, group.styles, strict=True)):
        if run.diverged and index not in left:
            notes.append(f"{style.label} diverges after its last evaluation, {_where(run, len(curves[index]) - 1)}.")
    if log and any((curve <= 0).any() for curve in curves):
        notes.append("Values of zero or below are not drawn on the logarithmic axis.")
    return tuple(notes)


def _where(run: Run, row: int) -> str:
    uploads = float(run.column("uploads")[row])
    return f"at {human_count(uploads)} uploads" if np.isfinite(uploads) else f"at evaluation {row + 1}"
