"""What the world sees of a server: Prometheus metrics, evaluations, rates."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from qafel.config import EvaluationConfig
from qafel.deployment.truth import Totals
from qafel.errors import OutputError
from qafel.params import Vector
from qafel.tasks import Task

_PREFIX: Final = "qafel"


@final
class Metrics:
    """For Prometheus, in a registry of its own."""

    def __init__(self, run: str) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": _PREFIX, "registry": self.registry, "labelnames": ("run",)}
        self.accepted = Counter("accepted_updates", "Updates taken into the buffer", **options).labels(run)
        self._rejected = Counter(
            "rejected_updates",
            "Updates refused",
            namespace=_PREFIX,
            registry=self.registry,
            labelnames=("run", "reason"),
        )
        self.duplicates = Counter("duplicate_updates", "Updates that were counted before", **options).labels(run)
        self.upload_bytes = Counter("upload_bytes", "Bytes of accepted updates", **options).labels(run)
        self.broadcast_bytes = Counter("broadcast_bytes", "Bytes of broadcasts, each once", **options).labels(run)
        self.version = Gauge("version", "Server steps done", **options).labels(run)
        self.buffer = Gauge("buffer_updates", "Updates in the buffer", **options).labels(run)
        self.metric = Gauge("metric", "The task's metric at the last evaluation", **options).labels(run)
        self.sessions = Counter("broker_sessions", "Connections to the broker", **options).labels(run)
        buckets = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
        self.staleness = Histogram("staleness", "Versions between copy and upload", buckets=buckets, **options).labels(
            run
        )
        seconds = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)
        self.sync_s = Histogram("journal_sync_seconds", "Syncing the journal", buckets=seconds, **options).labels(run)
        self.group = Histogram(
            "group_updates", "Updates made safe by one sync", buckets=(1, 2, 5, 10, 20, 50, 100, 200), **options
        ).labels(run)
        self._run = run

    def rejected(self, reason: str) -> None:
        self._rejected.labels(self._run, reason).inc()

    def serve(self, address: str, port: int) -> None:
        start_http_server(port, addr=address, registry=self.registry)


@final
class Rate:
    """Events a second over the last ten seconds, beginning with a total that others counted."""

    def __init__(self, total: int) -> None:
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), total)], maxlen=64)

    def mark(self, total: int) -> float:
        now = time.monotonic()
        self._marks.append((now, total))
        while len(self._marks) > 2 and now - self._marks[0][0] > 10:
            self._marks.popleft()
        (then, before) = self._marks[0]
        return (total - before) / (now - then) if now > then else 0.0


@final
class Evaluator:
    """Measures the newest model in a thread, every so many steps; a slow evaluation skips models, never the server."""

    def __init__(
        self, task: Task, evaluation: EvaluationConfig, rows: TextIO, metrics: Metrics, uploads_before: int
    ) -> None:
        self.uploads_before = uploads_before
        """Those that the run had when this process began: they are not of the time since `began`."""
        self._metrics = metrics
        self._task = task
        self._target = evaluation.target
        self._rows = rows
        self._offered: tuple[int, Vector, dict[str, Any]] | None = None
        self._wake = asyncio.Event()
        self.began = time.monotonic()
        self.last: dict[str, Any] | None = None
        self.best: float | None = None
        self.reached: dict[str, Any] | None = None

    def offer(self, version: int, model: Vector, totals: Totals) -> None:
        self._offered = (version, model, self._so_far(totals))
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._offered is not None:
                (version, model, so_far), self._offered = self._offered, None
                await self.evaluate(version, model, so_far)

    async def evaluate(self, version: int, model: Vector, so_far: Mapping[str, Any]) -> None:
        figures = await asyncio.to_thread(self._task.evaluate, model)
        row = {"version": version, **so_far, **figures, "wall_s": time.monotonic() - self.began}
        try:
            self._rows.write(json.dumps(row) + "\n")
            self._rows.flush()
        except OSError as error:
            raise OutputError(f"cannot write the evaluation of version {version}: {error.strerror or error}") from None
        self.last = row
        self._metrics.metric.set(figures["metric"])
        metric, better = figures["metric"], (min if self._task.metric_goal == "min" else max)
        self.best = metric if self.best is None else better(self.best, metric)
        if self._target is not None and self.reached is None and better(metric, self._target) == metric:
            self.reached = row

    async def last_model(self, version: int, model: Vector, totals: Totals) -> None:
        if self.last is None or self.last["version"] != version:
            await self.evaluate(version, model, self._so_far(totals))

    def _so_far(self, totals: Totals) -> dict[str, Any]:
        return {
            "uploads": totals.uploads,
            "virtual_time": time.monotonic() - self.began,
            "upload_bytes_total": totals.upload_bytes,
            "broadcast_bytes_total": totals.broadcast_bytes,
            "received_bytes_total": totals.broadcast_bytes,
            "staleness_mean": totals.staleness_sum / max(1, totals.uploads),
            "staleness_max": totals.staleness_max,
        }


def open_rows(folder: Path) -> TextIO:
    """The metrics file of a run, to go on behind what a killed server wrote."""
    return (folder / "metrics.jsonl").open("a", encoding="utf-8")
