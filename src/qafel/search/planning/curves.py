"""How a metric goes with uploads: read off a run, carried on beyond its end, and slowed down.

A run's metric is noisy. What lies below it is taken to be monotone: isotonic regression, averaged in a few bins that
are even in log(uploads), and lines between them, of log(metric) where that is to become small. Beyond the last
evaluation the line goes on with the slope of the last three quarters of the uploads: runs slow down as they go, and a
law that is linear in u or √u, though it may fit the beginning, promises too much.

At a level ℓ the run makes progress at a rate a(ℓ) = |dm/du|. A cause of strength s, such as the variance ω of a
quantizer, takes a share s(c₁ + c₂·a^p) of it away. c₁ is what stays in proportion. Noise (p = −1) counts for more the
less progress there is, and makes a floor where nothing is left; a lag (p = +1) counts for less, as what is late by some
steps matters little where steps change little: in the theorem, too, the client's error stands beside 1/√T and the
server's, like staleness, beside 1/T. Uploads to a level are ∫ du / (1 − s(c₁ + c₂·a^p)), infinite below the floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.runs.reading import Run
from qafel.tasks.protocol import Goal

Wide: TypeAlias = NDArray[np.float64]

FEWEST_ROWS = 8
"""A curve of fewer evaluations says nothing."""
_BINS = 12
_POINTS = 400
_FURTHEST = 50.0
"""How many times a run's length a curve is carried on at most."""
_LEAST_LEFT = 0.02
"""Progress below this share of the undisturbed counts as none."""
_DRAWS = 400
_COSTS = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 40)])
"""What c₁ and c₂ may be, times the strength at which they were measured: shares of the progress."""
_LEAST_NOISE = 0.01
"""Of log(uploads) to a level: the model is not more exact than that."""


NOISE, LAG = -1, 1
"""How what a cause takes away goes with the rate of progress."""


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """What one unit of a cause takes away of the progress: the shares c₁ and c₂·a^p, a being relative to `rate`."""

    proportional: float = 0.0
    varying: float = 0.0
    power: int = NOISE
    rate: float = 1.0
    """The progress per upload that a is relative to."""

    def of(self, strength: float, rates: Wide) -> Wide:
        """The shares that are lost at these rates of progress."""
        lost: Wide = strength * (self.proportional + self.varying * (rates / self.rate) ** self.power)
        return lost


