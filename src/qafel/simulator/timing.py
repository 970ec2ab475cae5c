"""When things happen in a run: arrivals, durations, network, dropouts, as one value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from qafel.errors import ConfigError
from qafel.simulator.arrivals import AlwaysTraining, Arrivals, Rounds
from qafel.simulator.durations import Constant, Durations
from qafel.simulator.network import Network


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """All that decides on time. Durations alone are needed; the rest has the plainest default."""

    durations: Durations = field(default_factory=Constant)
    arrivals: Arrivals = field(default_factory=AlwaysTraining)
    per_example: float = 0.0
    """Time per sample that the client holds, on top of the drawn duration."""
    speeds: list[float] | None = None
    """A factor on each client's duration."""
    dropout: float = 0.0
    """The share of trainings that never report."""
    max_concurrency: int | None = None
    network: Network | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"the dropout share lies in [0, 1), got {self.dropout}")
        if not isinstance(self.arrivals, AlwaysTraining | Rounds | Iterable):
            raise ConfigError(f"arrivals are AlwaysTraining, Rounds or (time, client) pairs, got {self.arrivals!r}")
