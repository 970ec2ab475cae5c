"""What a deployed run leaves behind: the directory of a simulated one, so that reports compare both."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any, TypeAlias

import safetensors.numpy

from qafel.config import Config
from qafel.deployment.observe import Evaluator
from qafel.deployment.truth import Truth
from qafel.params import Layout, Vector
from qafel.results.run_directory import write_atomically
from qafel.tasks import Task
from qafel.version import __version__

Summary: TypeAlias = dict[str, Any]


def write_results(out: Path, state: str, config: Config, task: Task, truth: Truth, evaluator: Evaluator) -> Summary:
    """Model and summary; configuration and metrics are there already."""
    summary = {"name": config.name, "status": state, **_what_it_was(config, task), **_what_it_did(truth, evaluator)}
    write_atomically(out / "model.safetensors", model_file(truth.server.model, task.layout))
    write_atomically(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def model_file(model: Vector, layout: Layout) -> bytes:
    return bytes(safetensors.numpy.save({name: tensor.copy() for name, tensor in layout.split(model).items()}))


def _what_it_was(config: Config, task: Task) -> Summary:
    return {
        "qafel_version": __version__,
        "task": task.name,
        "algorithm": config.algorithm.preset,
        "client_quantizer": config.algorithm.client_quantizer,
        "server_quantizer": config.algorithm.server_quantizer,
        "seed": config.seed,
        "dimension": task.layout.size,
        "clients": task.clients,
        "metric_name": task.metric_name,
        "metric_goal": task.metric_goal,
        "target": config.evaluation.target,
    }


def _what_it_did(truth: Truth, evaluator: Evaluator) -> Summary:
    totals, server, last, reached = truth.totals, truth.server, evaluator.last, evaluator.reached
    wall_s = max(1e-9, time.monotonic() - evaluator.began)
    return {
        "server_steps": server.version,
        "uploads": totals.uploads,
        "upload_bytes_mean": totals.upload_bytes / max(1, totals.uploads),
        "upload_bytes_total": totals.upload_bytes,
        "broadcast_bytes_mean": totals.broadcast_bytes / max(1, totals.broadcasts),
        "broadcast_bytes_total": totals.broadcast_bytes,
        "received_bytes_total": None,  # a server does not see what its clients receive
        "rejected": dict(server.rejected),
        "staleness_mean": totals.staleness_sum / max(1, totals.uploads),
        "staleness_max": totals.staleness_max,
        "staleness_histogram": evaluator.staleness_histogram,
        "metric_final": last["metric"] if last else None,
        "metric_best": evaluator.best,
        "uploads_to_target": reached["uploads"] if reached else None,
        "virtual_time": evaluator.elapsed_s,
        "virtual_time_unit": "s",
        "virtual_time_to_target": reached["virtual_time"] if reached else None,
        "wall_s": wall_s,
        "updates_per_s": (totals.uploads - evaluator.uploads_before) / wall_s,
        "model_sha256": _sha256(server.model),
        "hidden_state_sha256": _sha256(server.hidden_state.vector),
    }


def _sha256(vector: Vector) -> str:
    return hashlib.sha256(vector.tobytes()).hexdigest()
