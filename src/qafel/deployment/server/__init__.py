"""The server of a run, in data-flow order.

server         opens a run and holds sessions with the broker
pipeline       receives uploads, syncs, broadcasts, acknowledges; writes checkpoints and snapshots
announcements  all messages of the server: broadcasts, snapshots, receipts, state; its lease of the run
starts         linked starts: requests, limits, and what the server remembers of clients' start points
defence        what a client may send: signature, rate, norm, share
intake         decides which uploads count, and writes the receipts
ledger         the server's state: checkpoint and journal, synced before anything is acknowledged
journal        accepted uploads on disk, chained by checksums
evaluation     evaluates the model; metrics for Prometheus

`ServerSettings` holds what the recipe does not.
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
    """Limits on what a client may send."""

    max_norm_ratio: float | None = 5.0
    """The largest norm of a weighted update, as a multiple of the clients' running median. None: only `max_norm`."""
    max_rate: float | None = None
    """Uploads per second and client, averaged over ten seconds. None: no limit."""
    norm_excess: Literal["clip", "reject"] = "clip"
    """Whether an update beyond `max_norm_ratio` is scaled down or rejected. The norms of honest clients with different
    data may differ by a factor of ten; "reject" would exclude such clients from the model.
    """
    max_norm: float | None = None
    """The norm limit while fewer than three clients have sent updates, and the largest median that is believed. None:
    derived from the recipe, see `resolved`. Infinity: no limit.
    """
    max_weight: float | None = None
    """The largest weight; larger ones are reduced to it. The usual weight is 1. None: ten, or the largest weight of the
    task's clients. Infinity: no limit.
    """
    max_share: float | None = 2.0
    """The largest share of the recent updates per client, as a multiple (at least 1) of an equal share among active
    clients. None: no limit.
    """

    def __post_init__(self) -> None:
        if self.max_share is not None and not self.max_share >= 1:
            raise ConfigError(f"expected `max_share` of at least 1, an equal share; got {self.max_share:g}")


@final
@dataclass(frozen=True, slots=True)
class StartSettings:
    """Limits on linked starts."""

    memory_bytes: int = 2_000_000_000
    """Disk space for clients' start points. The least recently used are dropped; each costs one longer start."""
    per_hour: float | None = 3600.0
    """Starts per hour and client, averaged over ten minutes. None: no limit."""
    at_once: int = 64
    """Clients that wait for a start. The others are told when to ask again."""


@final
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server works."""

    run: str | None = None
    """The run's name on the broker. Default: the recipe's name."""
    snapshot_every: int = 100
    """Server steps."""
    checkpoint_every: int = 5000
    """Uploads."""
    group: int = 64
    """The most uploads received without a pause of the event loop."""
    heartbeat_s: float = 2.0
    keep_journal: bool = False
    """Keep the whole journal, not only records since the last checkpoints."""
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    limits: StreamLimits = field(default_factory=StreamLimits)
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    starts: StartSettings = field(default_factory=StartSettings)
    take_over: bool = False
    """Replace another server, or another history of the run."""
    patience_s: float | None = None
    """How long to wait for the broker at the start. None: forever."""
    track: Track = NOT_TRACKED
    """Experiment trackers that record the run."""
