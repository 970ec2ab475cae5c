"""What the world sees of a server: Prometheus metrics, evaluations, rates."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias, final

import numpy as np
import safetensors.numpy
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from qafel.config import Config, EvaluationConfig
from qafel.deployment.server.ledger import Ledger, Traffic
from qafel.errors import OutputError
from qafel.files import write_atomically
from qafel.params import Layout, Vector
from qafel.tasks import Task
from qafel.version import __version__

_PREFIX: Final = "qafel"


@final
class Staleness:
    """Uploads per staleness τ = 0, 1, 2, …: exact here, in buckets for Prometheus."""

    def __init__(self, histogram: Histogram) -> None:
        self.counts: list[int] = []
        self._histogram = histogram

    def observe(self, staleness: int) -> None:
        self._histogram.observe(staleness)
        self.counts += [0] * (staleness + 1 - len(self.counts))
        self.counts[staleness] += 1


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
        staleness = Histogram("staleness", "Versions between copy and upload", buckets=buckets, **options)
        self.staleness = Staleness(staleness.labels(run))
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
        self._offered: tuple[int, Vector, dict[str, Any], Vector | None] | None = None
        self._wake = asyncio.Event()
        self.began = time.monotonic()
        self.last: dict[str, Any] | None = None
        self.best: float | None = None
        self.reached: dict[str, Any] | None = None
        self._before_s = 0.0
        self._staleness_before: list[int] = []
        self._staleness_written: list[int] = []
        for row in _written(rows):
            # A row of uploads that the journal does not have was lost with them, and comes again.
            if row["uploads"] <= uploads_before:
                self._before_s = row["virtual_time"]
                self._staleness_before = _sum(self._staleness_before, row.get("staleness_histogram", []))
                self._see(row)

    @property
    def elapsed_s(self) -> float:
        """How long the run has gone on, up to the last evaluation of the processes before this, and in this."""
        return self._before_s + time.monotonic() - self.began

    @property
    def staleness_histogram(self) -> list[int]:
        """Uploads per staleness; without those that came after the last evaluation of a killed process."""
        return _sum(self._staleness_before, self._metrics.staleness.counts)

    def offer(self, version: int, model: Vector, traffic: Traffic, hidden_state: Vector | None = None) -> None:
        self._offered = (version, model, self._so_far(traffic), hidden_state)
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._offered is not None:
                offered, self._offered = self._offered, None
                await self.evaluate(*offered)

    async def evaluate(
        self, version: int, model: Vector, so_far: Mapping[str, Any], hidden_state: Vector | None = None
    ) -> None:
        figures = await asyncio.to_thread(self._measure, model, hidden_state)
        counts = so_far.get("staleness_histogram", [])
        recent = _sum(counts, [-count for count in self._staleness_written])
        row = {"version": version, **so_far, "staleness_histogram": recent, **figures}
        row["wall_s"] = time.monotonic() - self.began
        try:
            self._rows.write(json.dumps(row) + "\n")
            self._rows.flush()
        except OSError as error:
            raise OutputError(f"cannot write the evaluation of version {version}: {error.strerror or error}") from None
        self._staleness_written = counts
        self._metrics.metric.set(row["metric"])
        self._see(row)

    async def last_model(
        self, version: int, model: Vector, traffic: Traffic, hidden_state: Vector | None = None
    ) -> None:
        if self.last is None or self.last["version"] != version:
            await self.evaluate(version, model, self._so_far(traffic), hidden_state)

    def _measure(self, model: Vector, hidden_state: Vector | None) -> dict[str, float]:
        """The task's figures, and ‖x − x̂‖ / ‖x‖: what quantizing the broadcast costs."""
        if hidden_state is None:
            return dict(self._task.evaluate(model))
        with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged
            distance, norm = float(np.linalg.norm(model - hidden_state)), float(np.linalg.norm(model))
        return {"hidden_state_lag": distance / norm if norm else distance, **self._task.evaluate(model)}

    def _see(self, row: dict[str, Any]) -> None:
        """Keep the last row, the best metric, and the first row that meets the target."""
        metric, better = row["metric"], (min if self._task.metric_goal == "min" else max)
        self.last = row
        self.best = metric if self.best is None else better(self.best, metric)
        if self._target is not None and self.reached is None and better(metric, self._target) == metric:
            self.reached = row

    def _so_far(self, traffic: Traffic) -> dict[str, Any]:
        """What the server counted; what its clients received, it does not see."""
        return {
            "uploads": traffic.uploads,
            "virtual_time": self.elapsed_s,
            "virtual_time_unit": "s",
            "upload_bytes_total": traffic.upload_bytes,
            "broadcast_bytes_total": traffic.broadcast_bytes,
            "staleness_mean": _mean(traffic.staleness_counts),
            "staleness_max": max(0, len(traffic.staleness_counts) - 1),
            "staleness_histogram": self._metrics.staleness.counts.copy(),
        }


def open_rows(folder: Path) -> TextIO:
    """The metrics file of a run, to read what a killed server wrote, and to go on behind it."""
    return (folder / "metrics.jsonl").open("a+", encoding="utf-8")


