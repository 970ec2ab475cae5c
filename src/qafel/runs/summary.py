"""The summary of a run, and the listeners that receive its rows and its summary."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

from pydantic import BaseModel, ConfigDict, TypeAdapter

from qafel.algorithm import Server
from qafel.errors import DuplicateUpload
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
    finite_or_none,
    histogram_mean,
    read_record,
)
from qafel.tasks.protocol import Goal, Task
from qafel.text import counted, human_bytes
from qafel.version import __version__

Summary: TypeAlias = dict[str, Any]
_MOST_BYTES = 16 << 20


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


class SummaryRecord(BaseModel):
    """The keys of a summary.json that its readers use. The file may have more."""

    model_config = ConfigDict(extra="allow")

    status: Status
    metric_final: Number | None
    server_steps: Count
    uploads: Count
    upload_bytes_total: Count
    broadcast_bytes_total: Count
    name: Text = ""
    task: Text = ""
    algorithm: Text = ""
    run_id: Text = ""
    metric_name: Text = ""
    metric_goal: Goal = "min"
    metric_best: Number | None = None
    target: Number | None = None
    received_bytes_total: Count | None = None
    received_by_all_bytes_total: Count | None = None
    rejected: dict[Text, Count] = {}
    repeated: Count = 0
    staleness_mean: Amount | None = None
    staleness_max: Count = 0
    staleness_histogram: list[Count] = []
    virtual_time: Amount | None = None
    virtual_time_unit: Text = ""
    wall_s: Amount | None = None
    updates_per_s: Amount | None = None


_SUMMARY = TypeAdapter(SummaryRecord)


def read_summary(folder: Path) -> Summary:
    """Read the summary of a run directory. Raises `FileNotFoundError`, or `DataError` if it is damaged."""
    hint = "delete it to see the run as unfinished, or repeat the run"
    return read_record(folder / "summary.json", _SUMMARY, _MOST_BYTES, hint).model_dump(exclude_unset=True)


def figures_so_far(task: Task, server: Server, traffic: Traffic, progress: Progress) -> dict[str, Any]:
    """Return the figures that a summary and a live state share."""
    rejected = dict(server.rejected)
    return {
        "clients": task.clients,
        "uploads": traffic.uploads,
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
        "snapshot_quantizer": "none" if (copies := algorithm.catch_up.quantizer) is None else copies.spec,
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


@cache
def _version(package: str) -> str:
    return importlib.metadata.version(package)


@cache
def _processor() -> str:
    """Return the processor's name if the system states it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def sha256(vector: Vector) -> str:
    """Return the SHA-256 of a vector's bytes, in hexadecimal."""
    return hashlib.sha256(vector.tobytes()).hexdigest()


def figures_of(summary: Summary) -> list[tuple[str, str]]:
    """Return the main figures of a simulated run for people: pairs of name and text."""
    final = summary["metric_final"]
    reached = summary["uploads_to_target"]
    target = "not reached" if reached is None else f"reached after {counted(reached, 'upload')}"
    return [
        ("status", summary["status"]),
        (summary["metric_name"], "–" if final is None else f"{final:.6g}  (best {summary['metric_best']:.6g})"),
        ("server steps", f"{summary['server_steps']:,}"),
        ("uploads", f"{summary['uploads']:,}, {summary['upload_bytes_mean']:,.0f} bytes each"),
        ("sent up", human_bytes(summary["upload_bytes_total"])),
        ("broadcast", human_bytes(summary["broadcast_bytes_total"])),
        ("received", f"{human_bytes(summary['received_bytes_total'])} by the clients that took part"),
        ("staleness", f"mean {summary['staleness_mean']:.2f}, max {summary['staleness_max']}"),
        *([] if summary["target"] is None else [("target", target)]),
        (
            "time",
            f"{summary['wall_s']:.2f} s, {summary['updates_per_s']:,.0f} updates/s, "
            f"{100 * summary['overhead_share']:.0f} % of it neither training nor evaluation",
        ),
        ("model sha256", summary["model_sha256"]),
    ]
