"""Runs that differ only by seed: how they are found, their spread, their mean curve."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from qafel.runs.reading import Column, Run, folder_name
from qafel.text import UNKNOWN

Figure: TypeAlias = Callable[[Run], float]
"""One number of a run."""
Across: TypeAlias = str | Callable[[Run], Column]
"""The x values of a curve: a column, or a function of a run."""


@final
@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds: mean, standard deviation, lowest and highest value."""

    mean: float
    std: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Return the spread of `values`. The standard deviation divides by n − 1 and is NaN for one value.

        If a value is not finite, the mean is not either.
        """
        found = np.array(list(values), dtype=np.float64)
        if not found.size:
            return Spread(math.nan, math.nan, math.nan, math.nan, 0)
        low, high = float(found.min()), float(found.max())
        if not np.isfinite(found).all():
            return Spread(high, math.nan, low, high, found.size)
        std = float(found.std(ddof=1)) if found.size > 1 else math.nan
        return Spread(float(found.mean()), std, low, high, found.size)

    def apart_from(self, other: Spread) -> bool:
        """Return whether the two ranges are disjoint. The range of one seed is a point."""
        return self.high < other.low or other.high < self.low

    def text(self, show: Callable[[float], str]) -> str:
        """Return "mean ± standard deviation", with numbers as `show` formats them."""
        mean = UNKNOWN if math.isnan(self.mean) else show(self.mean) if math.isfinite(self.mean) else "∞"
        return f"{mean} ± {show(self.std)}" if math.isfinite(self.std) else mean


class MeanCurve(NamedTuple):
    """Mean y against mean x over seeds, with the range of y; None for a single run."""

    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None


def mean_curve(across: Sequence[Column], values: Sequence[Column]) -> MeanCurve:
    """Return the mean of `values` over runs, row by row, against the mean of `across`.

    After a run's end, the mean is over the others: the curve is as long as the longest. From there, x advances by the
    mean increment of the others, so that it never decreases.
    """
    if len(values) == 1:
        return MeanCurve(across[0], values[0])
    longest = max(map(len, values))
    there = np.arange(longest) < np.array([[len(column)] for column in values])
    x, y = (
        np.stack([np.pad(column, (0, longest - len(column))) for column in columns]) for columns in (across, values)
    )
    with np.errstate(over="ignore", invalid="ignore"):  # runs may have diverged
        grown = np.diff(x, axis=1, prepend=0.0).mean(axis=0, where=there).cumsum()
        everywhere = there.all(axis=0)
        means = x.mean(axis=0, where=there)
        mean = y.mean(axis=0, where=there)
    # While all runs last, the plain mean is exact.
    return MeanCurve(
        np.where(everywhere, means, grown),
        mean,
        y.min(axis=0, where=there, initial=np.inf),
        y.max(axis=0, where=there, initial=-np.inf),
    )


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
