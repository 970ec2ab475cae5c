"""Which uploads are taken. The core checks form, version and repetition; this adds who sent it, how often, how large.

Checks come in the order of their price, and an upload that was counted before is told so first: its client only
missed the receipt. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from qafel.deployment.names import Limits


@final
@dataclass(frozen=True, slots=True)
class DefenceSettings:
    """None: no such limit."""

    max_norm_ratio: float | None = 100.0
    """A weighted update whose norm is beyond this multiple of the running median is rejected. Honest clients with
    different data differ by more than ten; what this is to stop is larger by orders of magnitude.
    """
    max_rate: float | None = None
    """Uploads a second and client, over bursts of ten seconds' worth."""


# How a server and a client work, beside what their run's recipe says.


@final
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server works."""

    run: str | None = None
    """The run's name on the broker; the recipe's by default."""
    snapshot_every: int = 100
    checkpoint_every: int = 5000
    """Uploads."""
    group: int = 64
    """The most uploads received at one go: the event loop answers in between."""
    heartbeat_s: float = 2.0
    keep_journal: bool = False
    """Keep all records, not only those since the last checkpoints."""
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    limits: Limits = field(default_factory=Limits)
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    patience_s: float | None = None


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
    save_every_s: float = 10.0
    settle_s: float = 30.0
    """How long to wait at the end for the last receipts."""
    patience_s: float | None = None
    """How long to wait for the broker and the run at the start; None: forever."""
