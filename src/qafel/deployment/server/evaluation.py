"""Evaluates the model, decides when the run ends, and exports metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any, Final, final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from qafel.config import Config
from qafel.deployment.server.ledger import Ledger
from qafel.http import Answer, Request, listen, refusal, serving
from qafel.runs.directory import RunDirectory
from qafel.runs.live import Listener, Summary, summarise
from qafel.runs.progress import EvaluationPoint, Progress, Row, Status, Traffic, finite_or_none
from qafel.runs.reading import RowReader
from qafel.tasks import Task
from qafel.tasks.protocol import evaluated

_STALENESS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # limits of the histogram's buckets
_FIGURES: Final[Sequence[tuple[type[Any], str, str, str]]] = (
    (CounterMetricFamily, "accepted_updates", "Updates taken into the buffer", "uploads"),
    (CounterMetricFamily, "duplicate_updates", "Updates that were counted before", "repeated"),
    (CounterMetricFamily, "upload_bytes", "Bytes of accepted updates", "upload_bytes_total"),
    (CounterMetricFamily, "broadcast_bytes", "Bytes of broadcasts, each counted once", "broadcast_bytes_total"),
    (CounterMetricFamily, "received_bytes", "Bytes that clients received, as they report", "received_bytes_total"),
    (CounterMetricFamily, "failed_checkpoints", "Checkpoints that could not be written", "failed_checkpoints"),
    (CounterMetricFamily, "clipped_updates", "Updates whose norm or weight was bounded", "clipped"),
    (CounterMetricFamily, "failed_trainings", "Failures of clients' training", "failed_trainings"),
    (CounterMetricFamily, "starts", "Linked starts sent", "starts"),
    (CounterMetricFamily, "refused_starts", "Start requests refused", "refused_starts"),
    (CounterMetricFamily, "broker_sessions", "Connections to the broker", "sessions"),
    (GaugeMetricFamily, "version", "Server steps done", "version"),
    (GaugeMetricFamily, "buffer_updates", "Updates in the buffer", "buffer_fill"),
    (GaugeMetricFamily, "metric", "The task's metric at the last evaluation", "metric"),
    (GaugeMetricFamily, "hidden_state_lag", "‖x − x̂‖ / ‖x‖ at the last evaluation", "hidden_state_lag"),
    (GaugeMetricFamily, "active_clients", "Clients that take part", "training_count"),
    (GaugeMetricFamily, "silent_clients", "Clients that took part and fell silent", "silent_count"),
    (GaugeMetricFamily, "failing_clients", "Clients whose last training failed", "failing_count"),
)
"""Kind, name, description and figure."""

log = logging.getLogger(__name__)


@final
class ServerMetrics(Collector):
    """The server's metrics for Prometheus, made when Prometheus asks: no upload waits for them."""

    def __init__(self, run: str, traffic: Traffic, figures: Callable[[], Mapping[str, Any]]) -> None:
        """`figures`: returns the fields of the run's state, and counts that the state does not have."""
        self._run, self._traffic, self._figures = run, traffic, figures
        self.registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, ["run"], buckets=buckets, registry=self.registry).labels(run)

        seconds = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)
        self.sync_s = histogram("qafel_journal_sync_seconds", "Time to sync the journal", seconds)
        sizes = (1, 2, 5, 10, 20, 50, 100, 200)
        self.group = histogram("qafel_group_updates", "Updates made durable by one sync", sizes)
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing: the figures are not known yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        figures, counts = self._figures(), self._traffic.staleness_counts
        for kind, name, text, figure in _FIGURES:
            family = kind(f"qafel_{name}", text, labels=["run"])
            if figures[figure] is not None:
                family.add_metric([self._run], figures[figure])
            yield family
        rejected = CounterMetricFamily("qafel_rejected_updates", "Updates refused", labels=["run", "reason"])
        for reason, count in figures["rejected"].items():
            rejected.add_metric([self._run, reason], count)
        yield rejected
        staleness = HistogramMetricFamily("qafel_staleness", "Versions between copy and upload", labels=["run"])
        buckets = [(f"{limit:.1f}", float(sum(counts[: limit + 1]))) for limit in _STALENESS]
        total = sum(staleness * count for staleness, count in enumerate(counts))
        staleness.add_metric([self._run], [*buckets, ("+Inf", float(sum(counts)))], float(total))
        yield staleness

    @asynccontextmanager
    async def serving(self, port: int | None, address: str) -> AsyncIterator[None]:
        """A context that serves the metrics at this address. Without a port, nothing is served."""
        if port is None:
            yield
            return

        async def answer(request: Request) -> Answer:
            if request.path != "/metrics":
                return refusal(HTTPStatus.NOT_FOUND, "Metrics are at /metrics.")
            return Answer(generate_latest(self.registry), CONTENT_TYPE_LATEST)

        async with serving(listen(address, port, "metrics", ("metrics_port", "metrics_address")), answer):
            yield


