"""From a configuration to a run directory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import qafel
from qafel.config import Config
from qafel.errors import NonFiniteVector
from qafel.params import Vector
from qafel.results.run_directory import RunDirectory
from qafel.simulator.durations import HalfNormal
from qafel.simulator.simulation import Row, Simulation
from qafel.tasks import Task, make_task

Progress: TypeAlias = Callable[[Row], None]
Summary: TypeAlias = dict[str, Any]


def run(config: Config, out: Path, progress: Progress | None = None) -> Summary:
    """Simulate what the configuration says; write the run directory; return its summary.

    A run whose model becomes non-finite ends there, with what it has, and says "diverged" as its status.
    """
    task = make_task(config.task.name, config.task.clients)
    algorithm = config.algorithm.wire(task.layout)
    simulation = Simulation(
        task,
        algorithm,
        HalfNormal(config.seed, config.timing.scale),
        config.seed,
        evaluate_every=config.evaluation.every,
        weigh_by_samples=config.algorithm.client_weights == "samples",
    )
    outcome = Outcome(task, config.evaluation.target)
    status = "finished"
    with RunDirectory(out) as directory:
        directory.write_config(config.to_toml())
        began = perf_counter()
        try:
            for row in simulation.rows(config.stop.server_steps):
                directory.append_row(asdict(row))
                outcome.see(row)
                if progress is not None:
                    progress(row)
        except NonFiniteVector:
            status = "diverged"
        wall_s = perf_counter() - began
        summary = _summarise(config, simulation, outcome, status, wall_s)
        directory.write_model(simulation.server.model, task.layout)
        directory.write_summary(summary)
    return summary


class Outcome:
    """The metric's final and best value, and when it first met the target."""

    def __init__(self, task: Task, target: float | None) -> None:
        self._better: Callable[[float, float], bool] = (
            (lambda new, old: new < old) if task.metric_goal == "min" else (lambda new, old: new > old)
        )
        self.target = target
        self.final: float | None = None
        self.best: float | None = None
        self.reached: Row | None = None

    def see(self, row: Row) -> None:
        self.final = row.metric
        if not math.isfinite(row.metric):
            return
        if self.best is None or self._better(row.metric, self.best):
            self.best = row.metric
        if self.reached is None and self.target is not None and not self._better(self.target, row.metric):
            self.reached = row


def _summarise(config: Config, simulation: Simulation, outcome: Outcome, status: str, wall_s: float) -> Summary:
    traffic, server, task, reached = simulation.traffic, simulation.server, simulation.task, outcome.reached
    return {
        "name": config.name,
        "status": status,
        "qafel_version": qafel.__version__,
        "task": task.name,
        "algorithm": config.algorithm.preset,
        "client_quantizer": config.algorithm.client_quantizer,
        "server_quantizer": config.algorithm.server_quantizer,
        "seed": config.seed,
        "dimension": int(server.model.size),
        "clients": task.clients,
        "server_steps": server.version,
        "uploads": traffic.uploads,
        "upload_bytes_mean": traffic.upload_bytes / max(1, traffic.uploads),
        "upload_bytes_total": traffic.upload_bytes,
        "broadcast_bytes_mean": traffic.broadcast_bytes / max(1, traffic.broadcasts),
        "broadcast_bytes_total": traffic.broadcast_bytes,
        "received_bytes_total": traffic.received_bytes,
        "rejected": dict(server.rejected),
        "staleness_mean": traffic.staleness_mean,
        "staleness_max": traffic.staleness_max,
        "staleness_histogram": traffic.staleness_counts,
        "metric_name": task.metric_name,
        "metric_goal": task.metric_goal,
        "metric_final": outcome.final,
        "metric_best": outcome.best,
        "target": outcome.target,
        "uploads_to_target": reached.uploads if reached else None,
        "virtual_time": simulation.clock.now,
        "virtual_time_to_target": reached.virtual_time if reached else None,
        "wall_s": wall_s,
        "updates_per_s": traffic.uploads / wall_s,
        "training_s": simulation.training_s,
        "evaluation_s": simulation.evaluation_s,
        "overhead_share": 1 - (simulation.training_s + simulation.evaluation_s) / wall_s,
        "model_sha256": _sha256(server.model),
        "hidden_state_sha256": _sha256(server.hidden_state.vector),
    }


def _sha256(vector: Vector) -> str:
    return hashlib.sha256(vector.tobytes()).hexdigest()