def _written(rows: TextIO) -> Iterator[dict[str, Any]]:
    """All whole rows. Half a row at the end is cut off, so that the next one has a line of its own."""
    rows.seek(0)
    text = rows.read()
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        rows.seek(0)
        rows.truncate(len(text.encode()))
        rows.seek(0, os.SEEK_END)
    for line in text.splitlines():
        with suppress(ValueError):  # what is damaged is for the report to tell, not for a server to stop at
            row = json.loads(line)
            if isinstance(row, dict) and {"version", "uploads", "virtual_time", "metric"} <= row.keys():
                yield row


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Position by position, without zeros at the end."""
    total = [a + b for a, b in zip_longest(one, other, fillvalue=0)]
    while total and not total[-1]:
        total.pop()
    return total


# Whether a run goes on: its last step, its target, divergence or a signal ends it.


log = logging.getLogger(__name__)


@final
class Course:
    """Running, until it is finished, stopped or diverged; and when the model is measured on the way."""

    def __init__(self, config: Config, ledger: Ledger, evaluator: Evaluator) -> None:
        self.state = "running"
        self._stop = config.stop
        self._evaluation = config.evaluation
        self._ledger = ledger
        self._evaluator = evaluator
        self._uploads_before = ledger.traffic.uploads

    @property
    def goes_on(self) -> bool:
        return self.state == "running"

    def end(self, state: str) -> None:
        """The first end counts."""
        if self.goes_on:
            self.state = state

    def look(self) -> None:
        """End a run that has reached one of its limits."""
        stop, traffic = self._stop, self._ledger.traffic
        if (
            self._ledger.server.version >= (stop.server_steps or math.inf)
            or traffic.uploads >= (stop.uploads or math.inf)
            or traffic.upload_bytes + traffic.broadcast_bytes >= (stop.traffic_bytes or math.inf)
        ):
            self.end("finished")

    def after_upload(self, version_before: int, diverged: str | None) -> None:
        """Have the model measured, where an evaluation is due; then look."""
        server, traffic, evaluation = self._ledger.server, self._ledger.traffic, self._evaluation
        by_uploads = evaluation.unit == "uploads"
        # A rejected message counts nothing, and gives no reason to measure again.
        changed = traffic.uploads > self._uploads_before if by_uploads else server.version > version_before
        self._uploads_before = traffic.uploads
        if changed and (traffic.uploads if by_uploads else server.version) % evaluation.every == 0:
            self._evaluator.offer(server.version, server.model, traffic, server.hidden_state.vector)
        if diverged is not None:
            log.error("%s", diverged)
            self.end("diverged")
        if self._stop.at_target and self._evaluator.reached is not None:
            self.end("finished")
        self.look()


# What a deployed run leaves behind: the directory of a simulated one, so that reports compare both.


Summary: TypeAlias = dict[str, Any]


def write_results(out: Path, state: str, config: Config, task: Task, ledger: Ledger, evaluator: Evaluator) -> Summary:
    """Model and summary; configuration and metrics are there already."""
    summary = {"name": config.name, "status": state, **_what_it_was(config, task), **_what_it_did(ledger, evaluator)}
    write_atomically(out / "model.safetensors", model_file(ledger.server.model, task.layout))
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


def _what_it_did(ledger: Ledger, evaluator: Evaluator) -> Summary:
    traffic, server, last, reached = ledger.traffic, ledger.server, evaluator.last, evaluator.reached
    wall_s = max(1e-9, time.monotonic() - evaluator.began)
    return {
        "server_steps": server.version,
        "uploads": traffic.uploads,
        "upload_bytes_mean": traffic.upload_bytes / max(1, traffic.uploads),
        "upload_bytes_total": traffic.upload_bytes,
        "broadcast_bytes_mean": traffic.broadcast_bytes / max(1, traffic.broadcasts),
        "broadcast_bytes_total": traffic.broadcast_bytes,
        "received_bytes_total": None,  # a server does not see what its clients receive
        "rejected": dict(server.rejected),
        "staleness_mean": _mean(traffic.staleness_counts),
        "staleness_max": max(0, len(traffic.staleness_counts) - 1),
        "staleness_histogram": evaluator.staleness_histogram,
        "metric_final": last["metric"] if last else None,
        "metric_best": evaluator.best,
        "uploads_to_target": reached["uploads"] if reached else None,
        "virtual_time": evaluator.elapsed_s,
        "virtual_time_unit": "s",
        "virtual_time_to_target": reached["virtual_time"] if reached else None,
        "wall_s": wall_s,
        "updates_per_s": (traffic.uploads - evaluator.uploads_before) / wall_s,
        "model_sha256": _sha256(server.model),
        "hidden_state_sha256": _sha256(server.hidden_state.vector),
    }


def _mean(counts: list[int]) -> float:
    return sum(tau * count for tau, count in enumerate(counts)) / max(1, sum(counts))


def _sha256(vector: Vector) -> str:
    return hashlib.sha256(vector.tobytes()).hexdigest()