@final
@dataclass
class Evaluator:
    """Evaluates the newest model in a thread when that is due, and decides when the run ends.

    A slow evaluation skips models. It never delays the server.
    """

    _config: Config
    task: Task
    _ledger: Ledger
    _directory: RunDirectory
    listeners: Sequence[Listener] = ()
    """Called with every row."""
    status: Status = "running"
    hidden_state_lag: float | None = None
    """‖x − x̂‖ / ‖x‖ in the last row."""
    _measured: tuple[int, int] = (-1, -1)
    """Version and uploads of the last row. `progress` has those of the last model taken for evaluation."""
    _waiting: EvaluationPoint | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _measuring: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Resume from the rows that earlier processes wrote."""
        self.limits = self._config.stop
        self.progress = Progress(self._config.evaluation, self.task.metric_goal)
        self._uploads_before = self._ledger.traffic.uploads
        self._see_rows()
        self._take()  # the next evaluation is due after a whole interval

    def _see_rows(self) -> None:
        progress = self.progress
        for row in _rows(self._directory.path / "metrics.jsonl"):
            # Rows of uploads that the journal lost will be written again.
            if row["uploads"] <= self._uploads_before:
                metric = math.nan if row["metric"] is None else row["metric"]
                progress.see(metric, row["uploads"], row["virtual_time"])
                progress.wall_before_s = row["virtual_time"]
                self.hidden_state_lag = row.get("hidden_state_lag")
                recent = row.get("staleness_histogram") or []
                progress.seen_staleness = [a + b for a, b in zip_longest(progress.seen_staleness, recent, fillvalue=0)]
                self._measured = row["version"], row["uploads"]
        # The rows may count uploads that were lost and replaced.
        counts = self._ledger.traffic.staleness_counts
        progress.seen_staleness = [min(pair) for pair in zip(progress.seen_staleness, counts, strict=False)]

    @property
    def running(self) -> bool:
        return self.status == "running"

    def end(self, status: Status) -> None:
        """End the run. Only the first call counts."""
        if self.running:
            self.status = status

    def end_at_limit(self) -> None:
        """End the run if it has reached a limit, or its target."""
        at_target = self.limits.at_target and self.progress.target_reached
        traffic = self._ledger.traffic
        if at_target or self.limits.reached(self._ledger.server.version, traffic.uploads, traffic.total_bytes):
            self.end("finished")

    def after_message(self, diverged: str | None) -> None:
        """Start an evaluation if one is due, and end the run if a limit is reached.

        `diverged`: how the last upload made the model diverge, if it did.
        """
        if self.progress.due(self._ledger.server.version, self._ledger.traffic.uploads):
            self._waiting = self._take()
            self._wake.set()
        if diverged is not None:
            log.error("%s", diverged)
            self.end("diverged")
        self.end_at_limit()

    async def run(self) -> None:
        """Evaluate models when they are due, forever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            async with self._measuring:
                if self._waiting is not None:
                    point, self._waiting = self._waiting, None
                    await self._measure(point)

    async def measure_last(self) -> None:
        """Evaluate the current model, unless the last row has it. A metric that is not finite means divergence."""
        self._waiting = None
        async with self._measuring:
            if self._measured != (self._ledger.server.version, self._ledger.traffic.uploads):
                await self._measure(self._take())
        if self.status == "finished" and self.progress.diverged:
            self.status = "diverged"

    def summary(self) -> Summary:
        """Summarize the run so far. The rate is that of this process, because earlier durations are unknown."""
        progress, traffic, server = self.progress, self._ledger.traffic, self._ledger.server
        wall_s = progress.wall_s
        rate = (traffic.uploads - self._uploads_before) / max(1e-9, wall_s - progress.wall_before_s)
        found = summarise(
            self.status, self.task, server, traffic, progress, wall_s, virtual_time_unit="s", updates_per_s=rate
        )
        return {"name": self._config.name, "run_id": self._ledger.run_id, **found}

    def _take(self) -> EvaluationPoint:
        return self.progress.take(self._ledger.server, self._ledger.traffic, self.progress.wall_s)

    async def _measure(self, point: EvaluationPoint) -> None:
        row = await asyncio.to_thread(self._row, point)
        self._directory.on_row(row)
        self._directory.flush()
        for listener in self.listeners:
            listener.on_row(row)
        self.hidden_state_lag = row.hidden_state_lag if math.isfinite(row.hidden_state_lag) else None
        self._measured = row.version, row.uploads

    def _row(self, point: EvaluationPoint) -> Row:
        began = perf_counter()
        figures = evaluated(self.task, point.model)
        self.progress.evaluation_s += perf_counter() - began
        return self.progress.row(point, figures)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """All valid rows. The report mentions damaged ones; the server ignores them."""
    for row in RowReader(file).more():
        if "metric" in row and not any(row.get(key) is None for key in ("version", "uploads", "virtual_time")):
            yield finite_or_none(row)
