"""The clients as a stream of updates: how many come in a second, and how stale the stalest is.

Every client trains all the time (its cycle: download, train, upload), or clients arrive at a rate of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, TypeAlias, final, get_args

from qafel.errors import ConfigError

LawName: TypeAlias = Literal["constant", "half-normal", "log-normal", "uniform"]


@final
@dataclass(frozen=True, slots=True)
class DurationLaw:
    """How long a client trains, in seconds: the simulator's laws, as moments and quantiles."""

    name: LawName = "constant"
    scale: float = 1.0
    spread: float = 0.5
    """Log-normal: scale·e^(spread·N); uniform: scale·(1 ± spread)."""

    def __post_init__(self) -> None:
        if self.name not in get_args(LawName):
            raise ConfigError(f"a duration law is one of {', '.join(get_args(LawName))}, got {self.name!r}")
        if not (0 <= self.scale < math.inf and 0 <= self.spread < math.inf):
            raise ConfigError(f"scale and spread of durations are zero or more, got {self.scale} and {self.spread}")
        if self.name == "uniform" and self.spread > 1:
            raise ConfigError(f"the spread of uniform durations lies in [0, 1], got {self.spread}")

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

    def largest(self, draws: int) -> float:
        """What one of so many draws exceeds on average: the quantile at 1 − 1/draws."""
        rare = 1 / max(2, draws)
        match self.name:
            case "constant":
                return self.scale
            case "half-normal":
                return -self.scale * NormalDist().inv_cdf(rare / 2)
            case "log-normal":
                return self.scale * math.exp(-self.spread * NormalDist().inv_cdf(rare))
            case "uniform":
                return self.scale * (1 + self.spread * (1 - 2 * rare))


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
        if self.clients < 1:
            raise ConfigError(f"there is at least one client, got {self.clients}")
        for name in ("upload_rate", "download_rate", "arrival_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < math.inf:
                raise ConfigError(f"the {name.replace('_', ' ')} is positive, got {rate}")
        if not 0 <= self.latency < math.inf:
            raise ConfigError(f"the latency is zero or more, got {self.latency}")
        if self.arrival_rate is None and self.durations.mean + self.latency == 0:
            raise ConfigError("clients that are always training need a duration above zero: give the time per update")

    def transfer_s(self, upload_bytes: float, download_bytes: float) -> float:
        """Both ways of one update."""
        upload = upload_bytes / self.upload_rate if self.upload_rate else 0.0
        download = download_bytes / self.download_rate if self.download_rate else 0.0
        return 2 * self.latency + upload + download

    def cycle_s(self, upload_bytes: float, download_bytes: float) -> float:
        """From a client's start to its update's arrival, on average."""
        return self.durations.mean + self.transfer_s(upload_bytes, download_bytes)

    def updates_per_s(self, upload_bytes: float, download_bytes: float) -> float:
        if self.arrival_rate is not None:
            return self.arrival_rate
        return self.clients / self.cycle_s(upload_bytes, download_bytes)

    def largest_staleness(self, upload_bytes: float, download_bytes: float, updates: int) -> int:
        """τ_max,1: how many updates arrive during the longest of so many cycles."""
        longest = self.durations.largest(updates) + self.transfer_s(upload_bytes, download_bytes)
        return math.ceil(longest * self.updates_per_s(upload_bytes, download_bytes))
