"""Groups of comparable runs, of one task and metric, and the visible part of their metric.

Runs that differ only by seed share a style, a curve and a row.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from qafel.drawing.chart import Axis, Style, styles_for
from qafel.runs.directory import by_path
from qafel.runs.reading import Column, MeanCurve, Run, Spread, folder_name, mean_curve
from qafel.tasks.protocol import Goal
from qafel.text import UNKNOWN, counted, cut, human_count, human_metric, printable

_DECADES = 30.0  # a range wider than this factor gets a logarithmic axis
_FEW = 3  # the most settings in a label
_LONG = 1000  # the most letters of a setting
_NAMES = ("seed", "name", "description")
_BETTER = {"min": "lower is better", "max": "higher is better"}

Figure: TypeAlias = Callable[[Run], float]
"""One number of a run."""
Across: TypeAlias = str | Callable[[Run], Column]
"""The x values of a curve: a column, or a function of a run."""


@final
@dataclass(frozen=True, eq=False)
class Repeats:
    """Runs that differ only by seed, in the order of discovery; often a single one."""

    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The common name of the runs, without the seed."""
        names = {run.name for run in self.runs}
        return names.pop() if len(names) == 1 else _name_without_seed(self.runs[0])

    @property
    def ended(self) -> tuple[Run, ...]:
        """The runs whose figures count: the finished ones, or all if none has finished."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def diverged(self) -> int:
        return sum(run.diverged for run in self.runs)

    @property
    def unfinished(self) -> int:
        return sum(not run.finished for run in self.runs)

    def spread(self, figure: Figure | str) -> Spread:
        """Return the spread of a figure over the seeds: a function of a run, or a key of its summary."""
        return Spread.of(run.number(figure) if isinstance(figure, str) else figure(run) for run in self.ended)

    def curve(self, across: Across, values: str) -> MeanCurve:
        """Return the mean of the column `values` against `across`, with its range."""
        x = [run.column(across) if isinstance(across, str) else across(run) for run in self.runs]
        return mean_curve(x, [run.column(values) for run in self.runs])


def repeats_of(runs: Iterable[Run]) -> list[Repeats]:
    """Group runs that differ only by seed. Two runs of one seed stay separate.

    The runs of a group share a name, or have names that differ only in a seed at the end.
    """
    pairs = [(run, _all_but_seed(run)) for run in runs]
    shared = Counter((settings, run.name) for run, settings in pairs)
    found: dict[tuple[str, str, int], list[Run]] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    for run, settings in pairs:
        name = run.name if shared[settings, run.name] > 1 else _name_without_seed(run)
        place = settings, name, str(_seed(run))
        found.setdefault((settings, name, seen[place]), []).append(run)
        seen[place] += 1
    return [Repeats(tuple(together)) for together in found.values()]


def _all_but_seed(run: Run) -> str:
    settings = {key: value for key, value in run.config.items() if key not in ("name", "description")}
    # A deployed run is not a repeat of a simulated one with the same settings.
    facts = [run.summary.get("virtual_time_unit"), _without(settings, _seed(run))]
    return json.dumps(facts, sort_keys=True, default=str)


def _without(value: Any, seed: object) -> Any:
    """Return a table without the run's seed at any depth: the timing of a run made in Python has it, too."""
    if isinstance(value, Mapping):
        return {key: _without(own, seed) for key, own in value.items() if (key, own) != ("seed", seed)}
    return [_without(own, seed) for own in value] if isinstance(value, list) else value


def _seed(run: Run) -> object:
    return run.config.get("seed", run.summary.get("seed"))


def _name_without_seed(run: Run) -> str:
    """Return the name without its seed: mine for mine-seed3 and mine-3, the parent folder's name for seed3."""
    seed = re.escape(str(_seed(run)))
    name = re.sub(rf"[-_ ]*seed[-_ =]*{seed}$|[-_ ]+{seed}$", "", run.name)
    return name or folder_name(Path(os.path.realpath(run.path)).parent)


