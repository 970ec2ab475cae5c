"""The state of a run between two evaluations, which its driver reports about once a second.

During a run, the file live.json of its directory holds the state. A deployed server also publishes it through
its broker, with fields that its clients and other servers need.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, final

from pydantic import Field, TypeAdapter, ValidationError

from qafel.algorithm import Server
from qafel.config import Limits
from qafel.errors import DataError, OutputError
from qafel.files import write_atomically
from qafel.runs.progress import (
    Amount,
    Count,
    Number,
    Progress,
    Status,
    Text,
    Traffic,
    fault_of,
    finite_or_none,
    read_record,
)
from qafel.runs.summary import figures_so_far
from qafel.tasks.protocol import Goal, Task

LIVE_FILE = "live.json"
_MOST_BYTES = 1 << 20
NAMED_CLIENTS = 100
"""A state lists at most this many clients by number, and counts the others."""
NAMED_FAILURES = 20
"""A state gives the reason for at most this many clients whose training fails."""
MOST_STALENESS = 200
"""The last entry of a published histogram counts this staleness and all above."""


_Entry = TypeVar("_Entry")
ByName: TypeAlias = Annotated[dict[Text, _Entry], Field(max_length=1000)]
"""Entries by client or by reason."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A run at one moment. Fields have the names of a row or a summary where they mean the same."""

    status: Text
    """A run's `Status`, or another word of its server."""
    at: Amount
    """Time of this state, in seconds since 1970."""
    version: Count
    """In a deployment, the version of the last published broadcast."""
    uploads: Count = 0
    upload_bytes_total: Count = 0
    broadcast_bytes_total: Count = 0
    received_bytes_total: Count = 0
    wall_s: Amount = 0.0
    virtual_time: Amount | None = None
    virtual_time_unit: Text = ""
    """"s" in a deployment, where time is in seconds."""
    updates_per_s: Amount = 0.0
    """The rate of the last seconds."""
    share_done: Amount | None = None
    """Progress towards the nearest limit, from 0 to 1."""
    buffer_fill: Count = 0
    buffer_size: Count = 0
    staleness_histogram: list[Count] = field(default_factory=list)
    """Updates of the whole run by staleness 0, 1, 2, …; see `MOST_STALENESS`."""
    rejected: ByName[Count] = field(default_factory=dict)
    repeated: Count = 0
    """Uploads that had already counted: their clients missed the receipt."""
    clients: Count = 0
    """The number of clients."""
    training: ByName[Count] = field(default_factory=dict)
    """Participating clients by number, with the versions that each is behind. It lists at most `NAMED_CLIENTS`."""
    training_count: Count = 0
    silent: ByName[Amount | None] = field(default_factory=dict)
    """Clients that do not report, with the seconds since they did; None: unknown. It lists at most `NAMED_CLIENTS`."""
    silent_count: Count | None = 0
    """None: not counted, as in a simulation of very many clients."""
    failing: ByName[Text] = field(default_factory=dict)
    """Clients whose last training failed, with the reason. It lists at most `NAMED_FAILURES`."""
    failing_count: Count = 0
    metric: Number | None = None
    metric_name: Text = ""
    metric_goal: Goal = "min"
    target: Number | None = None
    hidden_state_lag: Number | None = None
    """‖x − x̂‖ / ‖x‖ at the last evaluation."""
    problem: Text = ""
    """A problem that an operator should fix, such as a full disk. Empty: none."""
    failed_checkpoints: Count = 0
    server_steps: Count = 0
    """The limit of server steps; 0: no limit."""
    run_id: Text = ""
    """The unique name of a deployed run. This field and those below exist in deployments only."""
    digest: Count = 0
    """The digest of x̂ at `version`."""
    epoch: Count = 0
    """The number of the server within the run. States of a lower epoch are void."""
    since: Count = 0
    """The first version of this epoch."""
    holder: Text = ""
    """The identity of the server's folder. A copy of the folder has another one."""
    instance: Text = ""
    """The identity of the process."""
    safe_records: Count = 0
    """Synced records of the journal."""
    position: Count = 0
    """Bytes of all broadcasts up to `version`."""
    snapshot_position: Count = 0
    """Bytes of all broadcasts up to the version of the snapshot."""
    snapshot_bytes: Count = 0
    quantized_bytes: Count = 0
    """Bytes of the quantized snapshot; 0: there is none."""
    last_bytes: Count = 0
    """Bytes of the last broadcast."""
    beat: Count = 0
    """The number of the state within its epoch. Receivers ignore repeated numbers."""
    session: Text = ""
    """Changes when the server reconnects: messages in flight at that moment may be lost."""

    @property
    def ended(self) -> bool:
        return self.status not in ("running", "stopped")

    def to_bytes(self) -> bytes:
        return json.dumps(finite_or_none(asdict(self)), allow_nan=False).encode()

    @staticmethod
    def from_bytes(data: bytes) -> LiveState:
        """Read the result of `to_bytes`. Raises `DataError` for anything else."""
        try:
            return _LIVE_STATE.validate_json(data)
        except ValidationError as error:
            raise DataError(f"not a run's state: {fault_of(error)}") from None


_LIVE_STATE = TypeAdapter(LiveState)


def live_state(
    status: Status,
    task: Task,
    server: Server,
    traffic: Traffic,
    progress: Progress,
    limits: Limits,
    now: float,
    **more: Any,
) -> LiveState:
    """Return the state of a run of either driver.

    now    the time of the driver's clock
    more   fields that only this driver knows, or that replace those computed here
    """
    figures = figures_so_far(task, server, traffic, progress) | {
        "status": status,
        "at": time.time(),
        "version": server.version,
        "virtual_time": now,
        "share_done": limits.share_done(server.version, traffic.uploads, traffic.total_bytes, now),
        "buffer_fill": server.accumulator.count,
        "buffer_size": server.algorithm.buffer_size,
        "staleness_histogram": shorten(traffic.staleness_counts),
        "metric": progress.final,
    }
    return LiveState(**figures | more)


def read_live(folder: Path) -> LiveState | None:
    """Return the live state of a run directory, or None without one. Raises `DataError` if it is damaged."""
    with suppress(FileNotFoundError):
        return read_record(folder / LIVE_FILE, _LIVE_STATE, _MOST_BYTES, "delete it; a running run writes it again")
    return None


def write_live(folder: Path, state: LiveState) -> None:
    """Write the live state of a run directory. A failure does not end the run."""
    with suppress(OutputError):
        write_atomically(folder / LIVE_FILE, state.to_bytes(), lasting=False)


def shorten(histogram: Sequence[int]) -> list[int]:
    """Return at most `MOST_STALENESS` + 1 entries; the last one counts all above, too."""
    head, rest = histogram[:MOST_STALENESS], histogram[MOST_STALENESS:]
    return [*head, sum(rest)] if rest else list(head)


@final
class Rate:
    """Counts per second over the last seconds."""

    def __init__(self, over_s: float = 10.0) -> None:
        self._over_s = over_s
        self._marks: list[tuple[float, int]] = []

    def mark(self, now: float, count: int) -> float:
        """Record the count at a time in seconds. Return the counts per second."""
        marks = self._marks
        marks.append((now, count))
        while len(marks) > 2 and now - marks[0][0] > self._over_s:
            marks.pop(0)
        then, before = marks[0]
        return (count - before) / (now - then) if now > then else 0.0
