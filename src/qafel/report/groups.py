"""Which runs may be compared, those of one task and metric, and which part of the metric to show of them.

Runs that differ only by seed stand together: one style, one curve, one row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from qafel.drawing.chart import Axis, Style, styles_for
from qafel.runs.directory import by_path
from qafel.runs.reading import Column, Run, folder_name
from qafel.runs.seeds import Repeats, repeats_of
from qafel.tasks.protocol import Goal
from qafel.text import UNKNOWN, counted, cut, human_count, human_metric, printable

_DECADES = 30.0  # a range wider than this factor is read on a logarithmic axis
_FEW = 3  # more settings than this are not written into a label
_LONG = 1000  # letters of a setting
_NAMES = ("seed", "name", "description")
_BETTER = {"min": "lower is better", "max": "higher is better"}


@final
@dataclass(frozen=True)
class Group:
    """Runs of one kind, those that differ only by seed together, with their styles; `goal` is "min" or "max"."""

    task: str
    metric: str
    goal: Goal
    members: tuple[Repeats, ...]
    styles: tuple[Style, ...]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.task, self.metric, _BETTER[self.goal])))

    @property
    def repeated(self) -> bool:
        """Whether any of the runs were made with several seeds."""
        return any(len(own.runs) > 1 for own in self.members)

    @property
    def reference(self) -> int:
        """The runs to compare traffic with: the first FedBuff, else the first; such that came to an end, if any did."""
        sound = [index for index, own in enumerate(self.members) if not own.unfinished and not own.diverged]
        candidates = sound or range(len(self.members))
        return next((index for index in candidates if _is_fedbuff(self.members[index].runs[0])), candidates[0])

    @property
    def targets(self) -> tuple[float, ...]:
        """The metric's values that the runs are to reach, each once."""
        stated = (own.runs[0].number("target") for own in self.members)
        return tuple(sorted({target for target in stated if np.isfinite(target)}))

    @property
    def shared_target(self) -> float | None:
        """The target, if all runs have the same one."""
        stated = {own.runs[0].number("target") for own in self.members}
        return self.targets[0] if len(stated) == len(self.targets) == 1 else None


def run_labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """Names that differ, one for each run."""
    return member_labels([Repeats((run,)) for run in runs])


def member_labels(members: Sequence[Repeats]) -> tuple[str, ...]:
    """Names that differ: the runs' own; if others share it, with a few settings, seed, directory or number added."""
    labels = [own.name for own in members]
    first = [own.runs[0] for own in members]
    alone = [len(own.runs) == 1 for own in members]
    additions = (
        _settings_apart(labels, first),
        [
            cut(printable(f"seed {run.summary['seed']}"), 100) if one and "seed" in run.summary else ""
            for run, one in zip(first, alone, strict=True)
        ],
        [folder_name(run.path) for run in first],
        [f"#{index}" for index in range(1, len(members) + 1)],
    )
    for addition in additions:
        # An addition is useful to a label if it differs among the runs that share the label.
        distinct = Counter(label for label, _ in set(zip(labels, addition, strict=True)))
        labels = [
            f"{label} · {added}" if distinct[label] > 1 and added else label
            for label, added in zip(labels, addition, strict=True)
        ]
    return tuple(labels)


def _settings_apart(labels: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """For each run the settings in which it differs from others of its label, as client_lr=0.5; if they are few."""
    settings = [flatten({key: value for key, value in run.config.items() if key not in _NAMES}) for run in runs]
    found = []
    for label, own in zip(labels, settings, strict=True):
        others = [other for name, other in zip(labels, settings, strict=True) if name == label]
        keys = [
            key
            for key in dict.fromkeys(key for other in others for key in other)
            if len({other.get(key) for other in others}) > 1
        ]
        few = keys if len(keys) <= _FEW else []
        found.append(", ".join(f"{key.rpartition('.')[2]}={cut(own.get(key, UNKNOWN), 60)}" for key in few))
    return found


def groups_of(runs: Sequence[Run]) -> tuple[Group, ...]:
    """The groups in the order of their first runs; every set of runs keeps the style that it has among all."""
    repeats = repeats_of(runs)
    kinds: dict[tuple[str, str, Goal], list[int]] = {}
    for index, own in enumerate(repeats):
        kinds.setdefault(_kind(own.runs[0], runs), []).append(index)
    styles = styles_for(member_labels(repeats))
    return tuple(
        Group(*kind, tuple(repeats[index] for index in chosen), tuple(styles[index] for index in chosen))
        for kind, chosen in kinds.items()
    )


def all_styles(groups: Sequence[Group]) -> tuple[Style, ...]:
    """The styles of all groups, in the order in which their runs were given."""
    return tuple(sorted((style for group in groups for style in group.styles), key=lambda style: style.index))


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
    """The curves that leave the limits, by their place in the group: the first row beyond, or that is not finite."""
    notes: tuple[str, ...]
    """What is not drawn; first a note for each curve that leaves, in order."""


def metric_view(group: Group) -> MetricView:
    """Choose scale and limits from the runs that did not get worse than they started, and a target still to reach."""
    goal = group.goal
    sign = 1.0 if goal == "min" else -1.0
    # From here on smaller is better, whatever the goal.
    found = [own.curve("uploads", "metric") for own in group.members]
    curves = [sign * curve.y for curve in found]
    finite = [curve[np.isfinite(curve)] for curve in curves]
    # The better end of the range over seeds is to be seen, too; the worse one may be far away.
    ends = [sign * end for curve in found if (end := curve.low if goal == "min" else curve.high) is not None]
    everything = np.concatenate([*finite, *(end[np.isfinite(end)] for end in ends)])
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
        own, label, curve = group.members[index], group.styles[index].label, curves[index]
        worst = sign * float(np.max(curve[np.isfinite(curve)], initial=-np.inf))
        end = f"leaves the view {_where(own, row)} and reaches {human_metric(worst)}"
        gone = f"stops being finite {_where(own, row)}"
        mean = "the mean of " if len(own.runs) > 1 else ""
        notes.append(f"{triangle} {mean}{label} {end if np.isfinite(curve[row]) else gone}.")
    for index, (own, style) in enumerate(zip(group.members, group.styles, strict=True)):
        if own.diverged and index not in leaves:
            which = of_seeds(style.label, own.diverged, own)
            notes.append(f"{which} diverges after its last evaluation, {_where(own, len(curves[index]) - 1)}.")
    if log and any((curve <= 0).any() for curve in curves):
        notes.append("Values of zero or below are not drawn on the logarithmic axis.")
    return tuple(notes)


def of_seeds(label: str, some: int, own: Repeats) -> str:
    """A label, and of how many of its seeds something is said: qafel (1 of 3 seeds)."""
    return f"{label} ({some} of {len(own.runs)} seeds)" if len(own.runs) > 1 else label


def _where(own: Repeats, row: int) -> str:
    uploads = float(own.curve("uploads", "metric").x[row])
    return f"at {counted(uploads, 'upload', human_count)}" if np.isfinite(uploads) else f"at evaluation {row + 1}"


def flatten(table: Mapping[str, Any]) -> dict[str, str]:
    """Dotted keys and printable values of nested tables."""
    return {
        printable(key): cut(
            printable(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)), _LONG
        )
        for key, value in by_path(table).items()
    }