@final
@dataclass(frozen=True)
class Curve:
    """A run's metric by uploads, as it was measured."""

    uploads: Wide
    metric: Wide
    goal: Goal

    @staticmethod
    def of(run: Run) -> Curve:
        """The curve of a run, up to where it was last finite; a ConfigError if it has too few evaluations."""
        uploads, metric = run.column("uploads"), run.column("metric")
        finite = int(np.argmin(np.isfinite(metric))) if not np.isfinite(metric).all() else len(metric)
        kept = slice(int(np.searchsorted(uploads, 0.0, side="right")), finite)
        curve = Curve(uploads[kept], metric[kept], run.goal)
        if len(curve.uploads) < FEWEST_ROWS:
            raise ConfigError(
                f"{run.name} has {len(curve.uploads)} finite evaluations, and {FEWEST_ROWS} are needed to tell its "
                "course: make the pilot longer, or its evaluations more frequent"
            )
        return curve

    def beside(self, other: Curve) -> Curve:
        """Both runs' evaluations as one curve, as far as both go."""
        uploads, metric = (np.concatenate(it) for it in ((self.uploads, other.uploads), (self.metric, other.metric)))
        order = np.argsort(uploads, kind="stable")
        order = order[uploads[order] <= min(self.end, other.end)]
        return Curve(uploads[order], metric[order], self.goal)

    @property
    def end(self) -> float:
        """The uploads of the last evaluation."""
        return float(self.uploads[-1])

    def height(self, metric: Wide) -> Wide:
        """The metric so that progress is upwards: −log m where it is to become small and is positive, else m or −m."""
        if self.goal == "max":
            return metric
        return -np.log(np.maximum(metric, 1e-300)) if self._positive else -metric

    def level(self, height: Wide) -> Wide:
        """The inverse of `height`."""
        if self.goal == "max":
            return height
        return np.exp(-height) if self._positive else -height

    @cached_property
    def _positive(self) -> bool:
        return bool(np.all(self.metric > 0))

    @cached_property
    def _heights(self) -> Wide:
        return self.height(self.metric)

    @cached_property
    def knots(self) -> tuple[Wide, Wide]:
        """Uploads and heights between which the smooth curve is a line in log(uploads): strictly ascending."""
        smooth, logs = _isotonic(self._heights), np.log(self.uploads)
        edges = np.linspace(logs[0], logs[-1], min(_BINS, len(logs) // 2) + 1)
        bins = np.clip(np.searchsorted(edges, logs, side="right") - 1, 0, len(edges) - 2)
        x: list[float] = []
        y: list[float] = []
        for number in range(len(edges) - 1):
            inside = bins == number
            if inside.any() and (not y or smooth[inside].mean() > y[-1] + 1e-9):
                x.append(float(logs[inside].mean()))
                y.append(float(smooth[inside].mean()))
        return np.exp(np.array(x)), np.array(y)

    @cached_property
    def noise(self) -> float:
        """The standard deviation of evaluations around the smooth curve, in height, over the second half."""
        late = self.uploads >= self.end / 2
        beside = self._heights[late] - self.smooth(self.uploads[late])
        return float(np.std(beside)) if late.sum() > 2 else 0.0

    def smooth(self, uploads: Wide) -> Wide:
        """The height at so many uploads, also beyond the end."""
        x, y = self.knots
        inside = np.interp(np.log(uploads), np.log(x), y)
        beyond = y[-1] + self._slope * np.log(np.maximum(uploads, x[-1]) / x[-1])
        return np.where(uploads > x[-1], beyond, inside)

    @cached_property
    def _slope(self) -> float:
        """By how much the height rises with log(uploads), in the end."""
        late = self.uploads >= self.end / 4
        x, y = np.log(self.uploads[late]), self._heights[late]
        centred = x - x.mean()
        return max(0.0, float(centred @ (y - y.mean()) / max(centred @ centred, 1e-300)))

    def grid(self) -> tuple[Wide, Wide]:
        """Uploads, even in their logarithm, to far beyond the end; and the smooth metric there."""
        uploads = np.geomspace(self.knots[0][0], _FURTHEST * self.end, _POINTS)
        return uploads, self.level(self.smooth(uploads))


def first_hit(curve: Curve, target: float, every: float, stream: Stream) -> tuple[float, float, float]:
    """Uploads at the first noisy evaluation that meets a target, one each `every` uploads: quantiles 10, 50 and 90 %.

    A noisy metric meets it sooner than a smooth one would. Infinite where the curve does not come near.
    """
    wanted = float(curve.height(np.array([target]))[0])
    times = every * np.arange(1, int(_FURTHEST * curve.end / every) + 1, dtype=np.float64)
    heights = curve.smooth(times)
    near = int(np.searchsorted(heights, wanted - 4 * curve.noise))
    last = int(np.searchsorted(heights, wanted + 4 * curve.noise)) + 1
    times, heights = times[near:last], heights[near:last]
    if not len(times) or heights[-1] + curve.noise < wanted:
        return (math.inf,) * 3
    noise = curve.noise * stream.generator().standard_normal((_DRAWS, len(times)))
    met = heights + noise >= wanted
    hits = np.where(met.any(1), times[np.argmax(met, 1)], math.inf)
    low, middle, high = np.quantile(hits, (0.1, 0.5, 0.9), method="lower")
    return float(low), float(middle), float(high)


@final
@dataclass(frozen=True, slots=True)
class Slowed:
    """A curve with something in its way."""

    uploads: Wide
    """Infinite from the level on that is not reached."""
    heights: Wide

    def at(self, height: float) -> float:
        """The uploads to a height."""
        if height > self.heights[-1]:
            return math.inf
        return float(np.interp(height, self.heights, self.uploads))

    def height_after(self, uploads: float) -> float:
        """The height after so many uploads."""
        finite = np.isfinite(self.uploads)
        if not finite.any():
            return float(self.heights[0])
        return float(np.interp(uploads, self.uploads[finite], self.heights[finite]))


def slowed(base: Curve, costs: Mapping[str, Cost], strengths: Mapping[str, float]) -> Slowed:
    """The base's smooth curve with causes of these strengths in its way."""
    uploads, metric = base.grid()
    rates = _rates(uploads, metric)
    left = 1.0 - sum((costs[name].of(strength, rates) for name, strength in strengths.items()), np.zeros(_POINTS))
    with np.errstate(divide="ignore"):
        slowness = np.where(left > _LEAST_LEFT, 1 / np.maximum(left, 1e-12), math.inf)
    steps = np.diff(uploads, prepend=0.0)
    stretched = np.cumsum(np.where(np.isfinite(slowness), slowness, 0.0) * steps)
    stretched[np.maximum.accumulate(~np.isfinite(slowness))] = math.inf
    return Slowed(stretched, base.height(metric))


def fitted_cost(base: Curve, other: Curve, strength: float, power: int = NOISE) -> Cost:
    """What a cause costs, from a run in which it had this strength, beside one without it.

    Shares c₁ and c₂ fit if the base's levels would be met when the other run met them; a level that it did not meet
    must come after its end. All that may be are averaged, by how likely they are with such noise: where noise
    hides which of the two it is, what is foretold lies between them.
    """
    uploads, metric = base.grid()
    heights, rates = base.height(metric), _rates(uploads, metric)
    x, y = other.knots
    begin, top = _common_heights(base, other)
    rate = float(np.interp(top, heights, rates))
    levels = np.concatenate([np.linspace(begin, top, 20), np.linspace(top, base.knots[1][-1], 4)[1:]])
    reached = levels <= y[-1]
    measured = np.where(reached, np.interp(levels, y, np.log(x)), math.log(other.end))
    steps = np.diff(uploads, prepend=0.0)
    totals = np.empty((len(_COSTS), len(_COSTS)))
    for row, proportional in enumerate(_COSTS):
        left = 1 - proportional - _COSTS[:, None] * (rates / rate)[None, :] ** power
        logs = np.log(np.cumsum(steps / np.maximum(left, _LEAST_LEFT), axis=1))
        for column, course in enumerate(logs):
            error = np.interp(levels, heights, course) - measured
            totals[row, column] = np.mean(np.where(reached, error, np.minimum(0.0, error)) ** 2)
    likely = np.exp((totals.min() - totals) * len(y) / (2 * _log_noise(base) ** 2))
    likely /= likely.sum() * strength
    return Cost(float(likely.sum(1) @ _COSTS), float(likely.sum(0) @ _COSTS), power, rate)


def _log_noise(base: Curve) -> float:
    """The standard deviation of log(uploads) to a level between two runs that are as noisy as this one, at one knot."""
    x, y = base.knots
    slope = (y[-1] - y[0]) / math.log(x[-1] / x[0])
    return math.hypot(_LEAST_NOISE, base.noise / slope * math.sqrt(2 * len(y) / len(base.uploads)))


def correction(foretold: Slowed, base: Curve, measured: Curve) -> float:
    """How many times the uploads that were foretold a run really took, over the levels of its second half."""
    x, y = measured.knots
    levels = np.linspace(*_common_heights(base, measured), 12)
    pairs = [(math.exp(float(np.interp(level, y, np.log(x)))), foretold.at(float(level))) for level in levels]
    logs = [math.log(took / said) for took, said in pairs if math.isfinite(said)]
    return math.exp(float(np.mean(logs))) if logs else math.inf


def _common_heights(base: Curve, other: Curve) -> tuple[float, float]:
    """From a quarter of the way to the highest level that both reached, up to it."""
    low = max(float(base.knots[1][0]), float(other.knots[1][0]))
    top = max(low, min(float(base.knots[1][-1]), float(other.knots[1][-1])))
    return low + (top - low) / 4, top


def _rates(uploads: Wide, metric: Wide) -> Wide:
    """Progress per upload of a smooth curve: never zero, never rising again by a kink of the laws."""
    rates = np.abs(np.gradient(metric, uploads))
    return np.maximum(rates, 1e-12 * float(rates.max() or 1.0))


def _isotonic(values: Wide) -> Wide:
    """The nearest ascending sequence in least squares: neighbours that descend are pooled."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            last, many = means.pop(), counts.pop()
            means[-1] = (means[-1] * counts[-1] + last * many) / (counts[-1] + many)
            counts[-1] += many
    return np.repeat(means, counts)
