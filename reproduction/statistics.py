"""What a few seeds can tell: intervals of ratios over paired seeds, and decisions by them.

Ratios are compared on the logarithm: the mean of log(ours/theirs) over seeds, with Student's t. Every interval is a
90 % one, so that a comparison which is decided by one of its ends is decided wrongly at most once in twenty times. Two
figures are similar if the interval lies within a margin that was stated before (two one-sided tests), and never because
too few seeds could not tell them apart. docs/decisions/verdicts-by-interval.md
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
"""How often each end of an interval is wrong."""
POWER = 0.8
"""How often a difference is seen that is said to be visible."""

Pairs: TypeAlias = Sequence[tuple[float, float]]
"""A figure of two methods, ours and theirs, seed by seed."""


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 90 % interval: of a ratio, or of a slope."""

    estimate: float
    low: float
    high: float
    count: int
    """Seeds that it rests on."""
    visible: float = math.inf
    """How far from the truth the claimed bound must lie to be told from it with a probability of 80 %: a factor, or for
    a slope a difference.
    """
    additive: bool = False
    """Whether its ends lie on either side by differences, as a slope's do, and not by factors."""

    def among(self, comparisons: int) -> Interval:
        """So much wider that of so many `comparisons` none is wrong at an end oftener than one alone (Bonferroni)."""
        if comparisons < 2 or self.count < 2 or self.low == self.high:
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
        """Of the ratio the other way round: how many times less."""
        estimate, low, high = (1 / value if value else math.inf for value in (self.estimate, self.high, self.low))
        return Interval(estimate, low, high, self.count, self.visible)

    @property
    def infinite(self) -> bool:
        """Whether some seed diverged, so that the ratio is infinite on the whole; or zero, the other way round."""
        return math.isinf(self.estimate) or (self.estimate == 0 and not self.additive)

    def at_least(self, bound: float) -> bool | None:
        """Whether the truth is at or above the bound; None if the interval does not say."""
        return True if self.low >= bound else False if self.high < bound or self._is_zero else None

    def at_most(self, bound: float) -> bool | None:
        """Whether the truth is at or below the bound; None if the interval does not say."""
        return True if self.high <= bound else False if self.low > bound or math.isinf(self.estimate) else None

    def above(self, bound: float) -> bool | None:
        """Whether the truth is above the bound; None if the interval does not say."""
        return True if self.low > bound else False if self.high <= bound or self._is_zero else None

    def below(self, bound: float) -> bool | None:
        """Whether the truth is below the bound; None if the interval does not say."""
        return True if self.high < bound else False if self.low >= bound or math.isinf(self.estimate) else None

    @property
    def _is_zero(self) -> bool:
        return self.infinite and self.estimate == 0

    def within(self, low: float, high: float) -> bool | None:
        """Whether the truth lies between two bounds: an equivalence test; None if the interval does not say."""
        return every((self.at_least(low), self.at_most(high)))

    def similar(self, margin: float) -> bool | None:
        """Whether a ratio is 1 but for a factor of `margin` either way."""
        return self.within(1 / margin, margin)

    def visible_among(self, comparisons: int) -> float:
        """What is visible of a claim about so many: it fails if one of them lies so far beyond its bound, and passes if
        all lie so far within, each with a probability of 80 %.
        """
        if comparisons < 2 or self.count < 2:
            return self.visible
        t = partial(student, df=self.count - 1)
        fails, passes = t(1 - LEVEL / comparisons) + t(POWER), t(1 - LEVEL) + t(POWER ** (1 / comparisons))
        more = max(fails, passes) / (t(1 - LEVEL) + t(POWER))
        return self.visible * more if self.additive else self.visible**more

    def excess(self, what: str) -> str:
        """How much more or fewer `what`, if the interval excludes 1: "2 to 18 % more uploads"; else empty."""
        if self.low <= 1 <= self.high or not math.isfinite(self.high):
            return ""
        low, high = sorted(100 * abs(end - 1) for end in (self.low, self.high))
        return f"{low:.0f} to {high:.0f} % {'more' if self.low > 1 else 'fewer'} {what}"

    def __str__(self) -> str:
        estimate, low, high = ("∞" if math.isinf(it) else f"{it:.3g}" for it in (self.estimate, self.low, self.high))
        return estimate if self.low == self.high else f"{estimate} [{low}, {high}]"


