"""Runs that differ only by seed: which they are, their figures with the spread, their mean curve with its range."""

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
"""What curves are drawn against: a column, or a function of a run."""


@final
@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds."""

    mean: float
    std: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Mean, standard deviation (n − 1; of one value unknown) and range; infinite or unknown if any value is."""
        found = np.array(list(values), dtype=np.float64)
        if not found.size:
            return Spread(math.nan, math.nan, math.nan, math.nan, 0)
        low, high = float(found.min()), float(found.max())
        if not np.isfinite(found).all():
            return Spread(high, math.nan, low, high, found.size)
        std = float(found.std(ddof=1)) if found.size > 1 else math.nan
        return Spread(float(found.mean()), std, low, high, found.size)

    def overlaps(self, other: Spread) -> bool:
        """Whether the ranges over seeds overlap; the range of one seed says nothing."""
        return self.count > 1 and not self.apart_from(other)

    def apart_from(self, other: Spread) -> bool:
        """Whether every value of the one is below every value of the other; a single seed is a point."""
        return self.high < other.low or other.high < self.low

    def text(self, show: Callable[[float], str]) -> str:
        """The mean ± the standard deviation, if there is one, as `show` writes numbers."""
        mean = UNKNOWN if math.isnan(self.mean) else show(self.mean) if math.isfinite(self.mean) else "∞"
        return f"{mean} ± {show(self.std)}" if math.isfinite(self.std) else mean


class Curve(NamedTuple):
    """A mean over seeds against another, and the range over seeds, of which a single run has none."""

    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None


def mean_curve(across: Sequence[Column], values: Sequence[Column]) -> Curve:
    """The mean of some runs' `values`, row by row, against the mean of `across`.

    A run that ends sooner leaves the mean to the others, so that the curve reaches as far as the longest. From there on
    x grows as that of the others does, so that it never goes back.
    """
    if len(values) == 1:
        return Curve(across[0], values[0])
    longest = max(map(len, values))
    there = np.arange(longest) < np.array([[len(column)] for column in values])
    x, y = (
        np.stack([np.pad(column, (0, longest - len(column))) for column in columns]) for columns in (across, values)
    )
    with np.errstate(over="ignore", invalid="ignore"):  # of runs that diverged
        grown = np.diff(x, axis=1, prepend=0.0).mean(axis=0, where=there).cumsum()
        everywhere = there.all(axis=0)
        means = x.mean(axis=0, where=there)
        mean = y.mean(axis=0, where=there)
    # Where all runs are, the plain mean: it is exact.
    return Curve(
        np.where(everywhere, means, grown),
        mean,
        y.min(axis=0, where=there, initial=np.inf),
        y.max(axis=0, where=there, initial=-np.inf),
    )


@final
@dataclass(frozen=True, eq=False)
class Repeats:
    """Runs that differ only by seed, in the order in which they were found; often a single one."""

    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The runs' name; without the seed, if each has its own."""
        names = {run.name for run in self.runs}
        return names.pop() if len(names) == 1 else _name_without_seed(self.runs[0])

    @property
    def ended(self) -> tuple[Run, ...]:
        """The runs whose figures count: those that came to their end, else all."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def diverged(self) -> int:
        return sum(run.diverged for run in self.runs)

    @property
    def unfinished(self) -> int:
        return sum(not run.finished for run in self.runs)

    def spread(self, figure: Figure | str) -> Spread:
        """A figure, or a number of the summary, over the seeds."""
        return Spread.of(run.number(figure) if isinstance(figure, str) else figure(run) for run in self.ended)

    def curve(self, across: Across, values: str) -> Curve:
        """The mean of the column `values` against another, with its range."""
        x = [run.column(across) if isinstance(across, str) else across(run) for run in self.runs]
        return mean_curve(x, [run.column(values) for run in self.runs])


def repeats_of(runs: Iterable[Run]) -> list[Repeats]:
    """Put runs together that differ only by seed; two runs of one seed stay apart.

    They have one name, or each its own that ends in the seed; so a name that several have is no such one.
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
    # A deployed run of the same settings is something else than a simulated one.
    facts = [run.summary.get("virtual_time_unit"), _without(settings, _seed(run))]
    return json.dumps(facts, sort_keys=True, default=str)


def _without(value: Any, seed: object) -> Any:
    """A table without the run's seed, here and further in: a run that Python made has one in its timing, too."""
    if isinstance(value, Mapping):
        return {key: _without(own, seed) for key, own in value.items() if (key, own) != ("seed", seed)}
    return [_without(own, seed) for own in value] if isinstance(value, list) else value


def _seed(run: Run) -> object:
    return run.config.get("seed", run.summary.get("seed"))


def _name_without_seed(run: Run) -> str:
    """The run's name: mine of mine-seed3 and mine-3; of seed3 alone, that of the folder above."""
    seed = re.escape(str(_seed(run)))
    name = re.sub(rf"[-_ ]*seed[-_ =]*{seed}$|[-_ ]+{seed}$", "", run.name)
    return name or folder_name(Path(os.path.realpath(run.path)).parent)
