"""Bytes and time of a run before it is run.

K uploads come for each broadcast, and a broadcast counts once however many receive it. Not counted: the initial model,
which every client downloads once, and what a transport adds to a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from qafel.theory.exchange import Exchange
from qafel.theory.fleet import Fleet
from qafel.theory.timetable import timetable


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
