"""The figures of a run between two evaluations (its live state) and at its end (its summary), and their listeners.

A driver reports the live state about once a second. During a run, the file live.json of its directory holds it. A
deployed server also publishes it through its broker, with fields that its clients and other servers need.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from qafel.algorithm import Server
from qafel.config import Limits
from qafel.errors import DataError, DuplicateUpload, OutputError
from qafel.files import write_atomically
from qafel.params import Vector
from qafel.quantizers.kernels import are_compiled
from qafel.runs.progress import (
    Amount,
    Count,
    Number,
    Progress,
    Row,
    Status,
    Text,
    Traffic,
    fault_of,
    finite_or_none,
    histogram_mean,
    read_record,
)
from qafel.tasks.protocol import Goal, Task
from qafel.text import counted, human_bytes
from qafel.version import __version__

Summary: TypeAlias = dict[str, Any]
LIVE_FILE = "live.json"
_LIVE_BYTES, _SUMMARY_BYTES = 1 << 20, 16 << 20
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
    total_bytes: Count = 0
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


class Listener(Protocol):
    """Receives the rows of one run, then its summary."""

    def on_row(self, row: Row) -> None:
        """Receive an evaluation. An error that is raised here ends the run."""
        ...

    def on_end(self, summary: Summary | None) -> None:
        """Receive the summary, or None if an error ended the run.

        Every listener is called, even if another one raises an error here.
        """
        ...


@final
class FunctionListener:
    """A listener that calls a function with every row."""

    def __init__(self, function: Callable[[Row], None]) -> None:
        self._function = function

    def on_row(self, row: Row) -> None:
        self._function(row)

    def on_end(self, summary: Summary | None) -> None:
        """Do nothing."""


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
        return read_record(folder / LIVE_FILE, _LIVE_STATE, _LIVE_BYTES, "delete it; a running run writes it again")
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

    def __init__(self, over_s: float = 10.0, least_s: float = 0.0) -> None:
        """The rate is over the last `over_s` seconds. It is unknown before `least_s`."""
        self._over_s, self._least_s = over_s, least_s
        self._marks: deque[tuple[float, float]] = deque()

    def mark(self, now: float, count: float, unknown: float = 0.0) -> float:
        """Record the count at a time in seconds. Return the counts per second, or `unknown`.

        A smaller count or time starts again.
        """
        marks = self._marks
        if marks and (count < marks[-1][1] or now < marks[-1][0]):
            marks.clear()
        if not marks or now > marks[-1][0]:
            marks.append((now, count))
        while len(marks) > 2 and now - marks[0][0] > self._over_s:
            marks.popleft()
        then, before = marks[0]
        return (count - before) / (now - then) if now > then and now - then >= self._least_s else unknown


_TYPES = get_type_hints(Row, include_extras=True) | get_type_hints(LiveState, include_extras=True)
_KNOWN = (
    *("run_id", "metric_name", "metric_goal", "target", "rejected", "repeated"),
    *("staleness_max", "staleness_histogram", "virtual_time_unit"),
)
_PERHAPS = (
    *("total_bytes", "received_bytes_total", "received_by_all_bytes_total", "staleness_mean", "virtual_time"),
    *("wall_s", "updates_per_s"),
)
_SUMMARY_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("server_steps", "uploads", "upload_bytes_total", "broadcast_bytes_total"), (Count, ...)),
    **{name: (_TYPES[name], None) for name in _KNOWN},
    **{name: (_TYPES[name] | None, None) for name in _PERHAPS},
    **dict.fromkeys(("name", "task", "algorithm"), (Text, "")),
    "status": (Status, ...),
    "metric_final": (Number | None, ...),
    "metric_best": (Number | None, None),
}
_SUMMARY = TypeAdapter(create_model("SummaryRecord", __config__=ConfigDict(extra="allow"), **_SUMMARY_FIELDS))
"""The keys of a summary.json that its readers use. The file may have more."""


def read_summary(folder: Path) -> Summary:
    """Read the summary of a run directory. Raises `FileNotFoundError`, or `DataError` if it is damaged."""
    hint = "delete it to see the run as unfinished, or repeat the run"
    found: BaseModel = read_record(folder / "summary.json", _SUMMARY, _SUMMARY_BYTES, hint)
    return found.model_dump(exclude_unset=True)


def figures_so_far(task: Task, server: Server, traffic: Traffic, progress: Progress) -> dict[str, Any]:
    """Return the figures that a summary and a live state share."""
    rejected = dict(server.rejected)
    return {
        "clients": task.clients,
        "uploads": traffic.uploads,
        "total_bytes": traffic.total_bytes,
        "upload_bytes_total": traffic.upload_bytes,
        "broadcast_bytes_total": traffic.broadcast_bytes,
        "received_bytes_total": traffic.received_bytes,
        # A repeated upload is harmless: its client only missed the receipt.
        "repeated": rejected.pop(DuplicateUpload.reason, 0),
        "rejected": rejected,
        "metric_name": task.metric_name,
        "metric_goal": task.metric_goal,
        "target": progress.evaluation.target,
        "wall_s": progress.wall_s,
    }


def summarise(
    status: Status,
    task: Task,
    server: Server,
    traffic: Traffic,
    progress: Progress,
    virtual_time: float,
    **more: object,
) -> Summary:
    """Return the summary of a run.

    virtual_time   the clock's time; seconds in a deployment
    more           figures that only this driver has, such as the training time
    """
    algorithm, figures = server.algorithm, figures_so_far(task, server, traffic, progress)
    values = {
        "status": "diverged" if status == "finished" and progress.diverged else status,
        **environment(),
        "task": task.name,
        "algorithm": algorithm.name,
        "client_quantizer": algorithm.client_quantizer.spec,
        "server_quantizer": algorithm.server_quantizer.spec,
        "start_quantizers": {role: quantizer.spec for role, quantizer in algorithm.catch_up.quantizers.items()},
        "seed": server.seed,
        "dimension": int(server.model.size),
        "server_steps": server.version,
        **figures,
        "upload_bytes_mean": traffic.upload_bytes / max(1, traffic.uploads + traffic.rejected_uploads),
        "broadcast_bytes_mean": traffic.broadcast_bytes / max(1, traffic.broadcasts),
        "received_by_all_bytes_total": traffic.received_by_all_bytes,
        "staleness_mean": histogram_mean(traffic.staleness_counts),
        "staleness_max": max(0, len(traffic.staleness_counts) - 1),
        "staleness_histogram": traffic.staleness_counts,
        "metric_final": progress.final,
        "metric_best": progress.best,
        "uploads_to_target": progress.uploads_to_target,
        "virtual_time": virtual_time,
        "virtual_time_to_target": progress.virtual_time_to_target,
        "updates_per_s": traffic.uploads / max(1e-9, figures["wall_s"]),
        "evaluation_s": progress.evaluation_s,
        **more,
        "model_sha256": sha256(server.model),
        "hidden_state_sha256": sha256(server.hidden_state.vector),
    }
    return finite_or_none(values)


def environment() -> dict[str, Any]:
    """Return the versions and the machine of this process, PyTorch's version only if it is loaded."""
    versions = {"Python": platform.python_version(), "numpy": _version("numpy")}
    if are_compiled():
        versions["numba"] = _version("numba")
    if "torch" in sys.modules:
        versions["torch"] = _version("torch")
    hardware = {"cores": os.cpu_count() or 1, "processor": _processor()}
    return {"qafel_version": __version__, "versions": versions, "hardware": hardware}