@final
@dataclass(frozen=True)
class Group:
    """Runs of one task, metric and goal. `members` are runs that differ only by seed; each has a style."""

    task: str
    metric: str
    goal: Goal
    members: tuple[Repeats, ...]
    styles: tuple[Style, ...]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.task, self.metric, _BETTER[self.goal])))

    @property
    def styled(self) -> tuple[tuple[Repeats, Style], ...]:
        """The members with their styles."""
        return tuple(zip(self.members, self.styles, strict=True))

    @property
    def repeated(self) -> bool:
        """Whether any member has several seeds."""
        return any(len(own.runs) > 1 for own in self.members)

    @property
    def reference(self) -> int:
        """The member to compare bytes with: the first FedBuff, else the first. Finished, sound members come first."""
        sound = [index for index, own in enumerate(self.members) if not own.unfinished and not own.diverged]
        candidates = sound or range(len(self.members))
        return next((index for index in candidates if _is_fedbuff(self.members[index].runs[0])), candidates[0])

    @property
    def targets(self) -> tuple[float, ...]:
        """The target values of the metric, each once."""
        stated = (own.runs[0].number("target") for own in self.members)
        return tuple(sorted({target for target in stated if np.isfinite(target)}))

    @property
    def shared_target(self) -> float | None:
        """The target, if all members have the same one."""
        stated = {own.runs[0].number("target") for own in self.members}
        return self.targets[0] if len(stated) == len(self.targets) == 1 else None


def run_labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return a distinct name for each run."""
    return member_labels([Repeats((run,)) for run in runs])


def member_labels(members: Sequence[Repeats]) -> tuple[str, ...]:
    """Return distinct names. A name that members share gets a few settings, the seed, the folder or a number."""
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
        # An addition is useful if it differs among the runs that share the label.
        distinct = Counter(label for label, _ in set(zip(labels, addition, strict=True)))
        labels = [
            f"{label} · {added}" if distinct[label] > 1 and added else label
            for label, added in zip(labels, addition, strict=True)
        ]
    return tuple(labels)


def _settings_apart(labels: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Return for each run the settings that distinguish it within its label, as client_lr=0.5, if they are few."""
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
    """Return the groups in the order of their first runs. Styles are unique over all groups."""
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
    """Return the styles of all groups in the order of their runs."""
    return tuple(sorted((style for group in groups for style in group.styles), key=lambda style: style.index))


def _kind(run: Run, runs: Sequence[Run]) -> tuple[str, str, Goal]:
    """Return task, metric and goal. A killed run takes missing ones from another run of its task."""
    alike = (run, *(other for other in runs if other.task == run.task))
    metric = next((str(name) for other in alike if (name := other.summary.get("metric_name"))), "metric")
    goal: Goal = next((other.goal for other in alike if other.summary.get("metric_goal") in ("min", "max")), "min")
    return run.task, metric, goal


def _is_fedbuff(run: Run) -> bool:
    return "fedbuff" in run.name.casefold() or str(run.summary.get("algorithm", "")).casefold() == "fedbuff"


@final
@dataclass(frozen=True)
class MetricView:
    """The metric's axis with limits that ignore diverging runs, and notes about everything outside."""

    axis: Axis
    edge: float
    """The limit on the worse side."""
    leaves: Mapping[int, int]
    """By index in the group, the first row of a curve that is outside the limits or not finite."""
    notes: tuple[str, ...]
    """Notes about missing parts: first one for each curve in `leaves`, in order."""


