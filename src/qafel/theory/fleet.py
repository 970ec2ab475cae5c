"""The clients as a stream of updates: how many come in a second, and how stale the stalest is.

Every client trains all the time (its cycle: download, train, upload), or clients arrive at a rate of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from qafel.errors import ConfigError
from qafel.theory.checks import LARGEST, require, require_not_negative, require_positive
from qafel.theory.durations import DurationLaw

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
