"""Intervals over paired seeds, and the decisions that they allow.

Ratios are compared on the logarithm: the mean of log(ours/theirs) over seeds, with Student's t. Every interval is a
90 % interval. If the log-ratios are close to normal, each end is wrong at most once in twenty cases. A few seeds cannot
verify that, and nothing controls the error across all claims. Two figures are similar if the interval lies within a
margin that was stated before (two one-sided tests). docs/reproduction-method.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.05
"""The probability that an end of an interval is wrong."""
POWER = 0.8
"""The probability to detect a difference that is called detectable."""
UNKNOWN = "–"

Pairs: TypeAlias = Sequence[tuple[float, float]]
"""A figure of two methods, ours and theirs, per seed."""


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate of a ratio or a slope, with its 90 % interval."""

    estimate: float
    low: float
    high: float
    count: int
    """The number of seeds."""
    detectable: float = math.inf
    """The distance between truth and bound that is detected with a probability of 80 %: a factor, or a difference of
    slopes.
    """
    additive: bool = False
    """The ends lie at differences from the estimate, as for a slope; otherwise at factors."""

    def corrected(self, comparisons: int) -> Interval:
        """The interval widened for this number of `comparisons` (Bonferroni)."""
        if comparisons < 2 or self.count < 2 or self.low == self.high or self.infinite:
            return self
        df, middle = self.count - 1, self.estimate
        wider = student(1 - LEVEL / comparisons, df) / student(1 - LEVEL, df)
        ends = self.low, self.high
        if self.additive:
            low, high = (middle + wider * (end - middle) for end in ends)
        else:
            low, high = (middle * (end / middle) ** wider for end in ends)
        return replace(self, low=low, high=high)

    @property
    def inverse(self) -> Interval:
        """The interval of the inverse ratio."""
        estimate, low, high = (1 / value if value else math.inf for value in (self.estimate, self.high, self.low))
        return Interval(estimate, low, high, self.count, self.detectable)

    @property
    def infinite(self) -> bool:
        """A seed diverged, so the ratio is infinite, or zero for the inverse."""
        return math.isinf(self.estimate) or (self.estimate == 0 and not self.additive)

    def at_least(self, bound: float) -> bool | None:
        """Whether the truth is at or above the bound; None if undecided."""
        return True if self.low >= bound else False if self.high < bound or self._is_zero else None

    def at_most(self, bound: float) -> bool | None:
        """Whether the truth is at or below the bound; None if undecided."""
        return True if self.high <= bound else False if self.low > bound or math.isinf(self.estimate) else None

    def above(self, bound: float) -> bool | None:
        """Whether the truth is above the bound; None if undecided."""
        return True if self.low > bound else False if self.high <= bound or self._is_zero else None

    def below(self, bound: float) -> bool | None:
        """Whether the truth is below the bound; None if undecided."""
        return True if self.high < bound else False if self.low >= bound or math.isinf(self.estimate) else None

    @property
    def _is_zero(self) -> bool:
        return self.infinite and self.estimate == 0

    def within(self, low: float, high: float) -> bool | None:
        """Whether the truth lies between two bounds (an equivalence test); None if undecided."""
        return every((self.at_least(low), self.at_most(high)))

    def similar(self, margin: float) -> bool | None:
        """Whether a ratio lies within a factor of `margin` of 1."""
        return self.within(1 / margin, margin)

    def detectable_among(self, comparisons: int) -> float:
        """The detectable distance of a claim about several comparisons.

        With a probability of 80 % the claim fails if one lies this far beyond its bound. With the same probability it
        passes if all lie this far within.
        """
        if comparisons < 2 or self.count < 2:
            return self.detectable
        t = partial(student, df=self.count - 1)
        fails, passes = t(1 - LEVEL / comparisons) + t(POWER), t(1 - LEVEL) + t(POWER ** (1 / comparisons))
        more = max(fails, passes) / (t(1 - LEVEL) + t(POWER))
        return self.detectable * more if self.additive else self.detectable**more

    def excess(self, what: str) -> str:
        """How much more or fewer `what`, if the interval excludes 1: "2 to 18 % more uploads"; else empty."""
        if self.low <= 1 <= self.high or not math.isfinite(self.high):
            return ""
        low, high = sorted(100 * abs(end - 1) for end in (self.low, self.high))
        return f"{low:.0f} to {high:.0f} % {'more' if self.low > 1 else 'fewer'} {what}"

    def __str__(self) -> str:
        if math.isnan(self.estimate):
            return UNKNOWN
        estimate, low, high = (f"{it:.3g}".replace("inf", "∞") for it in (self.estimate, self.low, self.high))
        return estimate if self.low == self.high else f"{estimate} [{low}, {high}]"


def power(found: Iterable[Interval], of: str = "factor") -> str:
    """The detectable distance of a claim about these intervals, in words; `of` is "difference" for slopes."""
    known = list(found)
    if any(one.infinite for one in known):
        return "a run diverged"
    if all(one.low == one.high for one in known):
        return "all seeds agree"
    most = max(one.detectable_among(len(known)) for one in known if one.low != one.high)
    return f"detectable {of}: {most:.3g}" if math.isfinite(most) else "one seed detects nothing"


def unseen(count: int) -> str:
    """The share of all seeds that may show an event that none of `count` seeds shows (95 %), in words."""
    return f"none of {count} seeds show it, up to {100 * (1 - LEVEL ** (1 / count)):.0f} % of all could"


