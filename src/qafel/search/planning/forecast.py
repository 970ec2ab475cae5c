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
from qafel.errors import ConfigError, require
from qafel.quantizers.protocol import Quantizer
from qafel.search.planning.updates import DurationLaw, ExpectedUpdates, always_training, arriving
from qafel.theory.theorem import LARGEST, require_not_negative, require_positive

_ROUNDING = 1e-9


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Clients, how long they train, and their network (None: messages travel at once).

    Every client trains all the time (its cycle: download, train, upload), or clients arrive at a rate of their own.
    """

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
        require(1 <= self.clients <= LARGEST, "there is at least one client, and at most 1e60", self.clients)
        for name in ("upload_rate", "download_rate", "arrival_rate"):
            if (rate := getattr(self, name)) is not None:
                require_positive(name.replace("_", " "), rate)
        require_not_negative("latency", self.latency)
        if self.arrival_rate is not None:
            self.require_enough_clients(MessageSizes(0, 0, 0))
        elif self.cycle_s(MessageSizes(1, 1, 1)) == 0:
            raise ConfigError(
                "clients that are always training need a duration above zero: give the time per update, "
                "a latency, or the network's rates"
            )

    def transfer_s(self, upload_bytes: float, download_bytes: float) -> float:
        """Seconds that both ways of one update take."""
        upload = upload_bytes / self.upload_rate if self.upload_rate else 0.0
        download = download_bytes / self.download_rate if self.download_rate else 0.0
        return 2 * self.latency + upload + download

    def cycle_s(self, sizes: MessageSizes) -> float:
        """Seconds from a client's start to its update's arrival, on average."""
        return self.durations.mean + self.transfer_s(sizes.upload_bytes, sizes.download_bytes)

    def updates_per_s(self, sizes: MessageSizes) -> float:
        """Updates per second in the long run. A client that arrives while all are training cannot start."""
        cycle = self.cycle_s(sizes)
        if self.arrival_rate is None:
            return self.clients / cycle
        return min(self.arrival_rate, self.clients / cycle) if cycle else self.arrival_rate

    def has_enough_clients(self, sizes: MessageSizes) -> bool:
        """Whether there are as many clients as the arrival rate keeps training: rate × cycle of them."""
        return (self.arrival_rate or 0.0) * self.cycle_s(sizes) <= self.clients * (1 + _ROUNDING)

    def require_enough_clients(self, sizes: MessageSizes) -> None:
        """Raise unless `has_enough_clients`."""
        if not self.has_enough_clients(sizes):
            rate, cycle = self.arrival_rate or 0.0, self.cycle_s(sizes)
            raise ConfigError(
                f"{rate:g} arrivals per second, each for {cycle:.4g} s, keep {rate * cycle:.4g} clients training at a "
                f"time, and there are {self.clients}: the arrival rate can be at most {self.clients / cycle:.4g}"
            )


@final
@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Bytes of a method's messages: a frame of 64 bytes and the payload, the longest where lengths vary."""

    upload_bytes: int
    broadcast_bytes: int
    snapshot_bytes: int
    """The whole model, which a client downloads before its first start."""
    missed: float = 1.0
    """Broadcasts between two starts of a client, on average: clients / K."""

    @staticmethod
    def of(client: Quantizer, server: Quantizer, size: int, missed: float = 1.0) -> MessageSizes:
        """The messages of two quantizers for a model of `size` parameters, where a start finds so many `missed`."""
        up, down = (HEADER_BYTES + quantizer.max_payload_bytes(size) for quantizer in (client, server))
        return MessageSizes(up, down, HEADER_BYTES + 4 * size, missed)

    @property
    def download_bytes(self) -> float:
        """What a start downloads: the broadcasts that its client missed, or the whole model where that is shorter."""
        return min(self.missed * self.broadcast_bytes, self.snapshot_bytes)


