"""Which runs may be compared, those of one task and metric, and which part of the metric to show of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.drawing.chart import Axis, Style, styles_for
from qafel.runs.reading import Column, Run
from qafel.tasks.protocol import Goal
from qafel.text import human_count, human_metric

_DECADES = 30.0  # a range wider than this factor is read on a logarithmic axis
_BETTER = {"min": "lower is better", "max": "higher is better"}


@final
@dataclass(frozen=True)
class Group:
    """Runs of one kind with their styles; `goal` is "min" or "max"."""

    task: str
    metric: str
    goal: Goal
    runs: tuple[Run, ...]
    styles: tuple[Style, ...]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.task, self.metric, _BETTER[self.goal])))

    @property
    def reference(self) -> int:
        """The run to compare traffic with: the first FedBuff, else the first; one that came to its end, if any did."""
        sound = [index for index, run in enumerate(self.runs) if run.finished and not run.diverged]
        candidates = sound or range(len(self.runs))
        return next((index for index in candidates if _is_fedbuff(self.runs[index])), candidates[0])

    @property
    def targets(self) -> tuple[float, ...]:
        """The metric's values that the runs are to reach, each once."""
        stated = (run.number("target") for run in self.runs)
        return tuple(sorted({target for target in stated if np.isfinite(target)}))

    @property
    def shared_target(self) -> float | None:
        """The target, if all runs have the same one."""
        stated = {run.number("target") for run in self.runs}
        return self.targets[0] if len(stated) == len(self.targets) == 1 else None


def run_styles(runs: Sequence[Run]) -> tuple[Style, ...]:
    """A style for each run, in the order given."""
    return styles_for(run_labels(runs))


def run_labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """Names that differ: the run's own, with seed, directory or number added if others share it."""
    labels = [run.name for run in runs]
    additions = (
        [f"seed {run.summary['seed']}" if "seed" in run.summary else "" for run in runs],
        [run.path.resolve().name for run in runs],
        [f"#{index}" for index in range(1, len(runs) + 1)],
    )
    for addition in additions:
        # An addition is useful to a label if it differs among the runs that share the label.
        distinct = Counter(label for label, _ in set(zip(labels, addition, strict=True)))
        labels = [
            f"{label} · {added}" if distinct[label] > 1 and added else label
            for label, added in zip(labels, addition, strict=True)
        ]
    return tuple(labels)


def groups_of(runs: Sequence[Run]) -> tuple[Group, ...]:
    """The groups in the order of their first runs; every run keeps the style that it has among all."""
    members: dict[tuple[str, str, Goal], list[int]] = {}
    for index, run in enumerate(runs):
        members.setdefault(_kind(run, runs), []).append(index)
    styles = run_styles(runs)
    return tuple(
        Group(*kind, tuple(runs[index] for index in chosen), tuple(styles[index] for index in chosen))
        for kind, chosen in members.items()
    )


def _kind(run: Run, runs: Sequence[Run]) -> tuple[str, str, Goal]:
    """Task, metric and goal. A killed run takes what it does not state from another run of its task."""
    alike = (run, *(other for other in runs if other.task == run.task))
    metric = next((str(name) for other in alike if (name := other.summary.get("metric_name"))), "metric")
    goal: Goal = next((other.goal for other in alike if other.summary.get("metric_goal") in ("min", "max")), "min")
    return run.task, metric, goal


def _is_fedbuff(run: Run) -> bool:
    return "fedbuff" in run.name.casefold() or str(run.summary.get("algorithm", "")).casefold() == "fedbuff"


@final
@dataclass(frozen=True)
class MetricView:
    """The metric's axis, with limits that one diverging run cannot ruin, and a sentence for everything not drawn."""

    axis: Axis
    edge: float
    """The limit through which a run gets worse out of the view."""
    leaves: Mapping[int, int]
    """The runs that leave the limits, by their place in the group: the first row beyond, or that is not finite."""
    notes: tuple[str, ...]
    """What is not drawn; first a note for each run that leaves, in order."""


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
        return MetricView(Axis(group.metric, limits=(0.0, 1.0)), 1.0, {}, (nothing,))
    starts = [curve[0] for curve in finite if curve.size and _stays(curve)]
    ceiling = max(starts) if starts else _ceiling_of_the_diverged(everything)
    log = goal == "min" and is_wide(everything[everything <= ceiling])
    everything = np.concatenate((everything, sign * np.array(group.targets)))
    low, high = _limits(everything[everything > 0] if log else everything, ceiling, log)
    leaves = {index: row for index, curve in enumerate(curves) if (row := _first_outside(curve, high)) >= 0}
    notes = _notes(group, leaves, log, curves)
    low, high = (low, high) if goal == "min" else (-high, -low)
    # The limits for both scales, between which a page can switch.
    axis = Axis(group.metric, log, limits=(0.0 if log else low, high), log_limits=(low, high) if log else None)
    return MetricView(axis, high if goal == "min" else low, leaves, notes)


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
    """Whether a run ends at most a quarter worse than it began; only such runs decide the limits."""
    return bool(curve[-1] <= curve[0] + 0.25 * abs(curve[0]))


def _ceiling_of_the_diverged(values: Column) -> float:
    """Where to cut when every run diverges: six decades are enough to see it."""
    return float(min(values.max(), values[0] + 1e6 * max(abs(values[0]), 1e-6)))


def _limits(values: Column, ceiling: float, log: bool) -> tuple[float, float]:
    floor = float(values.min())
    if log:
        top = min(3.0 * ceiling, 1.3 * float(values.max()))
        return floor / 1.5, top
    spread = ceiling - floor or abs(ceiling) or 1.0
    return floor - 0.04 * spread, min(ceiling + 0.5 * spread, float(values.max()) + 0.04 * spread)


def _first_outside(curve: Column, high: float) -> int:
    outside = np.flatnonzero(~(curve <= high) | np.isneginf(curve))
    return int(outside[0]) if outside.size else -1


def _notes(group: Group, leaves: Mapping[int, int], log: bool, curves: Sequence[Column]) -> tuple[str, ...]:
    """Say what is not drawn; a triangle in a note is the one at the edge of the chart."""
    notes = []
    triangle, sign = ("▲", 1.0) if group.goal == "min" else ("▼", -1.0)
    for index, row in leaves.items():
        run, label, curve = group.runs[index], group.styles[index].label, curves[index]
        worst = sign * float(np.max(curve[np.isfinite(curve)], initial=-np.inf))
        end = f"leaves the view {_where(run, row)} and reaches {human_metric(worst)}"
        gone = f"stops being finite {_where(run, row)}"
        notes.append(f"{triangle} {label} {end if np.isfinite(curve[row]) else gone}.")
    for index, (run, style) in enumerate(zip(group.runs, group.styles, strict=True)):
        if run.diverged and index not in leaves:
            notes.append(f"{style.label} diverges after its last evaluation, {_where(run, len(curves[index]) - 1)}.")
    if log and any((curve <= 0).any() for curve in curves):
        notes.append("Values of zero or below are not drawn on the logarithmic axis.")
    return tuple(notes)


def _where(run: Run, row: int) -> str:
    uploads = float(run.column("uploads")[row])
    return f"at {human_count(uploads)} uploads" if np.isfinite(uploads) else f"at evaluation {row + 1}"
