"""When clients' updates come: how long a client trains, and how many updates are expected by a time.

Every client begins at zero and starts again when its update has come. Let m(t) be its expected number of updates by t,
and X a cycle (download, train, upload). At t it is in some cycle, one that began at zero or with an earlier update:

    1 = P(X > t) + ∫ P(X > t − u) dm(u)

Taken on a grid, m rising evenly between its points, this is a triangular system. Nothing is assumed about the run's
length: m(t) ≈ t/E[X] + (c² − 1)/2, c² being variance over mean², is far off while few cycles fit, or while the tail is
heavy and its longest cycles have not come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError
from qafel.theory.theorem import LARGEST, require_not_negative

LawName: TypeAlias = Literal["constant", "half-normal", "log-normal", "uniform"]
LAWS = get_args(LawName)
SPREADING = ("log-normal", "uniform")
_UNIT = NormalDist()

Wide: TypeAlias = NDArray[np.float64]

_TABLE_POINTS = 1000
_FINE, _COARSE, _MOST_POINTS = 0.12, 0.06, 200
_DENSE_CYCLES = 8
_FAR_CYCLES = 50

_CONSTANT = 1e-6
"""Cycles whose standard deviation is a smaller share of their mean count as constant."""


@final
@dataclass(frozen=True, slots=True)
class DurationLaw:
    """How long a client trains, in seconds: the simulator's laws, as moments, shares and quantiles."""

    name: LawName = "constant"
    scale: float = 1.0
    spread: float = 0.5
    """Log-normal: scale·e^(spread·N); uniform: scale·(1 ± spread)."""

    def __post_init__(self) -> None:
        if self.name not in LAWS:
            raise ConfigError(f"a duration law is one of {', '.join(LAWS)}; got {self.name!r}")
        require_not_negative("scale of durations", self.scale)
        require_not_negative("spread of durations", self.spread)
        if self.name == "uniform" and self.spread > 1:
            raise ConfigError(f"the spread of uniform durations lies in [0, 1]; got {self.spread}")
        if self.name == "log-normal" and self.spread**2 + math.log(self.scale or 1) > math.log(LARGEST):
            raise ConfigError(
                f"log-normal durations of scale {self.scale:g} and spread {self.spread:g} have a standard deviation "
                f"above {LARGEST:g} s: lower the spread"
            )

    def __str__(self) -> str:
        return f"{self.name}:{self.scale:g}" + (f",{self.spread:g}" if self.name in SPREADING else "")

    @staticmethod
    def parse(text: str) -> DurationLaw:
        """A law from a `text` like "half-normal:2", which is NAME[:SCALE[,SPREAD]], or plain seconds: "1.5"."""
        name, _, numbers = text.strip().partition(":")
        if name not in LAWS:
            name, numbers = "constant", text
        try:
            values = [float(number) for number in numbers.split(",")] if numbers or not text.strip() else []
        except ValueError:
            values = [math.nan] * 3
        if len(values) > 2 or any(math.isnan(value) for value in values):
            known = ", ".join(LAWS)
            raise ConfigError(f"a duration is seconds or LAW:SCALE[,SPREAD] with LAW of {known}; got {text!r}")
        if len(values) == 2 and name not in SPREADING:
            raise ConfigError(f"{name} durations have a scale and no spread; got {text!r}")
        return DurationLaw(name, *values)  # type: ignore[arg-type]  # checked above

    @property
    def mean(self) -> float:
        match self.name:
            case "half-normal":
                return self.scale * math.sqrt(2 / math.pi)
            case "log-normal":
                return self.scale * math.exp(self.spread**2 / 2)
            case _:
                return self.scale

    @property
    def variance(self) -> float:
        match self.name:
            case "constant":
                return 0.0
            case "half-normal":
                return self.scale**2 * (1 - 2 / math.pi)
            case "log-normal":
                return self.mean**2 * math.expm1(self.spread**2)
            case "uniform":
                return (self.scale * self.spread) ** 2 / 3

    @property
    def span(self) -> tuple[float, float]:
        """Between these lies nearly all of a law that varies, of its mean and of its mean square."""
        match self.name:
            case "half-normal":
                return 1e-9 * self.scale, 9 * self.scale
            case "log-normal":
                reach = self.spread * (2 * self.spread + 7)
                return self.scale * math.exp(-6.5 * self.spread), self.scale * math.exp(reach)
            case _:
                high = self.scale * (1 + self.spread)
                return max(1e-9 * high, self.scale * (1 - self.spread)), high

    def largest(self, draws: int) -> float:
        """What one of so many draws exceeds on average: the quantile at 1 − 1/draws."""
        return self._quantile(1 / max(2, draws), from_above=True)

    def smallest(self, draws: int) -> float:
        """What one of so many draws falls below on average: the quantile at 1/draws."""
        return self._quantile(1 / max(2, draws), from_above=False)

    def share_within(self, duration: float) -> float:
        """P(D ≤ d), for a law that varies and a d above zero."""
        match self.name:
            case "half-normal":
                return math.erf(duration / (self.scale * math.sqrt(2)))
            case "log-normal":
                return _UNIT.cdf(self._deviation(duration))
            case _:
                low, high = self.scale * (1 - self.spread), self.scale * (1 + self.spread)
                return min(1.0, max(0.0, (duration - low) / (high - low)))

    def mean_within(self, duration: float) -> float:
        """E[min(D, d)], for a law that varies and a d above zero."""
        match self.name:
            case "half-normal":
                beyond = math.erfc(duration / (self.scale * math.sqrt(2)))
                return duration * beyond - self.mean * math.expm1(-((duration / self.scale) ** 2) / 2)
            case "log-normal":
                deviation = self._deviation(duration)
                return duration * _UNIT.cdf(-deviation) + self.mean * _UNIT.cdf(deviation - self.spread)
            case _:
                low, high = self.scale * (1 - self.spread), self.scale * (1 + self.spread)
                inside = min(high, max(low, duration)) - low
                return min(duration, low) + inside - inside**2 / (2 * (high - low))

    def _quantile(self, rare: float, *, from_above: bool) -> float:
        """The quantile at `rare`, or at 1 − `rare`: a small share keeps its digits."""
        match self.name:
            case "constant":
                return self.scale
            case "half-normal":
                return self.scale * (-_UNIT.inv_cdf(rare / 2) if from_above else _UNIT.inv_cdf((1 + rare) / 2))
            case "log-normal":
                deviation = _UNIT.inv_cdf(rare)
                return self.scale * math.exp(self.spread * (-deviation if from_above else deviation))
            case "uniform":
                side = self.spread * (1 - 2 * rare)
                return self.scale * (1 + side if from_above else 1 - side)

    def _deviation(self, duration: float) -> float:
        return math.log(duration / self.scale) / self.spread


