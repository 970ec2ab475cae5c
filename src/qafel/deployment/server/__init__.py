"""The server of a run, in data-flow order.

server         from a configuration and a folder to a server; its sessions with the broker
pipeline       takes uploads from the work queue, syncs, broadcasts, acknowledges; writes checkpoints and snapshots
announcements  everything the server says: broadcasts, snapshots, receipts, its state
fairness       no client has more than its share of the recent updates
intake         which uploads count, and what the clients of the others are told
lease          one server a run: compare-and-set, epochs, and whose history the broker holds
ledger         the server's state: checkpoint and journal, synced before anything is acknowledged
journal        the accepted uploads on disk, chained; a torn tail told from damage
evaluation     the model measured on the way; metrics for Prometheus

`ServerSettings` says how it works, beside what the recipe says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from qafel.deployment.names import StreamLimits
from qafel.errors import ConfigError
from qafel.runs.trackers import NOT_TRACKED, Track


@final
@dataclass(frozen=True, slots=True)
class DefenceSettings:
    """What a client may send."""

    max_norm_ratio: float | None = 5.0
    """The largest norm of a weighted update, as a multiple of the clients' running median; None: `max_norm` alone."""
    max_rate: float | None = None
    """Uploads a second and client, over bursts of ten seconds' worth; None: any."""
    norm_excess: Literal["clip", "reject"] = "clip"
    """What becomes of an update beyond `max_norm_ratio`: it is scaled down to it, or rejected. Honest clients with
    different data differ by more than ten; rejected for it, they would be left out of the model.
    """
    max_norm: float | None = None
    """What updates are scaled down to as long as fewer than three clients say what is usual, and the most that their
    median is taken for; None: derived from the recipe, see `resolved`; infinity: nothing.
    """
    max_weight: float | None = None
    """What a larger weight is taken for, the usual one being 1. None: ten, or the largest that the task's own samples
    give; infinity: nothing.
    """
    max_share: float | None = 2.0
    """One client's largest share of the recent updates, as a multiple of an equal one among the active clients, at
    least 1; None: any.
    """

    def __post_init__(self) -> None:
        if self.max_share is not None and not self.max_share >= 1:
            raise ConfigError(f"a client's largest share is at least 1, an equal one; got {self.max_share:g}")


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
    track: Track = NOT_TRACKED
    """The trackers that show the run."""
