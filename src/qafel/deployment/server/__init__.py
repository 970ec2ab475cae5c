"""The server of a run, in data-flow order.

server         from a configuration and a folder to a server; its sessions with the broker
pipeline       takes uploads from the work queue, syncs, broadcasts, acknowledges; writes checkpoints and snapshots
announcements  everything the server says: broadcasts, snapshots, receipts, its state
intake         which uploads count, and what the clients of the others are told
lease          one server a run: compare-and-set, epochs, and whose history the broker holds
ledger         the server's state: checkpoint and journal, synced before anything is acknowledged
journal        the accepted uploads on disk, chained; a torn tail told from damage
evaluation     the model measured on the way; metrics for Prometheus

`ServerSettings` says how it works, beside what the recipe says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from qafel.deployment.names import StreamLimits


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
    take_over: bool = False
    """Take the run from another server, or from another history."""
    patience_s: float | None = None
    """How long to wait for the broker at the start; None: forever."""
