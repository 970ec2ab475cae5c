"""The clients as a stream of updates: how many come in a second, and how stale the stalest is.

Every client trains all the time (its cycle: download, train, upload), or clients arrive at a rate of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, TypeAlias, final, get_args

from qafel.errors import ConfigError
from qafel.theory.theorem import LARGEST, require, require_not_negative, require_positive

# How long a client trains: the simulator's laws, as moments, shares and quantiles.


LawName: TypeAlias = Literal["constant", "half-normal", "log-normal", "uniform"]


SPREADING = ("log-normal", "uniform")


_UNIT = NormalDist()


@final
@dataclass(frozen=True, slots=True)
class DurationLaw:
    """A law of training times, in seconds."""

    name: LawName = "constant"
    scale: float = 1.0
    spread: float = 0.5
    """Log-normal: scale·e^(spread·N); uniform: scale·(1 ± spread)."""

    def __post_init__(self) -> None:
        if self.name not in get_args(LawName):
            raise ConfigError(f"a duration law is one of {', '.join(get_args(LawName))}, got {self.name!r}")
        require_not_negative("scale of durations", self.scale)
        require_not_negative("spread of durations", self.spread)
        if self.name == "uniform" and self.spread > 1:
            raise ConfigError(f"the spread of uniform durations lies in [0, 1], got {self.spread}")
        if self.name == "log-normal" and self.spread**2 + math.log(self.scale or 1) > math.log(LARGEST):
            raise ConfigError(
                f"log-normal durations of scale {self.scale:g} and spread {self.spread:g} have a standard deviation "
                f"above {LARGEST:g} s: lower the spread"
            )

    def __str__(self) -> str:
        return f"{self.name}:{self.scale:g}" + (f",{self.spread:g}" if self.name in SPREADING else "")

    @staticmethod
    def parse(text: str) -> DurationLaw:
        """A law from "NAME[:SCALE[,SPREAD]]", such as "half-normal:2", or plain seconds: "1.5"."""
        name, _, numbers = text.strip().partition(":")
        if name not in get_args(LawName):
            name, numbers = "constant", text
        try:
            values = [float(number) for number in numbers.split(",")] if numbers or not text.strip() else []
        except ValueError:
            values = [math.nan] * 3
        if len(values) > 2 or any(math.isnan(value) for value in values):
            known = ", ".join(get_args(LawName))
            raise ConfigError(f"a duration is seconds or LAW:SCALE[,SPREAD] with LAW of {known}; got {text!r}")
        if len(values) == 2 and name not in SPREADING:
            raise ConfigError(f"{name} durations have a scale and no spread, got {text!r}")
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
        """Between these lies nearly all of the law, of its mean and of its mean square."""
        match self.name:
            case "constant":
                return self.scale, self.scale
            case "half-normal":
                return 1e-9 * self.scale, 9 * self.scale
            case "log-normal":
                reach = self.spread * (2 * self.spread + 7)
                return self.scale * math.exp(-6.5 * self.spread), self.scale * math.exp(reach)
            case "uniform":
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
        """The quantile at `rare`, or at one less that: a small share keeps its digits."""
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


_ROUNDING = 1e-9


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Clients, how long they train, and their network (None: messages travel at once)."""

    clients: int
    durations: DurationLaw
    upload_rate: float | None = None
    """Bytes per second."""
    download_rate: float | None = None
    latency: float = 0.0
    """Seconds, of each message."""
    arrival_rate: float | None = None
    """Arrivals per second; None: every client is always training."""

    def __post_init__(self) -> None:
        require(1 <= self.clients <= LARGEST, "there is at least one client, and no more than 1e60", self.clients)
        for name in ("upload_rate", "download_rate", "arrival_rate"):
            if (rate := getattr(self, name)) is not None:
                require_positive(name.replace("_", " "), rate)
        require_not_negative("latency", self.latency)
        if self.arrival_rate is not None:
            self.require_enough_clients(0, 0)
        elif self.cycle_s(1, 1) == 0:
            raise ConfigError(
                "clients that are always training need a duration above zero: give the time per update, "
                "a latency, or the network's rates"
            )

    def transfer_s(self, upload_bytes: float, download_bytes: float) -> float:
        """Both ways of one update."""
        upload = upload_bytes / self.upload_rate if self.upload_rate else 0.0
        download = download_bytes / self.download_rate if self.download_rate else 0.0
        return 2 * self.latency + upload + download

    def cycle_s(self, upload_bytes: float, download_bytes: float) -> float:
        """From a client's start to its update's arrival, on average."""
        return self.durations.mean + self.transfer_s(upload_bytes, download_bytes)

    def updates_per_s(self, upload_bytes: float, download_bytes: float) -> float:
        """In the long run. Who arrives while all are training cannot start."""
        cycle = self.cycle_s(upload_bytes, download_bytes)
        if self.arrival_rate is None:
            return self.clients / cycle
        return min(self.arrival_rate, self.clients / cycle) if cycle else self.arrival_rate

    def has_enough_clients(self, upload_bytes: float, download_bytes: float) -> bool:
        """Whether the arrivals leave anyone to arrive: rate × cycle of them train at a time."""
        training = (self.arrival_rate or 0.0) * self.cycle_s(upload_bytes, download_bytes)
        return training <= self.clients * (1 + _ROUNDING)

    def require_enough_clients(self, upload_bytes: float, download_bytes: float) -> None:
        """Raise unless there are as many clients as the arrival rate keeps training."""
        if not self.has_enough_clients(upload_bytes, download_bytes):
            cycle = self.cycle_s(upload_bytes, download_bytes)
            raise ConfigError(
                f"{self.arrival_rate:g} arrivals per second, each for {cycle:.4g} s, keep "
                f"{(self.arrival_rate or 0.0) * cycle:.4g} clients training at a time, and there are {self.clients}: "
                f"the arrival rate is at most {self.clients / cycle:.4g}"
            )

    def largest_staleness(self, upload_bytes: float, download_bytes: float, updates: int) -> int:
        """τ_max,1: how many updates arrive during a cycle that one of so many exceeds on average."""
        longest = self.durations.largest(updates) + self.transfer_s(upload_bytes, download_bytes)
        return math.ceil(longest * self.updates_per_s(upload_bytes, download_bytes) * (1 - _ROUNDING))
