"""How a run stands at this moment, between two evaluations: what its driver says about once a second.

It is the file live.json of a run directory as long as the run goes on. A deployed server also tells it to its broker,
with what its clients and other servers must know.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, final

from pydantic import Field, TypeAdapter, ValidationError

from qafel.algorithm import Server
from qafel.config import Limits
from qafel.errors import DataError, OutputError
from qafel.files import write_atomically
from qafel.runs.progress import Progress, Status, Traffic, finite_or_none
from qafel.runs.records import Amount, Count, Number, Text, fault_of, read_record
from qafel.runs.summary import rejections_and_repeats
from qafel.tasks.protocol import Goal, Task

LIVE_FILE = "live.json"
_MOST_BYTES = 1 << 20
NAMED_CLIENTS = 100
"""Of so many clients the numbers are told; of all others the count."""
NAMED_FAILURES = 20
"""The same, of clients whose training fails, with the reasons."""
MOST_STALENESS = 200
"""The last entry of a told histogram is of this staleness and of all above."""


_Entry = TypeVar("_Entry")
ByName: TypeAlias = Annotated[dict[Text, _Entry], Field(max_length=1000)]
"""By client or by reason: as many as a person may look at."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A run at a moment. Names are those of a row or a summary where they mean the same."""

    status: Text
    """A run's `Status`, or another word of its server."""
    at: Amount
    """When this was said, in seconds since 1970."""
    version: Count
    """Of a deployed run, that of the last broadcast that went out."""
    uploads: Count = 0
    upload_bytes_total: Count = 0
    broadcast_bytes_total: Count = 0
    received_bytes_total: Count = 0
    wall_s: Amount = 0.0
    """How long the run has gone on."""
    virtual_time: Amount | None = None
    virtual_time_unit: Text = ""
    """"s" for a deployed run, whose time is in seconds."""
    updates_per_s: Amount = 0.0
    """Of the last seconds."""
    share_done: Amount | None = None
    """How far the run is towards the nearest of its limits, from 0 to 1."""
    buffer_fill: Count = 0
    buffer_size: Count = 0
    staleness_histogram: list[Count] = field(default_factory=list)
    """Updates per staleness 0, 1, 2, … in the whole run; see `MOST_STALENESS`."""
    rejected: ByName[Count] = field(default_factory=dict)
    repeated: Count = 0
    """Uploads that were counted before: their clients only missed the receipt."""
    clients: Count = 0
    """How many there are."""
    training: ByName[Count] = field(default_factory=dict)
    """Some of the clients that take part, by number: how many versions behind each is."""
    training_count: Count = 0
    silent: ByName[Amount | None] = field(default_factory=dict)
    """Some of the clients that do not report: since how many seconds; None where that is not known."""
    silent_count: Count | None = 0
    """None: not counted, as in a simulation of very many clients."""
    failing: ByName[Text] = field(default_factory=dict)
    """Some of the clients whose last training failed, and why."""
    failing_count: Count = 0
    metric: Number | None = None
    metric_name: Text = ""
    metric_goal: Goal = "min"
    target: Number | None = None
    hidden_state_lag: Number | None = None
    """‖x − x̂‖ / ‖x‖ at the last evaluation."""
    problem: Text = ""
    """What an operator should see to, such as a full disk; empty if all is well."""
    failed_checkpoints: Count = 0
    server_steps: Count = 0
    """How many the run is to make; 0: any number."""
    run_id: Text = ""
    """Tells a deployed run from all others, wherever it is seen. All below is of deployed runs, too."""
    digest: Count = 0
    """Of x̂ at `version`."""
    epoch: Count = 0
    """Which server of the run this is, counted; a lower one's words are void."""
    since: Count = 0
    """The version that its epoch began with."""
    holder: Text = ""
    """The folder that it serves from, and no copy of it."""
    instance: Text = ""
    """The process."""
    safe_records: Count = 0
    """Of its journal, synced."""
    position: Count = 0
    """The bytes of all broadcasts up to `version`."""
    snapshot_position: Count = 0
    """The same up to the version of the snapshot."""
    snapshot_bytes: Count = 0
    quantized_bytes: Count = 0
    """Of the quantized copy beside it; 0: there is none."""
    last_bytes: Count = 0
    """Of the last broadcast."""
    beat: Count = 0
    """Counts the states of an epoch: one that was said before is no news."""
    session: Text = ""
    """Changes when the server had to connect again: what was on its way then may be lost."""

    @property
    def ended(self) -> bool:
        return self.status not in ("running", "stopped")

    def to_bytes(self) -> bytes:
        return json.dumps(finite_or_none(asdict(self)), allow_nan=False).encode()

    @staticmethod
    def from_bytes(data: bytes) -> LiveState:
        """What `to_bytes` wrote; anything else raises `DataError`."""
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
    """The state of a run of either driver at the time `now` of its clock, with what only this driver knows, or knows
    better, as `more`.
    """
    rejected, repeated = rejections_and_repeats(server)
    values = {
        "status": status,
        "at": time.time(),
        "version": server.version,
        "uploads": traffic.uploads,
        "upload_bytes_total": traffic.upload_bytes,
        "broadcast_bytes_total": traffic.broadcast_bytes,
        "received_bytes_total": traffic.received_bytes,
        "wall_s": progress.wall_s,
        "virtual_time": now,
        "share_done": limits.share_done(server.version, traffic.uploads, traffic.total_bytes, now),
        "buffer_fill": server.accumulator.count,
        "buffer_size": server.algorithm.buffer_size,
        "staleness_histogram": shortened(traffic.staleness_counts),
        "rejected": rejected,
        "repeated": repeated,
        "clients": task.clients,
        "metric": progress.final,
        "metric_name": task.metric_name,
        "metric_goal": task.metric_goal,
        "target": progress.evaluation.target,
    }
    return LiveState(**values | more)


def read_live(folder: Path) -> LiveState | None:
    """The live state in a run directory; None if there is none, `DataError` if it is damaged."""
    with suppress(FileNotFoundError):
        return read_record(folder / LIVE_FILE, _LIVE_STATE, _MOST_BYTES, "delete it; a running run writes it again")
    return None


@final
class LiveFile:
    """Keeps live.json of a run directory. A file that cannot be written does not end a run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / LIVE_FILE
        self._last: LiveState | None = None

    def write(self, state: LiveState) -> None:
        self._last = state
        with suppress(OutputError):
            write_atomically(self._file, state.to_bytes(), lasting=False)

    def end(self, finished: bool) -> None:
        """Remove the file of a run that has `finished`, as its summary says more; else let it say "stopped"."""
        if finished:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
        elif self._last is not None:
            self.write(replace(self._last, status="stopped", at=time.time(), updates_per_s=0.0))


def shortened(histogram: Sequence[int]) -> list[int]:
    """A histogram with at most `MOST_STALENESS` + 1 entries, the last of which counts all above, too."""
    return [
        *histogram[:MOST_STALENESS],
        *([sum(histogram[MOST_STALENESS:])] if len(histogram) > MOST_STALENESS else []),
    ]


@final
class Rate:
    """Counts per second over the last seconds, from marks of a count that grows."""

    def __init__(self, over_s: float = 10.0) -> None:
        self._over_s = over_s
        self._marks: list[tuple[float, int]] = []

    def mark(self, now: float, count: int) -> float:
        """Note the count at a time in seconds; return how many a second there were."""
        marks = self._marks
        marks.append((now, count))
        while len(marks) > 2 and now - marks[0][0] > self._over_s:
            marks.pop(0)
        then, before = marks[0]
        return (count - before) / (now - then) if now > then else 0.0