def all_seen(count: int) -> str:
    """The least share of all seeds that show an event that all of `count` seeds show (95 %), in words."""
    return f"{count} of {count} seeds show it, so at least {100 * LEVEL ** (1 / count):.0f} % of all do"


def jointly(parts: Iterable[tuple[Interval, Callable[[Interval], bool | None]]]) -> bool | None:
    """Whether a claim about several comparisons holds: an interval and a condition each.

    It passes if all conditions hold. It fails if one fails with an interval that is widened for their number, because
    one of many fails more often by chance.
    """
    known = list(parts)
    if any(holds(one.corrected(len(known))) is False for one, holds in known):
        return False
    return True if all(holds(one) is True for one, holds in known) else None


def every(parts: Iterable[bool | None]) -> bool | None:
    """Whether all parts of a claim hold: False if one does not, otherwise None if one is undecided."""
    found = list(parts)
    return False if False in found else None if None in found else True


def ratio(pairs: Pairs, beyond: Iterable[bool] = (), least: float = 0.0) -> Interval:
    """Ours over theirs, by Student's t on the mean of the logarithms.

    beyond   for each seed, whether our figure is only a lower bound because the run ended early. The interval then
             keeps its low end and is open above
    least    the smallest standard deviation of the logarithm to assume: rounded figures agree by chance

    An infinite figure makes the ratio infinite, and a zero makes it zero. The finite seeds give the other end.
    """
    logs = [_log(ours) - _log(theirs) for ours, theirs in pairs]
    count = len(logs)
    if not count or any(map(math.isnan, logs)) or {math.inf, -math.inf} <= set(logs):
        return Interval(math.nan, -math.inf, math.inf, count)
    if math.inf in logs or -math.inf in logs:
        finite = [pair for pair, log in zip(pairs, logs, strict=True) if math.isfinite(log)]
        if count > 1 and not finite:
            certain = math.inf if math.inf in logs else 0.0
            return Interval(certain, certain, certain, count)
        others = ratio(finite, beyond, least) if finite else Interval(math.nan, 0.0, math.inf, 0)
        ends = (math.inf, others.low, math.inf) if math.inf in logs else (0.0, 0.0, others.high)
        return Interval(*ends, count)
    mean = float(np.mean(logs))
    if count == 1:
        return Interval(math.exp(mean), 0.0, math.inf, count)
    spread = max(float(np.std(logs, ddof=1)), least)
    if spread < 1e-12:  # equal except for rounding, as sizes of messages are
        spread = 0.0
    error = spread / math.sqrt(count)
    reach = student(1 - LEVEL, count - 1) * error
    detectable = math.exp(reach + student(POWER, count - 1) * error)
    high = math.inf if any(beyond) else math.exp(mean + reach)
    return Interval(math.exp(mean), math.exp(mean - reach), high, count, detectable)


def over_published(ours: Sequence[float], mean: float, std: float, count: int) -> Interval:
    """Ours over a published figure with a known mean and standard deviation of `count` seeds.

    The seeds differ, so both spreads count, with the degrees of freedom of Welch and Satterthwaite.
    """
    logs = np.log(np.array(ours, dtype=np.float64))
    parts = np.array([logs.var(ddof=1) / len(logs), (std / mean) ** 2 / count])
    df = float(parts.sum() ** 2 / (np.square(parts) / (np.array([len(logs), count]) - 1)).sum())
    error, free, middle = math.sqrt(parts.sum()), max(1, math.floor(df)), float(logs.mean()) - math.log(mean)
    reach = student(1 - LEVEL, free) * error
    detectable = math.exp(reach + student(POWER, free) * error)
    low, high = (math.exp(middle + sign * reach) for sign in (-1, 1))
    return Interval(math.exp(middle), low, high, free + 1, detectable)


def slope(x: Sequence[float], means: Sequence[float], errors: Sequence[float], counts: Sequence[int]) -> Interval:
    """The slope of log(mean) against log(x), with its interval.

    `errors` are the standard errors of the means, and `counts` their numbers of seeds. The degrees of freedom are those
    of Welch and Satterthwaite. The slope is NaN if a mean is not positive.
    """
    values, log_x = np.array(means, dtype=np.float64), np.log(np.array(x, dtype=np.float64))
    if len(values) < 2 or not (np.isfinite(values) & (values > 0)).all():
        return Interval(math.nan, -math.inf, math.inf, min(counts, default=0))
    weights = (log_x - log_x.mean()) / np.square(log_x - log_x.mean()).sum()
    parts = np.square(weights * np.array(errors) / values)
    found, variance, fewest = float(weights @ np.log(values)), float(parts.sum()), min(counts)
    if fewest < 2 or not math.isfinite(variance):
        return Interval(found, -math.inf, math.inf, fewest, additive=True)
    df = variance**2 / float((np.square(parts) / (np.array(counts) - 1)).sum()) if variance > 0 else 1.0
    error, free = math.sqrt(variance), max(1, math.floor(df))
    reach = student(1 - LEVEL, free) * error
    return Interval(found, found - reach, found + reach, fewest, reach + student(POWER, free) * error, additive=True)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf if value == 0 else math.nan


def student(probability: float, df: int) -> float:
    """The quantile of Student's t with `df` degrees of freedom."""
    return float(stdtrit(df, probability))
