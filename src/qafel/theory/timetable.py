"""When a run's server steps come.

A step takes K updates, which come as `renewal` says; and as every client must hear every broadcast, steps follow each
other no faster than a client's downlink carries them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from qafel.theory.exchange import Exchange
from qafel.theory.fleet import Fleet
from qafel.theory.renewal import Updates, always_training, arriving

_ROUNDING = 1e-9


@final
@dataclass(frozen=True, slots=True)
class Timetable:
    """The times of a method's server steps on a fleet."""

    updates: Updates
    snapshot_s: float
    """What the download of the whole model takes more than that of a broadcast."""
    all_at_once: bool
    """Whether every client begins with that download; else only those that arrive before the first step."""
    broadcast_s: float
    """How long a broadcast keeps a client's downlink busy."""

    def duration_s(self, buffer_size: int, server_steps: int) -> float:
        """The time of the last of so many steps."""
        return max(self._filled_s(buffer_size, server_steps), self._heard_s(buffer_size, server_steps))

    def limited_by_downlink(self, buffer_size: int, server_steps: int) -> bool:
        """Whether updates come faster than broadcasts can be heard."""
        return self._heard_s(buffer_size, server_steps) > self._filled_s(buffer_size, server_steps)

    def steps_within(self, budget_s: float, buffer_size: int) -> int:
        """The most server steps by then."""
        first = self._first_s(buffer_size)
        late = budget_s * (1 + _ROUNDING) - first
        if late < 0:
            return 0
        counted = self.updates.count(budget_s - (self.snapshot_s if self.all_at_once else 0.0)) + 0.5
        steps = max(1, math.floor(counted / buffer_size * (1 + _ROUNDING)))
        return min(steps, 1 + math.floor(late / self.broadcast_s)) if self.broadcast_s else steps

    def _first_s(self, buffer_size: int) -> float:
        return self.snapshot_s + self.updates.time(buffer_size - 0.5)

    def _filled_s(self, buffer_size: int, server_steps: int) -> float:
        """When the updates are there. The U-th is due when U − 1/2 are expected."""
        last = self.updates.time(buffer_size * server_steps - 0.5)
        return last + self.snapshot_s if self.all_at_once else max(last, self._first_s(buffer_size))

    def _heard_s(self, buffer_size: int, server_steps: int) -> float:
        """When all broadcasts but the last have been heard, one after the other."""
        return self._first_s(buffer_size) + (server_steps - 1) * self.broadcast_s


@lru_cache(maxsize=512)
def timetable(exchange: Exchange, fleet: Fleet) -> Timetable:
    """The timetable of a method's messages on a fleet."""
    up, down = exchange.upload_bytes, exchange.broadcast_bytes
    transfer = fleet.transfer_s(up, down)
    open_loop = fleet.arrival_rate is not None
    updates = (
        arriving(fleet.durations, transfer, fleet.updates_per_s(up, down))
        if open_loop
        else always_training(fleet.durations, transfer, fleet.clients)
    )
    return Timetable(
        updates,
        fleet.transfer_s(0, exchange.snapshot_bytes) - fleet.transfer_s(0, down),
        not open_loop,
        fleet.transfer_s(0, down) - 2 * fleet.latency,
    )
