"""Bytes and time of a run before it is run.

A message is a frame of 64 bytes and the quantizer's payload (the longest one, where the length varies); K uploads
come for each broadcast, and a broadcast counts once however many receive it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from qafel.algorithm.messages import HEADER_BYTES
from qafel.quantizers.protocol import Quantizer
from qafel.theory.fleet import Fleet


@final
@dataclass(frozen=True, slots=True)
class Exchange:
    """The two messages of a method: what a client sends and what the server sends."""

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
    rate = fleet.updates_per_s(exchange.upload_bytes, exchange.broadcast_bytes)
    return Forecast(
        server_steps=server_steps,
        uploads=uploads,
        upload_bytes=uploads * exchange.upload_bytes,
        broadcast_bytes=broadcast_bytes,
        received_bytes=broadcast_bytes * fleet.clients,
        duration_s=uploads / rate + _lead_s(exchange, fleet),
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
        steps.append(budget_bytes / (buffer_size * exchange.upload_bytes + copies * exchange.broadcast_bytes))
    if budget_s is not None:
        rate = fleet.updates_per_s(exchange.upload_bytes, exchange.broadcast_bytes)
        steps.append((budget_s - _lead_s(exchange, fleet)) * rate / buffer_size)
    return max(0, int(min(steps)))


def _lead_s(exchange: Exchange, fleet: Fleet) -> float:
    """What the beginning costs on top of uploads/rate: all start at once, with a download of the whole model.

    N renewal processes from time zero have made N(t/μ + (c² − 1)/2) updates by t, c² being variance over mean².
    """
    cycle = fleet.cycle_s(exchange.upload_bytes, exchange.broadcast_bytes)
    first = fleet.transfer_s(0, exchange.snapshot_bytes - exchange.broadcast_bytes) - 2 * fleet.latency
    if fleet.arrival_rate is not None:
        return cycle
    return cycle * (1 - fleet.durations.variance / cycle**2) / 2 + first
