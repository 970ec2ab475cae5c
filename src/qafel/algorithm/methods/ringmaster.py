"""Ringmaster ASGD: one update a step; updates of delay R or more are discarded, and their training is stopped.

x ← x − η_g Δ if the delay is below R. A client whose start becomes R versions old stops, and starts again from the
newest model. Maranjyan, Tyurin & Richtárik, ICML 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from qafel.algorithm.methods.fedbuff import UNQUANTIZED
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE
from qafel.errors import require, require_numbers


@final
@dataclass(frozen=True, slots=True)
class DelayLimit:
    """Weight 1 below the limit R, rejection from R on; running jobs of that age are stopped."""

    limit: int
    stops: bool = True
    """Whether running jobs are stopped, or only their updates discarded."""

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.limit >= 1, "the delay limit is 1 or more", self.limit)

    @property
    def abandon_after(self) -> int | None:
        """Stop jobs whose start is this many versions old."""
        return self.limit if self.stops else None

    def __call__(self, staleness: int) -> float | None:
        return 1.0 if staleness < self.limit else None


RINGMASTER = Preset(
    "one update a step; late ones are discarded, and their training stops",
    {**HIDDEN_STATE, "buffer_size": 1, "client_rule": "update"},
    {**UNQUANTIZED, "staleness": {"name": "delay-limit", "limit": 10}},
)