_version = cache(importlib.metadata.version)


@cache
def _processor() -> str:
    """Return the processor's name if the system states it, else its architecture."""
    with suppress(OSError):  # Linux; `platform.processor` is empty there
        if named := re.search(
            r"^model name.*?: *(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE
        ):
            return named[1].strip()
    return platform.processor() or platform.machine()


def sha256(vector: Vector) -> str:
    """Return the SHA-256 of a vector's bytes, in hexadecimal."""
    return hashlib.sha256(vector.tobytes()).hexdigest()


def figures_of(summary: Summary) -> list[tuple[str, str]]:
    """Return the main figures of a simulated run for people: pairs of name and text."""
    final = summary["metric_final"]
    reached = summary["uploads_to_target"]
    parts = {word: summary[f"{word}_bytes_total"] for word in ("upload", "broadcast", "received")}
    words = (f"{human_bytes(count)} {'up' if word == 'upload' else word}" for word, count in parts.items())
    target = "not reached" if reached is None else f"reached after {counted(reached, 'upload')}"
    return [
        ("status", summary["status"]),
        (summary["metric_name"], "–" if final is None else f"{final:.6g}  (best {summary['metric_best']:.6g})"),
        ("server steps", f"{summary['server_steps']:,}"),
        ("uploads", f"{summary['uploads']:,}, {summary['upload_bytes_mean']:,.0f} bytes each"),
        ("total bytes", f"{human_bytes(sum(parts.values()))}: {', '.join(words)}"),
        ("staleness", f"mean {summary['staleness_mean']:.2f}, max {summary['staleness_max']}"),
        *([] if summary["target"] is None else [("target", target)]),
        (
            "time",
            f"{summary['wall_s']:.2f} s, {summary['updates_per_s']:,.0f} updates/s, "
            f"{100 * summary['overhead_share']:.0f} % of it neither training nor evaluation",
        ),
        ("model sha256", summary["model_sha256"]),
    ]