def metric_view(group: Group) -> MetricView:
    """Choose scale and limits from the runs that did not get worse, and from targets not yet reached."""
    goal = group.goal
    sign = 1.0 if goal == "min" else -1.0
    # From here on, smaller is better for every goal.
    found = [own.curve("uploads", "metric") for own in group.members]
    curves = [sign * curve.y for curve in found]
    finite = [curve[np.isfinite(curve)] for curve in curves]
    # The better end of the range over seeds is visible, too. The worse end may be far away.
    ends = [sign * end for curve in found if (end := curve.low if goal == "min" else curve.high) is not None]
    everything = np.concatenate([*finite, *(end[np.isfinite(end)] for end in ends)])
    if not everything.size:
        nothing = "Nothing to draw: the metric of every run is not finite."
        return MetricView(Axis(group.metric, limits=(0.0, 1.0)), 1.0, {}, (nothing,))
    starts = [curve[0] for curve in finite if curve.size and _stays(curve)]
    ceiling = max(starts) if starts else _ceiling_of_the_diverged(everything)
    log = goal == "min" and spans_decades(everything[everything <= ceiling])
    everything = np.concatenate((everything, sign * np.array(group.targets)))
    low, high = _limits(everything[everything > 0] if log else everything, ceiling, log)
    leaves = {index: row for index, curve in enumerate(curves) if (row := _first_outside(curve, high)) >= 0}
    notes = _notes(group, leaves, log, curves)
    low, high = (low, high) if goal == "min" else (-high, -low)
    # Limits for both scales: the page can switch between them.
    axis = Axis(group.metric, log, limits=(0.0 if log else low, high), log_limits=(low, high) if log else None)
    return MetricView(axis, high if goal == "min" else low, leaves, notes)


def spans_decades(values: Column) -> bool:
    """Return whether a logarithmic axis fits: values are positive and span more than a decade and a half."""
    positive = values[values > 0]
    return bool(positive.size >= 0.99 * values.size > 0 and positive.max() > _DECADES * positive.min())


def log_start(columns: Sequence[Column]) -> float:
    """Return the start of a logarithmic x axis: the first positive value, or later.

    It starts about two decades before the shortest curve ends: earlier parts are flat.
    """
    positive = [column[np.isfinite(column) & (column > 0)] for column in columns]
    ends = [float(column.max()) for column in positive if column.size]
    starts = [float(column.min()) for column in positive if column.size]
    return max(min(ends) / 200, min(starts) / 1.3) if ends else 1.0


def _stays(curve: Column) -> bool:
    """Return whether a run ends at most a quarter worse than it began. Only such runs decide the limits."""
    return bool(curve[-1] <= curve[0] + 0.25 * abs(curve[0]))


def _ceiling_of_the_diverged(values: Column) -> float:
    """Return the upper limit if every run diverges: six decades above the start."""
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
    """Describe the parts that are not drawn. A note's triangle is the mark at the edge of the chart."""
    notes = []
    triangle, sign = ("▲", 1.0) if group.goal == "min" else ("▼", -1.0)
    for index, row in leaves.items():
        own, label, curve = group.members[index], group.styles[index].label, curves[index]
        worst = sign * float(np.max(curve[np.isfinite(curve)], initial=-np.inf))
        end = f"leaves the view at {_where(own, row)} and reaches {human_metric(worst)}"
        lost = f"is not finite from {_where(own, row)} on"
        mean = "the mean of " if len(own.runs) > 1 else ""
        notes.append(f"{triangle} {mean}{label} {end if np.isfinite(curve[row]) else lost}.")
    for index, (own, style) in enumerate(group.styled):
        if own.diverged and index not in leaves:
            which = of_seeds(style.label, own.diverged, own)
            notes.append(f"{which} diverges after its last evaluation at {_where(own, len(curves[index]) - 1)}.")
    if log and any((curve <= 0).any() for curve in curves):
        notes.append("Values of zero or below are not drawn on the logarithmic axis.")
    return tuple(notes)


def of_seeds(label: str, some: int, own: Repeats) -> str:
    """Return a label with a number of its seeds: qafel (1 of 3 seeds)."""
    return f"{label} ({some} of {len(own.runs)} seeds)" if len(own.runs) > 1 else label


def _where(own: Repeats, row: int) -> str:
    uploads = float(own.curve("uploads", "metric").x[row])
    return counted(uploads, "upload", human_count) if np.isfinite(uploads) else f"evaluation {row + 1}"


def flatten(table: Mapping[str, Any]) -> dict[str, str]:
    """Flatten nested tables to dotted keys and printable values."""
    return {
        printable(key): cut(
            printable(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)), _LONG
        )
        for key, value in by_path(table).items()
    }