@final
@dataclass(frozen=True, slots=True)
class ConstantCycles:
    """Updates of clients whose cycles are equally long: all come at once, cycle after cycle."""

    clients: int
    cycle: float

    def count(self, time: float) -> float:
        return self.clients * math.floor(max(0.0, time) / self.cycle * (1 + 1e-12))

    def time(self, count: float) -> float:
        return self.cycle * math.ceil(count / self.clients)


@final
@dataclass(frozen=True, slots=True)
class InterpolatedUpdates:
    """A line through expected counts at some times, and straight on at `pace` updates per second beyond the last."""

    times: Wide
    counts: Wide
    pace: float

    def count(self, time: float) -> float:
        if time >= self.times[-1]:
            return float(self.counts[-1] + (time - self.times[-1]) * self.pace)
        return float(np.interp(time, self.times, self.counts, left=0.0))

    def time(self, count: float) -> float:
        if count >= self.counts[-1]:
            return float(self.times[-1] + (count - self.counts[-1]) / self.pace)
        return float(np.interp(count, self.counts, self.times))


ExpectedUpdates: TypeAlias = ConstantCycles | InterpolatedUpdates
"""How many updates are expected by a time, and the time by which so many are expected."""


@lru_cache(maxsize=512)
def always_training(law: DurationLaw, transfer: float, clients: int) -> ExpectedUpdates:
    """Updates of `clients` that all begin at zero and never rest; a cycle is `transfer` seconds and a draw of `law`."""
    cycle, deviation = transfer + law.mean, math.sqrt(law.variance)
    if deviation <= _CONSTANT * cycle:
        return ConstantCycles(clients, cycle)
    times = _grid(law, transfer, clients)
    durations, within, mean_within = _table(law)
    waits = np.maximum(times[1:, None] - times[None, :], 0.0)
    # E[min(X, ·)] and P(X ≤ ·) of a cycle X, which is the transfer and a draw of the law.
    began = np.minimum(waits, transfer) + np.interp(waits - transfer, durations, mean_within)
    ended = np.interp(times[1:] - transfer, durations, within, left=0.0)
    # P(X > t − u) averaged over a cell of u, as a difference of E[min(X, ·)].
    busy = (began[:, :-1] - began[:, 1:]) / np.diff(times)
    rises = np.zeros(len(times) - 1)
    for row in range(len(rises)):
        rises[row] = (ended[row] - busy[row, :row] @ rises[:row]) / busy[row, row]
    counts = np.concatenate([[0.0], np.maximum.accumulate(np.cumsum(rises))])
    return InterpolatedUpdates(times, clients * counts, clients / cycle)


