"""Evaluates the model, decides when the run ends, and exports metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any, Final, final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from qafel.config import Config
from qafel.deployment.server.ledger import Ledger
from qafel.http import Answer, Request, listen, refusal, serving
from qafel.runs.directory import RunDirectory
from qafel.runs.live import Listener, Summary, summarise
from qafel.runs.progress import EvaluationPoint, Progress, Row, Status, finite_or_none
from qafel.runs.reading import RowReader
from qafel.tasks import Task
from qafel.tasks.protocol import evaluated

_STALENESS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # limits of the histogram's buckets

log = logging.getLogger(__name__)


@final
class _Staleness(Collector):
    """The run's staleness counts as a histogram, made when Prometheus asks: no upload waits for it."""

    def __init__(self, run: str, counts: Callable[[], Sequence[int]]) -> None:
        self._run, self._counts = run, counts

    def collect(self) -> Iterator[HistogramMetricFamily]:
        counts = self._counts()
        family = HistogramMetricFamily("qafel_staleness", "Versions between copy and upload", labels=["run"])
        buckets = [(f"{limit:.1f}", float(sum(counts[: limit + 1]))) for limit in _STALENESS]
        total = sum(staleness * count for staleness, count in enumerate(counts))
        family.add_metric([self._run], [*buckets, ("+Inf", float(sum(counts)))], float(total))
        yield family


@final
class ServerMetrics:
    """The server's metrics for Prometheus, in a separate registry."""

    def __init__(self, run: str, staleness_counts: Callable[[], Sequence[int]] = list) -> None:
        """`staleness_counts`: returns the number of updates with staleness 0, 1, 2, …"""
        self.registry = CollectorRegistry()
        self.registry.register(_Staleness(run, staleness_counts))

        def make(kind: type[Any], name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            names = ("run", *labels)
            metric = kind(name, text, namespace="qafel", registry=self.registry, labelnames=names, **options)
            return partial(metric.labels, run) if labels else metric.labels(run)

        self.accepted = make(Counter, "accepted_updates", "Updates taken into the buffer")
        self.rejected = make(Counter, "rejected_updates", "Updates refused", ("reason",))
        self.duplicates = make(Counter, "duplicate_updates", "Updates that were counted before")
        self.clipped = make(Counter, "clipped_updates", "Updates whose norm or weight was bounded")
        self.upload_bytes = make(Counter, "upload_bytes", "Bytes of accepted updates")
        self.broadcast_bytes = make(Counter, "broadcast_bytes", "Bytes of broadcasts, each counted once")
        self.received_bytes = make(Counter, "received_bytes", "Bytes that clients received, as they report")
        self.version = make(Gauge, "version", "Server steps done")
        self.buffer = make(Gauge, "buffer_updates", "Updates in the buffer")
        self.metric = make(Gauge, "metric", "The task's metric at the last evaluation")
        self.hidden_state_lag = make(Gauge, "hidden_state_lag", "‖x − x̂‖ / ‖x‖ at the last evaluation")
        self.active = make(Gauge, "active_clients", "Clients that take part")
        self.silent = make(Gauge, "silent_clients", "Clients that took part and fell silent")
        self.failures = make(Counter, "failed_trainings", "Failures of clients' training")
        self.failing = make(Gauge, "failing_clients", "Clients whose last training failed")
        self.failed_checkpoints = make(Counter, "failed_checkpoints", "Checkpoints that could not be written")
        self.sessions = make(Counter, "broker_sessions", "Connections to the broker")
        seconds = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)
        self.sync_s = make(Histogram, "journal_sync_seconds", "Time to sync the journal", buckets=seconds)
        sizes = (1, 2, 5, 10, 20, 50, 100, 200)
        self.group = make(Histogram, "group_updates", "Updates made durable by one sync", buckets=sizes)

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
    _metrics: ServerMetrics
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
        self._metrics.metric.set(row.metric)
        self._metrics.hidden_state_lag.set(row.hidden_state_lag)
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
