"""Runs that are watched, made up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from qafel.runs.live import LiveState
from qafel.runs.reading import Run
from qafel.watch.sources import Watched


def live_state(**changes: Any) -> LiveState:
    values: dict[str, Any] = {
        "status": "running",
        "at": time.time(),
        "version": 40,
        "uploads": 400,
        "upload_bytes_total": 40_000,
        "broadcast_bytes_total": 4_000,
        "received_bytes_total": 20_000,
        "total_bytes": 64_000,
        "wall_s": 20.0,
        "updates_per_s": 20.0,
        "share_done": 0.4,
        "buffer_fill": 3,
        "buffer_size": 10,
        "staleness_histogram": [300, 80, 20],
        "rejected": {"stale": 2, "bad-signature": 1},
        "repeated": 5,
        "clients": 10,
        "training": {"1": 0, "2": 4},
        "training_count": 8,
        "silent": {"7": 90.0},
        "silent_count": 1,
        "metric_name": "accuracy",
        "metric_goal": "max",
        "target": 0.85,
        "hidden_state_lag": 0.0123,
    }
    return LiveState(**values | changes)


def watched(
    name: str = "mine", live: LiveState | None = None, heard_s: float = 0.5, summary: dict[str, Any] | None = None
) -> Watched:
    """A run with forty rows, whose accuracy grows with the logarithm of its uploads; finished if it has a summary."""
    uploads = np.arange(10.0, 410.0, 10.0)
    history = {
        "metric": 0.1 * np.log(uploads),
        "uploads": uploads,
        "hidden_state_lag": np.full(40, 0.01),
        "upload_bytes_total": 100 * uploads,
        "broadcast_bytes_total": 10 * uploads,
        "received_bytes_total": 50 * uploads,
    }
    so_far = {"metric_name": "accuracy", "metric_goal": "max", "target": 0.85, "uploads": 400, "server_steps": 40}
    so_far |= {"staleness_histogram": [300, 80, 20], "upload_bytes_total": 40_000, "broadcast_bytes_total": 4_000}
    so_far |= {"received_bytes_total": 20_000}
    run = Run(Path(name), name, {"task": {"name": "own"}}, so_far | (summary or {}), history, summary is not None)
    return Watched(name, run, live, heard_s, "" if live is None else live.problem)
