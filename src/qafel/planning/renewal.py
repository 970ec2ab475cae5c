"""How many updates have come by a time, on average, from the first second on.

Every client begins at zero and starts again when its update has come. Let m(t) be its expected number of updates by t,
and X a cycle. At t it is in some cycle, one that began at zero or with an earlier update:

    1 = P(X > t) + ∫ P(X > t − u) dm(u)

Taken on a grid, m rising evenly between its points, this is a triangular system. Nothing is assumed about the run's
length: m(t) ≈ t/E[X] + (c² − 1)/2, c² being variance over mean², is far off while few cycles fit, or while the tail is
heavy and its longest cycles have not come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.planning.fleet import DurationLaw

Wide: TypeAlias = NDArray[np.float64]


_TABLE = 1000


_FINE, _COARSE, _MOST = 0.12, 0.06, 200


_STAIRS = 8


_FAR = 50


_CONSTANT = 1e-6


class Updates(Protocol):
    """Expected updates by a time, and the time by which so many are expected."""

    def count(self, time: float) -> float: ...

    def time(self, count: float) -> float: ...


@final
@dataclass(frozen=True, slots=True)
class Stairs:
    """Constant cycles: all clients' updates come at once, cycle after cycle."""

    clients: int
    cycle: float

    def count(self, time: float) -> float:
        return self.clients * math.floor(max(0.0, time) / self.cycle * (1 + 1e-12))

    def time(self, count: float) -> float:
        return self.cycle * math.ceil(count / self.clients)


@final
@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points, and straight on at a pace beyond the last."""

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


@lru_cache(maxsize=512)
def always_training(law: DurationLaw, transfer: float, clients: int) -> Updates:
    """Updates of clients that all begin at zero and never rest; a cycle is the transfer and a draw of the law."""
    cycle, deviation = transfer + law.mean, math.sqrt(law.variance)
    if deviation <= _CONSTANT * cycle:
        return Stairs(clients, cycle)
    times = _grid(law, transfer, clients)
    within, mean_within = _of_cycles(law, transfer)
    waits = np.maximum(times[1:, None] - times[None, :], 0.0)
    began = mean_within(waits)
    # P(X > t − u) averaged over a cell of u, as a difference of E[min(X, ·)].
    busy = (began[:, :-1] - began[:, 1:]) / np.diff(times)
    ended, rises = within(times[1:]), np.zeros(len(times) - 1)
    for row in range(len(rises)):
        rises[row] = (ended[row] - busy[row, :row] @ rises[:row]) / busy[row, row]
    counts = np.concatenate([[0.0], np.maximum.accumulate(np.cumsum(rises))])
    return Curve(times, clients * counts, clients / cycle)


@lru_cache(maxsize=512)
def arriving(law: DurationLaw, transfer: float, rate: float) -> Updates:
    """Updates of clients of which one starts every 1/rate, the first at zero: Σ P(X ≤ t − n/rate)."""
    if math.sqrt(law.variance) <= _CONSTANT * (transfer + law.mean):
        return Curve(np.array([transfer + law.mean]), np.array([0.5]), rate)
    durations, within, mean_within = _table(law)
    # The sum is the integral and half of its first term (Euler and Maclaurin).
    counts = rate * (durations - mean_within) + within / 2
    return Curve(transfer + durations, np.maximum.accumulate(counts), rate)


class _OfTimes(Protocol):
    def __call__(self, times: Wide) -> Wide: ...


def _of_cycles(law: DurationLaw, transfer: float) -> tuple[_OfTimes, _OfTimes]:
    """P(X ≤ t) and E[min(X, t)] of a cycle X, which is the transfer and a draw of the law."""
    durations, within, mean_within = _table(law)

    def share(times: Wide) -> Wide:
        return np.interp(times - transfer, durations, within, left=0.0)

    def mean(times: Wide) -> Wide:
        return np.minimum(times, transfer) + np.interp(times - transfer, durations, mean_within)

    return share, mean


@lru_cache(maxsize=16)
def _table(law: DurationLaw) -> tuple[Wide, Wide, Wide]:
    """Durations, the shares within them, and E[min(D, d)]: a thousand points, evenly spaced in the logarithm."""
    durations = np.geomspace(*law.span, _TABLE)
    within = [law.share_within(float(duration)) for duration in durations]
    mean_within = [law.mean_within(float(duration)) for duration in durations]
    return tuple(np.concatenate([[0.0], it]) for it in (durations, within, mean_within))  # type: ignore[return-value]


def _grid(law: DurationLaw, transfer: float, clients: int) -> Wide:
    """Times at which m is found: dense where a first update comes, then where cycles still come in steps, then wide.

    It ends where what the tail has yet to bring, at most (1 + c²)/2 updates, is one in a hundred.
    """
    cycle, deviation = transfer + law.mean, math.sqrt(law.variance)
    first = max(law.smallest(2 * clients), law.span[0])
    many = _STAIRS * cycle
    far = max(many, cycle * _FAR * (1 + (deviation / cycle) ** 2))
    early = max(_FINE, math.log(many / first) / _MOST)
    late = max(_COARSE, math.log(far / many) / _MOST)
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
