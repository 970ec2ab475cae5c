"""The figures of a run in progress: traffic, evaluations, rows. Both drivers use them.

Time is virtual in the simulator and in seconds in a deployment. The annotated types declare what a file may hold:
`read_record` refuses a file that is damaged, too large or not a regular file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from pydantic import AfterValidator, Field, Strict, TypeAdapter, ValidationError

from qafel.algorithm import Server
from qafel.config import Evaluation
from qafel.errors import ConfigError, DataError
from qafel.files import read_regular
from qafel.params import Vector
from qafel.tasks.protocol import Goal
from qafel.text import cut, printable

LARGEST = 1e150
"""A larger metric counts as infinite: sums and products of larger numbers would overflow."""
_MAX_TEXT = 1000
_Record = TypeVar("_Record")


def bounded(value: float) -> float:
    """Return the number, or infinity if it is beyond `LARGEST`."""
    return value if not abs(value) > LARGEST else math.inf if value > 0 else -math.inf  # copysign overflows


Count: TypeAlias = Annotated[int, Strict(), Field(ge=0, lt=1 << 64)]
CountOrNone: TypeAlias = Annotated[int, Strict(), Field(ge=-1, lt=1 << 64)]
"""−1: not yet counted."""
Finite: TypeAlias = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Amount: TypeAlias = Annotated[float, Strict(), Field(ge=0, le=LARGEST, allow_inf_nan=False)]
"""Seconds, rates and shares."""
Number: TypeAlias = Annotated[float, Strict(), AfterValidator(bounded)]
"""A figure that a task measured. It may be infinite or NaN."""
Text: TypeAlias = Annotated[str, Strict(), AfterValidator(lambda text: cut(printable(text[:_MAX_TEXT]), _MAX_TEXT))]
"""Text that is safe to show on a page or a terminal."""
Status: TypeAlias = Literal["running", "finished", "diverged", "stalled", "stopped"]


def read_record(file: Path, record: TypeAdapter[_Record], most_bytes: int, hint: str) -> _Record:
    """Read a JSON file as the type that `record` declares.

    Raises `FileNotFoundError`, or a `DataError` that ends with `hint`: what to do about a damaged file.
    """
    data = read_regular(file, most_bytes)
    try:
        return record.validate_json(data)
    except ValidationError as error:
        raise DataError(f"{file} is damaged ({fault_of(error)}): {hint}") from None


def fault_of(error: ValidationError) -> str:
    """Describe the first fault: its place, what was expected, what was found."""
    first: Any = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    found = "" if first["type"] == "json_invalid" else f", found {first['input']!r}"
    message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return cut(printable(f"{where + ': ' if where else ''}{message}{found}"), 200)


@final
@dataclass(slots=True)
class Traffic:
    """Bytes and staleness, counted per message, never computed from a formula.

    The bytes of rejected uploads count too; `rejected_uploads` counts their number separately.
    """

    uploads: Count = 0
    rejected_uploads: Count = 0
    upload_bytes: Count = 0
    broadcasts: Count = 0
    broadcast_bytes: Count = 0
    received_bytes: Count = 0
    """Bytes that participating clients downloaded. Deployed clients report them with their uploads; a limit applies."""
    received_by_all_bytes: Count | None = None
    """Bytes received if every client took every broadcast. None: not counted, as in a deployment."""
    staleness_counts: list[Count] = field(default_factory=list)
    """The number of updates with staleness 0, 1, 2, …"""

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
        """Count a broadcast once, and once per recipient in `received_by_all_bytes`."""
        self.broadcasts += 1
        self.broadcast_bytes += len(message)
        if self.received_by_all_bytes is not None:
            self.received_by_all_bytes += len(message) * recipients

    def count_download(self, size: int) -> None:
        """Count the bytes of a client's download."""
        self.received_bytes += size

    def copy(self) -> Traffic:
        return replace(self, staleness_counts=self.staleness_counts.copy())

    @property
    def total_bytes(self) -> int:
        """Bytes uploaded, broadcast (each broadcast counted once) and received by participating clients."""
        return self.upload_bytes + self.broadcast_bytes + self.received_bytes


def histogram_mean(counts: list[int]) -> float:
    """Return the mean staleness of a histogram."""
    return sum(tau * count for tau, count in enumerate(counts)) / max(1, sum(counts))