def power(found: Iterable[Interval], of: str = "factor") -> str:
    """What difference could have been seen by a claim about these, in words: a factor, or `of` slopes a difference."""
    known = list(found)
    if any(one.infinite for one in known):
        return "a run diverged"
    if all(one.low == one.high for one in known):
        return "all seeds agree"
    most = max(one.visible_among(len(known)) for one in known if one.low != one.high)
    return f"a {of} of {most:.3g} would be seen" if math.isfinite(most) else "one seed shows no difference"


def unseen(count: int) -> str:
    """What share of all seeds may do what none of so many did, with a probability of at least one in twenty."""
    return f"up to {100 * (1 - LEVEL ** (1 / count)):.0f} % of seeds could, and none of {count} show it"


def all_seen(count: int) -> str:
    """What share of all seeds does what all of so many did, but with a probability of one in twenty."""
    return f"at least {100 * LEVEL ** (1 / count):.0f} % of all seeds do, as {count} of {count} show"


def jointly(parts: Iterable[tuple[Interval, Callable[[Interval], bool | None]]]) -> bool | None:
    """Whether a claim about several comparisons holds, each an interval and what must hold of it.

    All must hold, which by chance is rarer than one does. By chance one of many fails oftener: to refute the claim, it
    must fail with an interval that allows for their number.
    """
    known = list(parts)
    if any(holds(one.among(len(known))) is False for one, holds in known):
        return False
    return True if all(holds(one) is True for one, holds in known) else None


def every(parts: Iterable[bool | None]) -> bool | None:
    """Whether all parts of a claim hold: False if one does not, else None if one is not known."""
    found = list(parts)
    return False if False in found else None if None in found else True


def ratio(pairs: Pairs, beyond: Iterable[bool] = (), least: float = 0.0) -> Interval:
    """Ours over theirs, by Student's t on the mean of the logarithms.

    `beyond` says of which seeds ours is only known to be larger: the run ended first. They count with what is known,
    so that the low end stands and there is no high end. One that is infinite, or zero, makes the ratio so; how far the
    others are from the reference is told by the other end, unless all of them are infinite. The standard deviation of
    the logarithm is at `least` this, however closely the seeds agree: rounded figures agree by chance.
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
    if spread < 1e-12:  # equal to the last digits, as sizes of messages are
        spread = 0.0
    error = spread / math.sqrt(count)
    reach = student(1 - LEVEL, count - 1) * error
    visible = math.exp(reach + student(POWER, count - 1) * error)
    high = math.inf if any(beyond) else math.exp(mean + reach)
    return Interval(math.exp(mean), math.exp(mean - reach), high, count, visible)


def over_published(ours: Sequence[float], mean: float, std: float, count: int) -> Interval:
    """Ours over a published figure, of which the mean and the standard deviation of so many seeds are known.

    The seeds are others: both spreads count, with the degrees of freedom that Welch and Satterthwaite give their sum.
    """
    logs = np.log(np.array(ours, dtype=np.float64))
    parts = np.array([logs.var(ddof=1) / len(logs), (std / mean) ** 2 / count])
    df = float(parts.sum() ** 2 / (np.square(parts) / (np.array([len(logs), count]) - 1)).sum())
    error, free, middle = math.sqrt(parts.sum()), max(1, math.floor(df)), float(logs.mean()) - math.log(mean)
    reach = student(1 - LEVEL, free) * error
    visible = math.exp(reach + student(POWER, free) * error)
    low, high = (math.exp(middle + sign * reach) for sign in (-1, 1))
    return Interval(math.exp(middle), low, high, free + 1, visible)


def slope(x: Sequence[float], means: Sequence[float], errors: Sequence[float], counts: Sequence[int]) -> Interval:
    """Of the straight line through log(mean) against log(x).

    `errors` are the means' standard errors over so many seeds each; they pass through the fit, with the degrees of
    freedom that Welch and Satterthwaite give their sum. NaN where a mean is not positive.
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
