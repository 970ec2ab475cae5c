"""How a run goes on: what crossed, when the model is measured, what a row holds, when the run ends.

Both drivers use it. Time is the clock's in the simulator, and seconds in a deployment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np

from qafel.algorithm import Server
from qafel.config import Evaluation
from qafel.params import Vector
from qafel.runs.records import Amount, Count, CountOrNone, Finite, Number
from qafel.tasks.protocol import Goal

Status: TypeAlias = Literal["running", "finished", "diverged", "stalled", "stopped"]


@final
@dataclass(slots=True)
class Traffic:
    """What crossed: bytes and staleness, counted as messages go by, never computed from a formula.

    Rejected uploads crossed, too: their bytes count, their number is apart.
    """

    uploads: Count = 0
    rejected_uploads: Count = 0
    upload_bytes: Count = 0
    broadcasts: Count = 0
    broadcast_bytes: Count = 0
    received_bytes: Count = 0
    """What the clients that take part fetched; in a deployment, as they say with their uploads, and bounded."""
    received_by_all_bytes: Count | None = None
    """What all clients would receive together if each took every broadcast; None: not counted, as in a deployment."""
    staleness_counts: list[Count] = field(default_factory=list)
    """How many updates had staleness 0, 1, 2, …"""

    def count_upload(self, message: bytes, staleness: int) -> None:
        self.uploads += 1
        self.upload_bytes += len(message)
        if staleness >= len(self.staleness_counts):
            self.staleness_counts.extend([0] * (staleness + 1 - len(self.staleness_counts)))
        self.staleness_counts[staleness] += 1

    def count_rejected(self, message: bytes) -> None:
        self.rejected_uploads += 1
        self.upload_bytes += len(message)

    def count_broadcast(self, message: bytes, recipients: int = 0) -> None:
        """Count a broadcast: it is sent once, and each of all `recipients` could receive it."""
        self.broadcasts += 1
        self.broadcast_bytes += len(message)
        if self.received_by_all_bytes is not None:
            self.received_by_all_bytes += len(message) * recipients

    def count_download(self, size: int) -> None:
        """Count what a client fetched, in bytes."""
        self.received_bytes += size

    def copy(self) -> Traffic:
        """The counts of this moment."""
        return replace(self, staleness_counts=self.staleness_counts.copy())

    @property
    def total_bytes(self) -> int:
        """Bytes uploaded, plus bytes broadcast, each broadcast once."""
        return self.upload_bytes + self.broadcast_bytes


def histogram_mean(counts: list[int]) -> float:
    """The mean staleness that a histogram shows."""
    return sum(tau * count for tau, count in enumerate(counts)) / max(1, sum(counts))


def finite_or_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with None for NaN and infinity, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation. Staleness is that of the updates since the row before."""

    version: Count
    uploads: Count
    virtual_time: Amount
    upload_bytes_total: Count
    broadcast_bytes_total: Count
    received_bytes_total: Count | None
    received_by_all_bytes_total: Count | None
    staleness_mean: Amount
    staleness_max: Count
    staleness_histogram: list[Count]
    hidden_state_lag: Number
    """‖x − x̂‖ / ‖x‖: how far the clients' model is from the server's."""
    buffer_fill: Count
    metric: Number
    wall_s: Amount
    figures: dict[str, float]
    """What else the task measured, such as the loss."""

    def to_json(self) -> dict[str, Any]:
        """Flat, and without NaN or infinity."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "figures"}
        return finite_or_none({**values, **self.figures})


def meets(metric: float, target: float | None, goal: Goal) -> bool:
    """Whether a metric is at the target or better; never without a target, and a NaN never is."""
    if target is None:
        return False
    return metric <= target if goal == "min" else metric >= target


class Standing(NamedTuple):
    """A run at the moment for which its model is measured: the model, and what had crossed by then."""

    version: int
    virtual_time: float
    traffic: Traffic
    model: Vector
    hidden_state: Vector
    buffer_fill: int


@final
@dataclass(slots=True)
class Progress:
    """Says when to measure, makes the rows, and remembers what a resumed run must know of the time before."""

    evaluation: Evaluation
    goal: Goal
    final: Finite | None = None
    best: Finite | None = None
    uploads_to_target: Count | None = None
    virtual_time_to_target: Amount | None = None
    evaluation_s: Amount = 0.0
    wall_before_s: Amount = 0.0
    training_before_s: Amount = 0.0
    """These two are of the processes that ran this before."""
    evaluated: CountOrNone = -1
    """How many server steps or uploads there were at the last evaluation; −1 before the first."""
    evaluated_uploads: CountOrNone = -1
    evaluated_version: CountOrNone = -1
    seen_staleness: list[Count] = field(default_factory=list)
    began: float = field(default_factory=perf_counter)

    @property
    def wall_s(self) -> float:
        """How long the run has gone on, in all processes that ran it."""
        return self.wall_before_s + perf_counter() - self.began

    @property
    def diverged(self) -> bool:
        """Whether the last evaluation found a model, a metric or a loss that is no longer finite."""
        return self.final is None and self.evaluated_version >= 0

    @property
    def target_reached(self) -> bool:
        return self.uploads_to_target is not None

    def due(self, version: int, uploads: int) -> bool:
        """Whether another `every` steps or uploads have passed, at so many steps (`version`) and `uploads`."""
        count = version if self.evaluation.unit == "server_steps" else uploads
        return count // self.evaluation.every > self.evaluated // self.evaluation.every

    def stale(self, version: int, uploads: int) -> bool:
        """Whether any update came since the last evaluation, or a step without one, as when a round times out."""
        return uploads > self.evaluated_uploads or version > self.evaluated_version

    def take(self, server: Server, traffic: Traffic, virtual_time: float) -> Standing:
        """The run as it stands, to be measured now or soon; `due` counts from here on."""
        by_steps = self.evaluation.unit == "server_steps"
        self.evaluated = server.version if by_steps else traffic.uploads
        self.evaluated_uploads, self.evaluated_version = traffic.uploads, server.version
        hidden_state = server.hidden_state.vector
        return Standing(
            server.version, virtual_time, traffic.copy(), server.model, hidden_state, server.accumulator.count
        )

    def row(self, standing: Standing, figures: Mapping[str, float]) -> Row:
        """The row of an evaluation: what stood then, and the figures that the task measured."""
        others, traffic = dict(figures), standing.traffic
        metric = others.pop("metric")
        recent = [
            now - before for now, before in zip_longest(traffic.staleness_counts, self.seen_staleness, fillvalue=0)
        ]
        while recent and not recent[-1]:
            recent.pop()
        self.seen_staleness = traffic.staleness_counts
        is_sound = math.isfinite(others.get("loss", 0.0)) and bool(np.isfinite(standing.model).all())
        self.see(metric if is_sound else math.nan, traffic.uploads, standing.virtual_time)
        return Row(
            version=standing.version,
            uploads=traffic.uploads,
            virtual_time=standing.virtual_time,
            upload_bytes_total=traffic.upload_bytes,
            broadcast_bytes_total=traffic.broadcast_bytes,
            received_bytes_total=traffic.received_bytes,
            received_by_all_bytes_total=traffic.received_by_all_bytes,
            staleness_mean=histogram_mean(recent),
            staleness_max=max(0, len(recent) - 1),
            staleness_histogram=recent,
            hidden_state_lag=_relative_distance(standing.model, standing.hidden_state),
            buffer_fill=standing.buffer_fill,
            metric=metric,
            wall_s=self.wall_s,
            figures=others,
        )

    def see(self, metric: float, uploads: int, virtual_time: float) -> None:
        """Remember an evaluation's metric: the last, the best, and the first that reaches the target."""
        self.final = metric if math.isfinite(metric) else None
        if self.final is None:
            return
        if self.best is None or meets(metric, self.best, self.goal):
            self.best = metric
        if self.uploads_to_target is None and meets(metric, self.evaluation.target, self.goal):
            self.uploads_to_target, self.virtual_time_to_target = uploads, virtual_time


def _relative_distance(model: Vector, hidden_state: Vector) -> float:
    """‖x − x̂‖ / ‖x‖, or ‖x − x̂‖ if x is zero."""
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged
        distance, norm = float(np.linalg.norm(model - hidden_state)), float(np.linalg.norm(model))
    return distance / norm if norm else distance
