"""How a server and a client work, beside what their run's recipe says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from qafel.deployment.names import StreamLimits

__all__ = ["ClientSettings", "DefenceSettings", "ServerSettings", "StreamLimits"]


@final
@dataclass(frozen=True, slots=True)
class DefenceSettings:
    """What a client may send. None: no such limit."""

    max_norm_ratio: float | None = 100.0
    """A weighted update whose norm is beyond this multiple of the running median is rejected. Honest clients with
    different data differ by more than ten; an attack differs by orders of magnitude.
    """
    max_rate: float | None = None
    """Uploads a second and client, over bursts of ten seconds' worth."""


@final
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server works."""

    run: str | None = None
    """The run's name on the broker; the recipe's by default."""
    snapshot_every: int = 100
    """Server steps."""
    checkpoint_every: int = 5000
    """Uploads."""
    group: int = 64
    """The most uploads received at one go: the event loop answers in between."""
    heartbeat_s: float = 2.0
    keep_journal: bool = False
    """Keep all records, not only those since the last checkpoints."""
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    limits: StreamLimits = field(default_factory=StreamLimits)
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    patience_s: float | None = None
    """How long to wait for the broker at the start; None: forever."""


@final
@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client works."""

    max_updates: int | None = None
    min_interval_s: float = 0.0
    """The least time between two starts."""
    window: int = 8
    """Uploads on their way before training waits."""
    worker: Literal["thread", "process"] = "thread"
    """Where training runs. A process helps if training holds the interpreter's lock, which would delay x̂."""
    save_every_s: float = 10.0
    settle_s: float = 30.0
    """How long to wait at the end for the last receipts."""
    patience_s: float | None = None
    """How long to wait for the broker and the run at the start; None: forever."""