@lru_cache(maxsize=512)
def arriving(law: DurationLaw, transfer: float, rate: float) -> ExpectedUpdates:
    """Updates of clients that start one after the other, `rate` per second, the first at zero: Σ P(X ≤ t − n/rate).

    A cycle X is `transfer` seconds and a draw of `law`.
    """
    if math.sqrt(law.variance) <= _CONSTANT * (transfer + law.mean):
        return InterpolatedUpdates(np.array([transfer + law.mean]), np.array([0.5]), rate)
    durations, within, mean_within = _table(law)
    # The sum is the integral and half of its first term (Euler and Maclaurin).
    counts = rate * (durations - mean_within) + within / 2
    return InterpolatedUpdates(transfer + durations, np.maximum.accumulate(counts), rate)


@lru_cache(maxsize=16)
def _table(law: DurationLaw) -> tuple[Wide, Wide, Wide]:
    """Durations, the shares within them, and E[min(D, d)]: a thousand points, evenly spaced in the logarithm."""
    durations = np.geomspace(*law.span, _TABLE_POINTS)
    within = [law.share_within(float(duration)) for duration in durations]
    mean_within = [law.mean_within(float(duration)) for duration in durations]
    return tuple(np.concatenate([[0.0], it]) for it in (durations, within, mean_within))  # type: ignore[return-value]


def _grid(law: DurationLaw, transfer: float, clients: int) -> Wide:
    """Times at which m is found: dense where a first update comes, then where cycles still come in steps, then wide.

    It ends where what the tail has yet to bring, at most (1 + c²)/2 updates, is one in a hundred.
    """
    cycle, deviation = transfer + law.mean, math.sqrt(law.variance)
    first = max(law.smallest(2 * clients), law.span[0])
    many = _DENSE_CYCLES * cycle
    far = max(many, cycle * _FAR_CYCLES * (1 + (deviation / cycle) ** 2))
    early = max(_FINE, math.log(many / first) / _MOST_POINTS)
    late = max(_COARSE, math.log(far / many) / _MOST_POINTS)
    longest = max(deviation / 3, cycle / 32)
    points = [first]
    while points[-1] < far:
        at = points[-1]
        points.append(at + (min(early * at, longest) if at < many else late * at))
    last = min(many, law.largest(2 * clients))
    times = transfer + np.union1d(points, np.linspace(first, max(first, last), 25))
    times = np.concatenate([[0.0, transfer] if transfer else [0.0], times])
    apart: Wide = times[np.concatenate([[True], np.diff(times) > 1e-9 * times[1:]])]
    return apart
