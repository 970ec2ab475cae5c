"""Evaluations: when one is due, what a row holds, and what came of it all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import zip_longest
from time import perf_counter
from typing import Any, Literal, final

import numpy as np

from qafel.algorithm import Server
from qafel.errors import ConfigError
from qafel.simulator.simulation import Simulation
from qafel.simulator.traffic import histogram_mean
from qafel.tasks.protocol import Goal


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation. Staleness is that of the updates since the row before."""

    version: int
    uploads: int
    virtual_time: float
    upload_bytes_total: int
    broadcast_bytes_total: int
    received_bytes_total: int
    staleness_mean: float
    staleness_max: int
    staleness_histogram: list[int]
    hidden_state_lag: float
    buffer_fill: int
    metric: float
    wall_s: float
    figures: dict[str, float]
    """What else the task measured, such as the loss."""

    def to_json(self) -> dict[str, Any]:
        """Flat, and without NaN or infinity, which JSON does not have."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "figures"}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in {**values, **self.figures}.items()
        }


@final
@dataclass(frozen=True, slots=True)
class Evaluation:
    """How often to measure, and the value that counts as reached."""

    every: int = 1
    unit: Literal["server_steps", "uploads"] = "server_steps"
    target: float | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"evaluations come every 1 or more {self.unit}, got {self.every}")


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends: at whichever comes first."""

    server_steps: int | None = None
    uploads: int | None = None
    virtual_time: float | None = None
    traffic_bytes: int | None = None
    at_target: bool = False

    def __post_init__(self) -> None:
        if all(limit is None for limit in (self.server_steps, self.uploads, self.virtual_time, self.traffic_bytes)):
            raise ConfigError("a run needs an end: server_steps, uploads, virtual_time or traffic_bytes")

    def reached(self, simulation: Simulation) -> bool:
        traffic = simulation.traffic
        return (
            (self.server_steps is not None and simulation.server.version >= self.server_steps)
            or (self.uploads is not None and traffic.uploads >= self.uploads)
            or (self.virtual_time is not None and simulation.clock.now >= self.virtual_time)
            or (self.traffic_bytes is not None and traffic.total_bytes >= self.traffic_bytes)
        )


@final
@dataclass(slots=True)
class Measurements:
    """Measures a simulation as it goes on; its fields are what a resumed run must know of the time before."""

    evaluation: Evaluation
    goal: Goal
    final: float | None = None
    best: float | None = None
    uploads_to_target: int | None = None
    virtual_time_to_target: float | None = None
    evaluation_s: float = 0.0
    wall_before_s: float = 0.0
    training_before_s: float = 0.0
    """These two are of the processes that ran this before."""
    evaluated: int = -1
    """How many server steps or uploads there were at the last evaluation."""
    evaluated_uploads: int = -1
    evaluated_version: int = -1
    seen_staleness: list[int] = field(default_factory=list)
    began: float = field(default_factory=perf_counter)

    @property
    def wall_s(self) -> float:
        return self.wall_before_s + perf_counter() - self.began

    def due(self, simulation: Simulation) -> bool:
        """Whether another `every` steps or uploads have passed."""
        return self._count(simulation) // self.evaluation.every > self.evaluated // self.evaluation.every

    def stale(self, simulation: Simulation) -> bool:
        """Whether any update came since the last evaluation, or a step without one, as when a round times out."""
        return simulation.traffic.uploads > self.evaluated_uploads or simulation.server.version > self.evaluated_version

    def _count(self, simulation: Simulation) -> int:
        return simulation.server.version if self.evaluation.unit == "server_steps" else simulation.traffic.uploads

    def measure(self, simulation: Simulation) -> Row:
        """Evaluate the server model now."""
        began = perf_counter()
        figures = dict(simulation.executor.evaluate(simulation.task, simulation.server.model))
        self.evaluation_s += perf_counter() - began
        traffic, server, metric = simulation.traffic, simulation.server, figures.pop("metric")
        self.evaluated = self._count(simulation)
        self.evaluated_uploads, self.evaluated_version = traffic.uploads, server.version
        counts = traffic.staleness_counts
        recent = [now - before for now, before in zip_longest(counts, self.seen_staleness, fillvalue=0)]
        self.seen_staleness = counts.copy()
        while recent and not recent[-1]:
            recent.pop()
        self._see(metric, traffic.uploads, simulation.clock.now)
        return Row(
            version=server.version,
            uploads=traffic.uploads,
            virtual_time=simulation.clock.now,
            upload_bytes_total=traffic.upload_bytes,
            broadcast_bytes_total=traffic.broadcast_bytes,
            received_bytes_total=traffic.received_bytes,
            staleness_mean=histogram_mean(recent),
            staleness_max=max(0, len(recent) - 1),
            staleness_histogram=recent,
            hidden_state_lag=_relative_distance(server),
            buffer_fill=server.buffer.count,
            metric=metric,
            wall_s=self.wall_s,
            figures=figures,
        )

    def _see(self, metric: float, uploads: int, virtual_time: float) -> None:
        self.final = metric if math.isfinite(metric) else None
        if self.final is None:
            return
        sign = 1 if self.goal == "max" else -1
        if self.best is None or sign * metric > sign * self.best:
            self.best = metric
        target = self.evaluation.target
        if self.uploads_to_target is None and target is not None and sign * metric >= sign * target:
            self.uploads_to_target, self.virtual_time_to_target = uploads, virtual_time


def _relative_distance(server: Server) -> float:
    """‖x − x̂‖ / ‖x‖, zero where both are."""
    distance = float(np.linalg.norm(server.model - server.hidden_state.vector))
    return distance / norm if (norm := float(np.linalg.norm(server.model))) else distance