def finite_or_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinity by None: JSON has neither."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation. Its staleness covers the updates since the previous row."""

    version: Count
    uploads: Count
    virtual_time: Amount
    total_bytes: Count
    """Uploaded, broadcast and received: the sum of the next three."""
    upload_bytes_total: Count
    broadcast_bytes_total: Count
    received_bytes_total: Count | None
    received_by_all_bytes_total: Count | None
    staleness_mean: Amount
    staleness_max: Count
    staleness_histogram: list[Count]
    hidden_state_lag: Number
    """‖x − x̂‖ / ‖x‖: the relative distance between the clients' model and the server's."""
    buffer_fill: Count
    metric: Number
    wall_s: Amount
    figures: dict[str, float]
    """Other figures that the task measured, such as the loss."""

    def to_json(self) -> dict[str, Any]:
        """Return a flat table without NaN and infinity."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "figures"}
        return finite_or_none({**values, **self.figures})


def meets(metric: float, target: float | None, goal: Goal) -> bool:
    """Return whether a metric reaches the target. NaN never does, and without a target nothing does."""
    if target is None:
        return False
    return metric <= target if goal == "min" else metric >= target


class EvaluationPoint(NamedTuple):
    """The model to evaluate, with the traffic up to that moment."""

    version: int
    virtual_time: float
    traffic: Traffic
    model: Vector
    hidden_state: Vector
    buffer_fill: int


@final
@dataclass(slots=True)
class Progress:
    """Decides when to evaluate, makes the rows, and holds the state that a resumed run needs."""

    evaluation: Evaluation
    goal: Goal
    final: Finite | None = None
    best: Finite | None = None
    uploads_to_target: Count | None = None
    virtual_time_to_target: Amount | None = None
    evaluation_s: Amount = 0.0
    wall_before_s: Amount = 0.0
    """Time that earlier processes spent on this run; `training_before_s` is their training time."""
    training_before_s: Amount = 0.0
    evaluated: CountOrNone = -1
    """Server steps or uploads at the last evaluation; −1 before the first."""
    evaluated_uploads: CountOrNone = -1
    evaluated_version: CountOrNone = -1
    seen_staleness: list[Count] = field(default_factory=list)
    began: float = field(default_factory=perf_counter)

    @property
    def wall_s(self) -> float:
        """The duration of the run over all processes that ran it."""
        return self.wall_before_s + perf_counter() - self.began

    @property
    def diverged(self) -> bool:
        """Whether the model, the metric or the loss of the last evaluation was not finite."""
        return self.final is None and self.evaluated_version >= 0

    @property
    def target_reached(self) -> bool:
        return self.uploads_to_target is not None

    def due(self, version: int, uploads: int) -> bool:
        """Return whether `evaluation.every` more steps or uploads have passed."""
        count = version if self.evaluation.unit == "server_steps" else uploads
        return count // self.evaluation.every > self.evaluated // self.evaluation.every

    def stale(self, version: int, uploads: int) -> bool:
        """Return whether an update or a step came since. A round that times out steps without an update."""
        return uploads > self.evaluated_uploads or version > self.evaluated_version

    def take(self, server: Server, traffic: Traffic, virtual_time: float) -> EvaluationPoint:
        """Return the point to evaluate now or soon. `due` counts from here on."""
        by_steps = self.evaluation.unit == "server_steps"
        self.evaluated = server.version if by_steps else traffic.uploads
        self.evaluated_uploads, self.evaluated_version = traffic.uploads, server.version
        hidden_state = server.hidden_state.vector
        return EvaluationPoint(
            server.version, virtual_time, traffic.copy(), server.model, hidden_state, server.accumulator.count
        )

    def row(self, point: EvaluationPoint, figures: Mapping[str, float]) -> Row:
        """Return the row of an evaluation from its point and the figures that the task measured."""
        others, traffic = dict(figures), point.traffic
        metric = others.pop("metric")
        if taken := others.keys() & set(Row.__slots__):
            raise ConfigError(f"the task's figure {min(taken)!r} has the name of a column: rename this metric")
        recent = [
            now - before for now, before in zip_longest(traffic.staleness_counts, self.seen_staleness, fillvalue=0)
        ]
        while recent and not recent[-1]:
            recent.pop()
        self.seen_staleness = traffic.staleness_counts
        is_sound = math.isfinite(others.get("loss", 0.0)) and bool(np.isfinite(point.model).all())
        self.see(metric if is_sound else math.nan, traffic.uploads, point.virtual_time)
        return Row(
            version=point.version,
            uploads=traffic.uploads,
            virtual_time=point.virtual_time,
            total_bytes=traffic.total_bytes,
            upload_bytes_total=traffic.upload_bytes,
            broadcast_bytes_total=traffic.broadcast_bytes,
            received_bytes_total=traffic.received_bytes,
            received_by_all_bytes_total=traffic.received_by_all_bytes,
            staleness_mean=histogram_mean(recent),
            staleness_max=max(0, len(recent) - 1),
            staleness_histogram=recent,
            hidden_state_lag=_relative_distance(point.model, point.hidden_state),
            buffer_fill=point.buffer_fill,
            metric=metric,
            wall_s=self.wall_s,
            figures=others,
        )

    def see(self, metric: float, uploads: int, virtual_time: float) -> None:
        """Record a metric: the last, the best, and the first that reaches the target."""
        self.final = metric if math.isfinite(metric) else None
        if self.final is None:
            return
        if self.best is None or meets(metric, self.best, self.goal):
            self.best = metric
        if self.uploads_to_target is None and meets(metric, self.evaluation.target, self.goal):
            self.uploads_to_target, self.virtual_time_to_target = uploads, virtual_time


def _relative_distance(model: Vector, hidden_state: Vector) -> float:
    """‖x − x̂‖ / ‖x‖, or ‖x − x̂‖ if x is zero."""
    with np.errstate(over="ignore", invalid="ignore"):  # the model may have diverged
        distance, norm = float(np.linalg.norm(model - hidden_state)), float(np.linalg.norm(model))
    return distance / norm if norm else distance
