"""A run in a page of JSON."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from qafel.params import Vector
from qafel.simulator.measure import Measurements
from qafel.simulator.simulation import Simulation
from qafel.simulator.traffic import histogram_mean
from qafel.version import __version__

Summary: TypeAlias = dict[str, Any]


def summarise(simulation: Simulation, measurements: Measurements, status: str) -> Summary:
    """What a run did, what it cost, and hashes of what came of it."""
    traffic, server, task, algorithm = simulation.traffic, simulation.server, simulation.task, simulation.algorithm
    wall_s, training_s = measurements.wall_s, measurements.training_before_s + simulation.executor.training_s
    worked_s = training_s / simulation.executor.workers + measurements.evaluation_s
    return {
        "status": status,
        **environment(),
        "task": task.name,
        "algorithm": algorithm.name,
        "client_quantizer": algorithm.client_quantizer.spec,
        "server_quantizer": algorithm.server_quantizer.spec,
        "seed": simulation.seed,
        "dimension": int(server.model.size),
        "clients": task.clients,
        "server_steps": server.version,
        "uploads": traffic.uploads,
        "upload_bytes_mean": traffic.upload_bytes / max(1, traffic.uploads + traffic.rejected_uploads),
        "upload_bytes_total": traffic.upload_bytes,
        "broadcast_bytes_mean": traffic.broadcast_bytes / max(1, traffic.broadcasts),
        "broadcast_bytes_total": traffic.broadcast_bytes,
        "received_bytes_total": traffic.received_bytes,
        "rejected": dict(server.rejected),
        "turned_away": simulation.turned_away,
        "staleness_mean": histogram_mean(traffic.staleness_counts),
        "staleness_max": max(0, len(traffic.staleness_counts) - 1),
        "staleness_histogram": traffic.staleness_counts,
        "metric_name": task.metric_name,
        "metric_goal": task.metric_goal,
        "metric_final": measurements.final,
        "metric_best": measurements.best,
        "target": measurements.evaluation.target,
        "uploads_to_target": measurements.uploads_to_target,
        "virtual_time": simulation.clock.now,
        "virtual_time_to_target": measurements.virtual_time_to_target,
        "wall_s": wall_s,
        "updates_per_s": traffic.uploads / wall_s,
        "training_s": training_s,
        "evaluation_s": measurements.evaluation_s,
        "overhead_share": max(0.0, 1 - worked_s / wall_s),
        "model_sha256": sha256(server.model),
        "hidden_state_sha256": sha256(server.hidden_state.vector),
    }


def environment() -> dict[str, Any]:
    """The versions and the machine of this process; PyTorch's where it is loaded."""
    versions = {"Python": platform.python_version(), "numpy": _version("numpy"), "numba": _version("numba")}
    if "torch" in sys.modules:
        versions["torch"] = _version("torch")
    hardware = {"cores": os.cpu_count() or 1, "processor": _processor()}
    return {"qafel_version": __version__, "versions": versions, "hardware": hardware}


@cache
def _version(package: str) -> str:
    return importlib.metadata.version(package)


@cache
def _processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def sha256(vector: Vector) -> str:
    return hashlib.sha256(vector.tobytes()).hexdigest()
