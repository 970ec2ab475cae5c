"""The runs of an entry, by method and place in the sweep, and figures of them that entries compare.

Methods are compared on the seeds that all of them have. An unfinished sweep has more seeds of some methods, and runs
with different seeds had different luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from qafel.errors import DataError
from qafel.runs import Run, Spread
from qafel.search import RunSpec
from reproduction.statistics import Interval, ratio


class NotComparable(DataError):
    """Runs that a claim needs are missing, or differ from the published ones."""


Column: TypeAlias = NDArray[np.float64]
"""One value per evaluation of a run."""
Figure: TypeAlias = Callable[[Run], float]
"""One number of a run."""
T = TypeVar("T")
Paired: TypeAlias = list[tuple[float, float]]
"""A figure of two groups of runs, per seed."""
Quantity: TypeAlias = str | Callable[[Run], Column]
"""A column of a run by name, or a function that computes one."""

SETTLED = 0.1
"""The share of evaluations at the end of a run that give its final level."""
ROWS = 3
"""The fewest evaluations of that share: a single one may be luck."""

STILL = 0.1
"""A run has settled if its second half improves it by less than this share."""

FAR = 2.0
"""The factor in suboptimality or accuracy that counts as far away."""

LEARNED = 0.5
"""A run that ends below this share of a good accuracy has not learned."""


@final
@dataclass(frozen=True)
class EntryRuns:
    """Runs of an entry, each with its specification."""

    pairs: tuple[tuple[RunSpec, Run], ...]
    quick: bool = False
    cut: bool = False
    """The runs were shortened."""

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(planned.method for planned, _ in self.pairs))

    @property
    def seeds(self) -> list[int]:
        return sorted({planned.config.seed for planned, _ in self.pairs})

    @property
    def task(self) -> str:
        return self.pairs[0][0].config.task.name

    def places(self, key: str) -> list[float]:
        """The values of `key` in the sweep, sorted."""
        return sorted({float(planned.at[key]) for planned, _ in self.pairs if key in planned.at})

    def has(self, method: str | None = None, **at: float | str) -> bool:
        """Whether a run of `method` (None: any) is at the place `at` in the sweep."""
        return any(_is_at(planned, method, at) for planned, _ in self.pairs)

    def of(self, method: str | None = None, **at: float | str) -> EntryRuns:
        """The runs of `method` (None: any) at the place `at` in the sweep; NotComparable if none is there."""
        if not (found := tuple(pair for pair in self.pairs if _is_at(pair[0], method, at))):
            where = ", ".join(f"{key} {value}" for key, value in at.items())
            raise NotComparable(f"the runs of {' at '.join(part for part in (method, where) if part)} are missing")
        return replace(self, pairs=found)

    def by_method(self) -> list[EntryRuns]:
        return [self.of(method) for method in self.methods]

    def runs(self, method: str | None = None, **at: float | str) -> list[Run]:
        """The runs of `of`, without their specifications."""
        return [run for _, run in self.of(method, **at).pairs]

    def spread(self, figure: Figure | str, method: str | None = None, **at: float | str) -> Spread:
        """A figure, or a number of the summary, over the seeds of the runs of `of`."""
        return Spread.of(
            run.number(figure) if isinstance(figure, str) else figure(run) for run in self.runs(method, **at)
        )

    @staticmethod
    def on_common_seeds(*groups: EntryRuns) -> EntryRuns:
        """The groups, reduced to their common seeds; NotComparable if no seed is common."""
        common = set.intersection(*(set(group.seeds) for group in groups))
        if not common:
            names = " and ".join(dict.fromkeys(group.methods[0] for group in groups))
            raise NotComparable(f"the runs of {names} share no seed")
        kept = tuple(pair for group in groups for pair in group.pairs if pair[0].config.seed in common)
        return replace(groups[0], pairs=kept)

    def paired(self, figure: Callable[[Run], T], others: EntryRuns) -> list[tuple[T, T]]:
        """A figure of these runs and of `others` for each common seed; NotComparable if no seed is common."""
        seeds = EntryRuns.on_common_seeds(self, others).seeds
        ours, theirs = ({planned.config.seed: figure(run) for planned, run in it.pairs} for it in (self, others))
        return [(ours[seed], theirs[seed]) for seed in seeds]


def _is_at(planned: RunSpec, method: str | None, at: dict[str, float | str]) -> bool:
    return method in (None, planned.method) and all(planned.at.get(key) == value for key, value in at.items())


def end_ratio(measured: EntryRuns, method: str, reference: str) -> Interval:
    """The method's final level over the reference's; infinite if a seed of the method diverged.

    NotComparable if the reference diverged.
    """
    found = measured.of(method).paired(settled, measured.of(reference))
    if not all(math.isfinite(theirs) for _, theirs in found):
        raise NotComparable(f"the reference {reference} diverged")
    return ratio([(math.inf if math.isnan(ours) else ours, theirs) for ours, theirs in found])


def target_ratio(column: Quantity, ours: EntryRuns, theirs: EntryRuns) -> Interval:
    """A figure at the target, ours over theirs; NotComparable unless every seed of theirs met the target.

    If our run ended before it met the target, its last value counts as a lower bound. A run that diverged counts
    as infinite.
    """
    if not all(map(met_target, theirs.runs())):
        raise NotComparable(f"{theirs.methods[0]}, the reference, did not meet the target with every seed")
    if not all(met_target(run) for planned, run in ours.pairs if planned.config.seed not in theirs.seeds):
        raise NotComparable(f"a seed that {theirs.methods[0]} was not run with did not meet the target")
    beyond = [not met for met, _ in ours.paired(met_target, theirs)]
    return ratio(ours.paired(_used(column), theirs), beyond, _rounding(ours.paired(_step_to_target, theirs)))


def _step_to_target(run: Run) -> float:
    """The uploads between the evaluation that met the target and the one before it, as a share of all."""
    met = run.first_at(run.number("target"), "max")
    return 0.0 if met is None else _step(run, met)


def _step(run: Run, row: int) -> float:
    """The uploads between this `row` and the row before it, as a share of all uploads so far."""
    uploads = run.column("uploads")
    return 1 - float(uploads[row - 1]) / float(uploads[row]) if row else 0.0


def _rounding(steps: Paired) -> float:
    """The standard deviation of log(ours/theirs) that comes from rounding up to the next evaluation."""
    return math.sqrt(float(np.square(steps).sum(axis=1).mean()) / 12)


def level_ratio(level: float, ours: EntryRuns, theirs: EntryRuns, column: Quantity = "version") -> Interval:
    """Server steps, or another `column`, until f(x) − f* reaches a `level`, ours over theirs.

    If our run never reaches the level, its whole length counts as a lower bound; if it diverged, infinity. If one
    of theirs never reaches the level, the lower end is zero.
    """

    def reached(run: Run) -> bool:
        return run.first_at(level, "min") is not None

    def needed(run: Run) -> float:
        rows = _rows(run, column)
        return at_level(run, level, rows) if reached(run) or run.diverged else float(rows[-1])

    def step(run: Run) -> float:
        first = run.first_at(level, "min")
        return 0.0 if first is None else _step(run, first)

    both = ours.paired(reached, theirs)
    found = ratio(ours.paired(needed, theirs), [not mine for mine, _ in both], _rounding(ours.paired(step, theirs)))
    return found if all(other for _, other in both) else replace(found, low=0.0)


def _used(column: Quantity) -> Figure:
    """The value at the target, or the last value if the run did not meet it."""

    def used(run: Run) -> float:
        needed = to_target(column)(run)
        return needed if math.isfinite(needed) or diverges(run) else float(_rows(run, column)[-1])

    return used


def _rows(run: Run, column: Quantity) -> Column:
    return run.column(column) if isinstance(column, str) else column(run)


def traffic(run: Run) -> Column:
    """All bytes uploaded and broadcast so far, as in the paper. A broadcast counts once."""
    return run.column("upload_bytes_total") + run.column("broadcast_bytes_total")


def everything(run: Run) -> Column:
    """All bytes so far, with the downloads of starting clients."""
    return run.bytes_so_far


def if_comparable(value: Callable[[], T], otherwise: T) -> T:
    """The result of `value`, or `otherwise` if it raises NotComparable."""
    try:
        return value()
    except NotComparable:
        return otherwise


def settled(run: Run) -> float:
    """The mean metric over the last tenth of the evaluations; infinity (accuracy: zero) if the run diverged."""
    if run.diverged:
        return 0.0 if run.goal == "max" else math.inf
    metric = run.column("metric")
    return float(metric[-_tenth(metric) :].mean())


def _tenth(metric: Column) -> int:
    return min(len(metric), max(ROWS, round(SETTLED * len(metric))))


def best_level(run: Run) -> float:
    """The best mean over any tenth of the run, to compare with the final level."""
    metric = run.column("metric")
    rows = _tenth(metric)
    metric = metric[np.isfinite(metric)]
    means = sliding_window_view(metric, min(rows, len(metric))).mean(axis=1)
    return float(means.max() if run.goal == "max" else means.min())


def diverges(run: Run) -> bool:
    """Whether a run stops being finite, or ends at twice its best level (accuracy: half of it)."""
    if run.diverged:
        return True
    end, best = settled(run), best_level(run)
    return end <= best / FAR if run.goal == "max" else end >= FAR * best


def _middle(run: Run) -> float:
    """The mean metric over the middle tenth of the run."""
    metric = run.column("metric")
    return float(metric[int(0.45 * len(metric)) : int(0.55 * len(metric)) + 1].mean())


def late_progress(run: Run) -> float:
    """The relative gain of the metric from the middle of the run to its end."""
    if run.diverged:
        return 0.0
    end, middle = settled(run), _middle(run)
    return end / middle - 1 if run.goal == "max" else 1 - end / middle


def has_settled(run: Run) -> bool:
    """Whether the second half improved the metric by less than a tenth."""
    return late_progress(run) < STILL


def stalls(run: Run) -> bool:
    """Whether it has settled below its target, and a second half of the same gain would not reach it."""
    end = settled(run)
    return has_settled(run) and not met_target(run) and end + max(0.0, end - _middle(run)) < run.number("target")


def at_level(run: Run, level: float, values: Column) -> float:
    """The value at the first evaluation with f(x) − f* at or below a `level`; infinity if there was none."""
    first = run.first_at(level, "min")
    return math.inf if first is None else float(values[first])


def to_target(column: Quantity) -> Figure:
    """The value of `column` at the first evaluation that meets the target; infinity if none does."""
    return lambda run: run.at_target(_rows(run, column), "max")


def received(name: str) -> Figure:
    """A number of the summary for a run that ends at its target; infinity if it did not meet it."""
    return lambda run: run.number(name) if met_target(run) else math.inf


def met_target(run: Run) -> bool:
    return math.isfinite(to_target("uploads")(run))


def learned(run: Run, good: float) -> bool:
    """Whether a run ended at half of the accuracy `good` or more."""
    return not run.diverged and settled(run) >= LEARNED * good


def best_accuracy(run: Run) -> float:
    metric = run.column("metric")
    return float(np.nanmax(metric)) if np.isfinite(metric).any() else 0.0