@final
@dataclass(frozen=True, slots=True)
class Timetable:
    """The times of a method's server steps on a fleet.

    A step takes K updates; and as every client must hear every broadcast, steps follow each other no faster than a
    client's downlink carries them.
    """

    updates: ExpectedUpdates
    snapshot_s: float
    """What the download of the whole model takes more than that of a later start."""
    all_at_once: bool
    """Whether every client begins with that download; else only those that arrive before the first step."""
    broadcast_s: float
    """How long a broadcast keeps a client's downlink busy."""

    def steps_within(self, budget_s: float, buffer_size: int) -> int:
        """The most server steps of `buffer_size` updates by the time `budget_s`."""
        first = self._first_s(buffer_size)
        late = budget_s * (1 + _ROUNDING) - first
        if late < 0:
            return 0
        counted = self.updates.count(budget_s - (self.snapshot_s if self.all_at_once else 0.0)) + 0.5
        steps = max(1, math.floor(counted / buffer_size * (1 + _ROUNDING)))
        return min(steps, 1 + math.floor(late / self.broadcast_s)) if self.broadcast_s else steps

    def _first_s(self, buffer_size: int) -> float:
        return self.snapshot_s + self.updates.time(buffer_size - 0.5)

    def filled_s(self, buffer_size: int, server_steps: int) -> float:
        """When the updates of so many steps are there. The U-th is due when U − 1/2 are expected."""
        last = self.updates.time(buffer_size * server_steps - 0.5)
        return last + self.snapshot_s if self.all_at_once else max(last, self._first_s(buffer_size))

    def heard_s(self, buffer_size: int, server_steps: int) -> float:
        """When all broadcasts but the last have been heard, one after the other."""
        return self._first_s(buffer_size) + (server_steps - 1) * self.broadcast_s


@lru_cache(maxsize=512)
def timetable(sizes: MessageSizes, fleet: Fleet) -> Timetable:
    """When the server steps of a method with messages of these `sizes` come on a `fleet`."""
    transfer = fleet.transfer_s(sizes.upload_bytes, sizes.download_bytes)
    all_at_once = fleet.arrival_rate is None
    if all_at_once:
        updates = always_training(fleet.durations, transfer, fleet.clients)
    else:
        updates = arriving(fleet.durations, transfer, fleet.updates_per_s(sizes))
    download, whole, broadcast = (
        fleet.transfer_s(0, size) - 2 * fleet.latency
        for size in (sizes.download_bytes, sizes.snapshot_bytes, sizes.broadcast_bytes)
    )
    return Timetable(updates, whole - download, all_at_once, broadcast)


@final
@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run of so many server steps will cost."""

    server_steps: int
    uploads: int
    upload_bytes: int
    broadcast_bytes: int
    received_by_all_bytes: int
    """Broadcasts times the clients that receive them."""
    duration_s: float
    limited_by_downlink: bool
    """Whether steps wait for the broadcasts to reach the clients, rather than for updates."""

    @property
    def traffic_bytes(self) -> int:
        """Uploaded, and broadcast once: what a recipe's stop.traffic_bytes counts."""
        return self.upload_bytes + self.broadcast_bytes


def forecast(sizes: MessageSizes, fleet: Fleet, buffer_size: int, server_steps: int) -> Forecast:
    """What `server_steps` steps of `buffer_size` updates send on a `fleet`, with messages of these `sizes`, and how
    long they take.
    """
    uploads, broadcast_bytes = buffer_size * server_steps, server_steps * sizes.broadcast_bytes
    times = timetable(sizes, fleet)
    filled, heard = times.filled_s(buffer_size, server_steps), times.heard_s(buffer_size, server_steps)
    return Forecast(
        server_steps=server_steps,
        uploads=uploads,
        upload_bytes=uploads * sizes.upload_bytes,
        broadcast_bytes=broadcast_bytes,
        received_by_all_bytes=broadcast_bytes * fleet.clients,
        duration_s=max(filled, heard),
        limited_by_downlink=heard > filled,
    )


def affordable_steps(
    sizes: MessageSizes,
    fleet: Fleet,
    buffer_size: int,
    *,
    budget_bytes: float | None = None,
    budget_s: float | None = None,
    every_copy: bool = False,
) -> int:
    """The most server steps of `buffer_size` updates within both budgets; zero if not even one fits.

    A broadcast counts once; with `every_copy`, once per client that receives it.
    """
    steps = []
    if budget_bytes is not None:
        copies = fleet.clients if every_copy else 1
        steps.append(int(budget_bytes / (buffer_size * sizes.upload_bytes + copies * sizes.broadcast_bytes)))
    if budget_s is not None:
        steps.append(timetable(sizes, fleet).steps_within(budget_s, buffer_size))
    return min(steps)
