"""The course of a metric by uploads, from short runs with common seeds, and its extrapolation.

A course is measured up to the end of its runs. Uploads to a level are read from the runs that reached it.

Metrics become heights h, so that progress is upwards: −log of a positive loss, or the metric itself. Beyond the end,
the height follows one of three laws: h = a + b·log u, h = a + b·√u, or h = a + b·u. Each law is fitted to the first
half of the runs and predicts when they reached the height of their end. The law with the smallest error is the best.

Most runs slow down. So a predicted range spans the best law and the next slower one. If the best law was too slow in
the back-test, the range also spans the next faster one. The range adds the error of the best law in the back-test. It
includes the noise of evaluations, with residuals drawn from the runs. It includes the difference between seeds:
s·√(1 + 1/n) of the logarithm of uploads, with Student's t for n seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.runs.reading import Run
from qafel.tasks.protocol import Goal

Wide: TypeAlias = NDArray[np.float64]

FARTHEST = 50.0
"""A prediction beyond this many times the length of the runs is infinite."""
_DRAWS = 400
_LATE_BY = 0.05
"""The best law counts as too slow if it was late by this much of log(uploads) in the back-test."""


class Law(NamedTuple):
    """A law h = a + b·φ(u)."""

    name: str
    phi: Callable[[Wide], Wide]
    inverse: Callable[[Wide], Wide]


LAWS = (Law("log u", np.log, np.exp), Law("√u", np.sqrt, np.square), Law("u", np.asarray, np.asarray))
"""From the slowest to the fastest."""


class Interval(NamedTuple):
    """A figure, and the limits between which four in five such figures should lie."""

    low: float
    middle: float
    high: float


NEVER = Interval(math.inf, math.inf, math.inf)


@final
@dataclass(frozen=True)
class Scale:
    """How metrics become heights, so that progress is upwards: −log m for positive losses, else m or −m."""

    goal: Goal
    log: bool

    @staticmethod
    def of(runs: Sequence[Run], target: float | None) -> Scale:
        """The scale of runs with this target."""
        positive = (target is None or target > 0) and all(np.nanmin(run.column("metric")) > 0 for run in runs)
        return Scale(runs[0].goal, runs[0].goal == "min" and positive)

    def height(self, metric: Wide) -> Wide:
        if self.log:
            return -np.log(np.maximum(metric, 1e-300))
        return metric if self.goal == "max" else -metric

    def metric(self, height: float) -> float:
        """The inverse of `height`."""
        if self.log:
            return math.exp(min(-height, 700.0))
        return height if self.goal == "max" else -height


@final
@dataclass(frozen=True)
class Curve:
    """The heights of one run, at its evaluations."""

    uploads: Wide
    heights: Wide

    @property
    def end(self) -> float:
        return float(self.uploads[-1])

    def until(self, uploads: float) -> Curve:
        kept = self.uploads <= uploads
        return Curve(self.uploads[kept], self.heights[kept])

    @cached_property
    def rising(self) -> Wide:
        """The nearest ascending heights (isotonic regression)."""
        from scipy.optimize import isotonic_regression  # noqa: PLC0415  (loads SciPy)

        found: Wide = isotonic_regression(self.heights).x
        return found

    def first_hit(self, height: float) -> float:
        """The uploads at the first evaluation that meets a height; infinite if none does."""
        met = self.heights >= height
        return float(self.uploads[np.argmax(met)]) if met.any() else math.inf

    @cached_property
    def last(self) -> tuple[float, float]:
        """Mean uploads and mean height over the last tenth."""
        late = self.uploads >= 0.9 * self.end
        return float(self.uploads[late].mean()), float(self.heights[late].mean())

    def slope(self, law: Law) -> float:
        """The slope b of the law, over the last three quarters."""
        late = self.uploads >= self.end / 4
        x, y = law.phi(self.uploads[late]), self.heights[late]
        x = x - x.mean()
        return float(x @ (y - y.mean()) / max(float(x @ x), 1e-300))

    def heights_at(self, law: Law, uploads: Wide) -> Wide:
        """The heights that the law predicts beyond the end."""
        at, height = self.last
        return height + self.slope(law) * (law.phi(uploads) - law.phi(np.array(at)))

    def uploads_at(self, law: Law, height: float) -> float:
        """The uploads to a height beyond the end, without noise."""
        at, now = self.last
        if (slope := self.slope(law)) <= 0:
            return math.inf
        phi = float(law.phi(np.array(at))) + (height - now) / slope
        return float(law.inverse(np.array(min(phi, 700.0 if law.phi is np.log else 1e150)))) if phi > 0 else at

    def hits(self, law: Law, height: float, draws: NDArray[np.int64]) -> Wide:
        """Uploads at the first evaluation beyond the end that meets a height, one for each draw of the noise.

        The noise is a sequence of residuals of the run itself, from a random place on, so that it keeps its
        correlation.
        """
        residuals = (self.heights - self.rising)[self.uploads >= self.end / 4]
        early, late = (self.uploads_at(law, height - float(noise)) for noise in (residuals.max(), residuals.min()))
        early = max(early, self.end)
        if not early <= FARTHEST * self.end:
            return np.full(len(draws), math.inf)
        step = float(np.median(np.diff(self.uploads)))
        count = int(min(max(late, early) - early, 10 * self.end) / step) + 2
        times: Wide = early + step * np.arange(count, dtype=np.float64)
        noise = residuals[(draws[:, None] + np.arange(count)[None, :]) % len(residuals)]
        met = self.heights_at(law, times)[None, :] + noise >= height
        found: Wide = np.where(met.any(axis=1), times[np.argmax(met, axis=1)], times[-1])
        return found


@final
@dataclass(frozen=True)
class Course:
    """The course of one configuration, from runs with common seeds."""

    curves: tuple[Curve, ...]
    scale: Scale
    diverged: bool = False

    @staticmethod
    def of(runs: Sequence[Run], scale: Scale, uploads: float) -> Course:
        """The course of these runs, up to `uploads`."""
        curves = []
        for run in runs:
            counts, metric = run.column("uploads"), run.column("metric")
            kept = (counts > 0) & (counts <= uploads)
            counts, metric = counts[kept], metric[kept]
            finite = int(np.argmin(np.isfinite(metric))) if not np.isfinite(metric).all() else len(metric)
            curves.append(Curve(counts[:finite], scale.height(metric[:finite])))
        diverged = any(len(curve.uploads) < 2 or curve.end < 0.9 * uploads for curve in curves)
        return Course(tuple(curves), scale, diverged)

    def require_progress(self) -> None:
        """Raise a ConfigError if there is nothing to predict from."""
        if self.diverged:
            raise ConfigError("The pilot without quantizers diverged. Lower the step sizes; `qafel tune` finds some.")
        if self.height_at(self.end) <= self.height_at(float(self.curves[0].uploads[0])):
            raise ConfigError(
                "The pilot without quantizers made no progress. Increase `pilot_uploads` or tune the step sizes."
            )

    @property
    def end(self) -> float:
        """The uploads of the shortest run."""
        return min(curve.end for curve in self.curves)

    def height_at(self, uploads: float) -> float:
        """The smooth height at uploads that were reached, the mean over seeds."""
        return float(np.mean([np.interp(uploads, curve.uploads, curve.rising) for curve in self.curves]))

    def uploads_to(self, height: float) -> float:
        """The uploads to a height that was reached, the geometric mean over seeds; infinite if a seed did not."""
        if self.diverged or any(curve.rising[-1] < height for curve in self.curves):
            return math.inf
        found = [np.interp(height, curve.rising, np.log(curve.uploads)) for curve in self.curves]
        return math.exp(float(np.mean(found)))

    @cached_property
    def back_test(self) -> dict[str, float]:
        """By law: how late, in log(uploads), it predicts the end from the first half. The mean over seeds."""
        return {law.name: float(np.mean([_late_by(curve, law) for curve in self.curves])) for law in LAWS}

    @cached_property
    def laws(self) -> tuple[Law, ...]:
        """The laws that a range spans, the best one first."""
        late = [self.back_test[law.name] for law in LAWS]
        best = int(np.argmin(np.abs(late)))
        chosen = [best, *([best - 1] if best else [])]
        if late[best] > _LATE_BY and best + 1 < len(LAWS):
            chosen.append(best + 1)
        return tuple(LAWS[place] for place in chosen)

    def reaches(self, height: float) -> bool:
        """Whether every run met a height."""
        return all(math.isfinite(curve.first_hit(height)) for curve in self.curves)

    def uploads_until(self, height: float, every: float, stream: Stream) -> Interval:
        """Predict the uploads of a new run with another seed until one of its evaluations meets a height.

        every    Uploads between two evaluations of the new run.
        stream   The source of the draws of noise and seeds.
        """
        if self.diverged:
            return NEVER
        generator, count = stream.generator(), len(self.curves)
        hits = [curve.first_hit(height) for curve in self.curves]
        seeds = generator.standard_t(max(1, count - 1), _DRAWS) * math.sqrt(1 + 1 / count)
        places = [generator.integers(0, 1 << 30, _DRAWS) for _ in self.curves]
        quantiles = []
        for law in self.laws if math.inf in hits else self.laws[:1]:
            drawn = [
                np.full(_DRAWS, hit) if math.isfinite(hit) else curve.hits(law, height, place)
                for hit, curve, place in zip(hits, self.curves, places, strict=True)
            ]
            logs = np.log(np.stack(drawn))
            if not np.isfinite(logs).all():
                quantiles.append((math.inf, math.inf, math.inf))
                continue
            spread = np.hypot(logs.std(axis=0, ddof=1 if count > 1 else 0), every / math.sqrt(12) / np.exp(logs.mean()))
            quantiles.append(tuple(np.quantile(logs.mean(axis=0) + seeds * spread, (0.1, 0.5, 0.9))))
        middle = quantiles[0][1]
        if not math.isfinite(middle):
            return NEVER
        beyond = self._error_at(math.exp(middle))
        low, high = min(it[0] for it in quantiles) - beyond, max(it[2] for it in quantiles) + beyond
        rounded = (every * max(1, math.floor(math.exp(low) / every)), math.exp(middle))
        return Interval(*rounded, every * math.ceil(math.exp(high) / every) if high < 700 else math.inf)

    def height_after(self, uploads: float) -> Interval:
        """The smooth height after `uploads`, with the limits that the laws span."""
        if uploads <= self.end:
            return Interval(*(3 * (self.height_at(uploads),)))
        error = self._error_at(uploads)
        times = uploads * np.exp([-error, 0.0, error])
        found = np.array([
            np.mean([curve.heights_at(law, times) for curve in self.curves], axis=0) for law in self.laws
        ])  # fmt: skip
        return Interval(float(found[:, 0].min()), float(found[0, 1]), float(found[:, 2].max()))

    def _error_at(self, uploads: float) -> float:
        """The error of the best law in log(uploads): that of the back-test, in proportion to the distance."""
        return abs(self.back_test[self.laws[0].name]) * max(0.0, math.log(uploads / self.end)) / math.log(2)


def _late_by(curve: Curve, law: Law) -> float:
    """How much later than in truth, in log(uploads), a law fitted to the first half predicts the end."""
    at, height = curve.last
    half = curve.until(curve.end / 2)
    predicted = half.uploads_at(law, height) if len(half.uploads) > 2 else math.inf
    return math.log(predicted / at) if 0 < predicted < FARTHEST * at else math.log(FARTHEST)
