"""The runs of an entry, read back: by method and place in the sweep, with their spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.errors import DataError
from qafel.runs.reading import Column, Run
from qafel.sweeps.run import Planned

SETTLED = 0.1
"""The last tenth of a run is what it settled at."""


class Missing(DataError):
    """Runs that a result needs were not made: they failed, or were not asked for."""


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
        """Mean, standard deviation (n − 1; of one value unknown) and range; infinite or unknown where any value is."""
        found = np.array(list(values), dtype=np.float64)
        if not found.size:
            return Spread(math.nan, math.nan, math.nan, math.nan, 0)
        if not np.isfinite(found).all():
            worst = float(found.max()) if not np.isnan(found).any() else math.nan
            return Spread(worst, math.nan, float(found.min()), worst, found.size)
        std = float(found.std(ddof=1)) if found.size > 1 else math.nan
        return Spread(float(found.mean()), std, float(found.min()), float(found.max()), found.size)

    def overlaps(self, other: Spread) -> bool:
        """Whether the ranges over seeds overlap; those of one seed say nothing."""
        return self.count > 1 and self.low <= other.high and other.low <= self.high


@final
@dataclass(frozen=True)
class Measured:
    """What came of an entry's runs."""

    pairs: tuple[tuple[Planned, Run], ...]
    quick: bool = False

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(planned.method for planned, _ in self.pairs))

    @property
    def seeds(self) -> list[int]:
        return sorted({planned.config.seed for planned, _ in self.pairs})

    def places(self, key: str) -> list[float]:
        """The values of `key` in the sweep, in order."""
        return sorted({float(planned.at[key]) for planned, _ in self.pairs if key in planned.at})

    def runs(self, method: str | None = None, **at: float | str) -> list[Run]:
        """The runs of a method at a place in the sweep, by seed; Missing if there is none."""
        return [run for _, run in self.planned(method, **at)]

    def planned(self, method: str | None = None, **at: float | str) -> list[tuple[Planned, Run]]:
        if not (found := self._found(method, at)):
            where = ", ".join(f"{key} {value}" for key, value in at.items())
            raise Missing(f"the runs of {' at '.join(part for part in (method, where) if part)} are missing")
        return found

    def has(self, method: str | None = None, **at: float | str) -> bool:
        return bool(self._found(method, at))

    def _found(self, method: str | None, at: Mapping[str, float | str]) -> list[tuple[Planned, Run]]:
        return [
            (planned, run)
            for planned, run in self.pairs
            if method in (None, planned.method) and all(planned.at.get(key) == value for key, value in at.items())
        ]

    def spread(self, figure: Callable[[Run], float], method: str | None = None, **at: float | str) -> Spread:
        return Spread.of(figure(run) for run in self.runs(method, **at))

    def fair(self, *groups: Sequence[tuple[Planned, Run]]) -> Measured:
        """Only these groups of runs, each with the seeds that all of them have; Missing if there is no such seed.

        What is compared must have had the same luck: a sweep that is not finished has more seeds of some runs.
        """
        common = set(common_seeds(*groups))
        kept = tuple(pair for group in groups for pair in group if pair[0].config.seed in common)
        return Measured(kept, self.quick)


def common_seeds(*groups: Sequence[tuple[Planned, Run]]) -> list[int]:
    """The seeds that all groups of runs have, in order; Missing if there is none."""
    common = set.intersection(*({planned.config.seed for planned, _ in group} for group in groups))
    if not common:
        names = " and ".join(dict.fromkeys(group[0][0].method for group in groups))
        raise Missing(f"the runs of {names} have no seed in common")
    return sorted(common)


def paired(
    figure: Callable[[Run], float], ours: Sequence[tuple[Planned, Run]], theirs: Sequence[tuple[Planned, Run]]
) -> list[tuple[float, float]]:
    """A figure of two groups of runs, with every seed that both have; Missing if there is none."""
    by_seed = [{planned.config.seed: figure(run) for planned, run in group} for group in (ours, theirs)]
    return [(by_seed[0][seed], by_seed[1][seed]) for seed in common_seeds(ours, theirs)]


def diverged(run: Run) -> bool:
    """Whether the model stopped being finite."""
    return run.summary.get("status") == "diverged" or not math.isfinite(float(run.column("metric")[-1]))


def settled(run: Run) -> float:
    """The mean metric over the last tenth of the evaluations; infinite (or zero accuracy) for a run that diverged."""
    if diverged(run):
        return 0.0 if run.summary.get("metric_goal") == "max" else math.inf
    metric = run.column("metric")
    return float(metric[-max(1, round(SETTLED * len(metric))) :].mean())


def first_below(run: Run, level: float, column: str = "uploads") -> float:
    """Where the metric is first at or below a level; infinite if it never is."""
    reached = np.flatnonzero(run.column("metric") <= level)
    return float(run.column(column)[reached[0]]) if reached.size else math.inf


@final
@dataclass(frozen=True)
class Band:
    """A curve over seeds: its mean and range at each evaluation, over the seeds that reached it."""

    x: Column
    mean: Column
    low: Column
    high: Column


def band(runs: Sequence[Run], across: Callable[[Run], Column], column: str = "metric") -> Band:
    """The mean curve of some runs; `across` gives each run's x values, which are averaged.

    A run that ends sooner leaves the mean to the others, so that the curve reaches as far as the longest.
    """
    x, y = _by_row([across(run) for run in runs]), _by_row([run.column(column) for run in runs])
    return Band(
        np.array([row.mean() for row in x]),
        np.array([row.mean() for row in y]),
        np.array([row.min() for row in y]),
        np.array([row.max() for row in y]),
    )


def _by_row(columns: Sequence[Column]) -> list[Column]:
    """For every row, the values of those columns that are long enough to have it."""
    longest = max(len(column) for column in columns)
    return [np.array([column[row] for column in columns if row < len(column)]) for row in range(longest)]


def server_steps(run: Run) -> Column:
    return run.column("version")


def traffic(run: Run) -> Column:
    """Bytes uploaded, plus each broadcast once."""
    return run.traffic
