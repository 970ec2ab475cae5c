"""Bytes and time of a run before it is run.

K uploads come for each broadcast, and a broadcast counts once however many receive it. Not counted: the initial model,
which every client downloads once, and what a transport adds to a message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from qafel.algorithm.messages import HEADER_BYTES
from qafel.planning.fleet import Fleet
from qafel.planning.renewal import Updates, always_training, arriving
from qafel.quantizers.protocol import Quantizer

# The two messages of a method: a frame of 64 bytes and the quantizer's payload, the longest where lengths vary.


@final
@dataclass(frozen=True, slots=True)
class Exchange:
    """What a client sends and what the server sends."""

    upload_bytes: int
    broadcast_bytes: int
    snapshot_bytes: int
    """The whole model, which a client downloads before its first start."""

    @staticmethod
    def of(client: Quantizer, server: Quantizer, size: int) -> Exchange:
        return Exchange(
            HEADER_BYTES + client.max_payload_bytes(size),
            HEADER_BYTES + server.max_payload_bytes(size),
            HEADER_BYTES + 4 * size,
        )


# When a run's server steps come.
#
# A step takes K updates, which come as `renewal` says; and as every client must hear every broadcast, steps follow each
# other no faster than a client's downlink carries them.


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


@final
@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run of so many server steps will cost."""

    server_steps: int
    uploads: int
    upload_bytes: int
    broadcast_bytes: int
    received_bytes: int
    """Broadcasts times the clients that receive them."""
    duration_s: float
    limited_by_downlink: bool
    """Whether steps wait for the broadcasts to reach the clients, rather than for updates."""

    @property
    def traffic_bytes(self) -> int:
        """Uploaded, and broadcast once: what a recipe's stop.traffic_bytes counts."""
        return self.upload_bytes + self.broadcast_bytes

    @property
    def crossing_bytes(self) -> int:
        """Uploaded, and received by all clients."""
        return self.upload_bytes + self.received_bytes


def forecast(exchange: Exchange, fleet: Fleet, buffer_size: int, server_steps: int) -> Forecast:
    """What T server steps of K updates send and how long they take."""
    uploads, broadcast_bytes = buffer_size * server_steps, server_steps * exchange.broadcast_bytes
    times = timetable(exchange, fleet)
    return Forecast(
        server_steps=server_steps,
        uploads=uploads,
        upload_bytes=uploads * exchange.upload_bytes,
        broadcast_bytes=broadcast_bytes,
        received_bytes=broadcast_bytes * fleet.clients,
        duration_s=times.duration_s(buffer_size, server_steps),
        limited_by_downlink=times.limited_by_downlink(buffer_size, server_steps),
    )


def affordable_steps(
    exchange: Exchange,
    fleet: Fleet,
    buffer_size: int,
    *,
    budget_bytes: float | None = None,
    budget_s: float | None = None,
    every_copy: bool = False,
) -> int:
    """The most server steps within the budget of bytes and that of time; zero if not even one fits.

    A broadcast counts once, or once per client that receives it with `every_copy`.
    """
    steps = []
    if budget_bytes is not None:
        copies = fleet.clients if every_copy else 1
        steps.append(int(budget_bytes / (buffer_size * exchange.upload_bytes + copies * exchange.broadcast_bytes)))
    if budget_s is not None:
        steps.append(timetable(exchange, fleet).steps_within(budget_s, buffer_size))
    return min(steps)
