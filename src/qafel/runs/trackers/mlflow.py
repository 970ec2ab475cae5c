"""MLflow: a run in the store of MLFLOW_TRACKING_URI, else in mlflow.db beside the run directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import time
from typing import Any, final

from qafel.errors import OutputError
from qafel.files import Lock
from qafel.runs.directory import by_path
from qafel.runs.live import Summary
from qafel.runs.trackers import FILES, NOTHING, Memory, Position, TrackedRun, safe, scalars, summary_figures
from qafel.version import __version__

# MLflow reads these at import or at each request; a user's values take precedence. Without them it sends telemetry and
# waits four minutes for a server that is down.
for _name, _value in (
    ("MLFLOW_DISABLE_TELEMETRY", "true"),
    ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3"),
    ("MLFLOW_HTTP_REQUEST_TIMEOUT", "30"),
):
    os.environ.setdefault(_name, _value)

from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Metric, Param, Run, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.tracking import get_tracking_uri, is_tracking_uri_set  # noqa: E402

logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs every table that it creates

_METRICS_A_BATCH, _PARAMS_A_BATCH, _LONGEST = 1000, 100, 6000
_STATUS = {"finished": "FINISHED", "diverged": "FINISHED", "stalled": "FAILED", "stopped": "KILLED"}


@final
class _Store:
    """The store of runs: the user's, or a database in a folder."""

    def __init__(self, folder: Path) -> None:
        self._is_local = not is_tracking_uri_set()
        self._folder = folder.absolute()
        self.uri = f"sqlite:///{(self._folder / 'mlflow.db').as_posix()}" if self._is_local else get_tracking_uri()

    def alone(self) -> AbstractContextManager[object]:
        """Return a context with exclusive access: two processes would both create the tables."""
        busy = OutputError(f"another process writes {self._folder / 'mlflow.db'}")
        return Lock(self._folder / ".mlflow.lock", busy, patience_s=120.0) if self._is_local else nullcontext()

    def experiment(self, client: MlflowClient) -> str:
        """Return the id of the user's experiment, else of `qafel`, which is created if missing."""
        if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return number
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "qafel"
        if (found := client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        place = (self._folder / "mlartifacts").as_uri() if self._is_local else None
        return str(client.create_experiment(name, artifact_location=place))


@final
class MlflowRun:
    """One run. Metrics have uploads as their step; settings are parameters."""

    def __init__(self, run: TrackedRun) -> None:
        self._run, self._store = run, _Store(run.path.parent)
        self._memory = run.memory("mlflow")
        self._began_ms = 0
        self._id = ""

    def begin(self) -> Position:
        with self._store.alone():
            self._client = MlflowClient(tracking_uri=self._store.uri)
            found = _known(self._client, self._memory, self._store.uri) if self._run.resumed or self._id else None
            run = found or self._create()
            self._id, self._began_ms = run.info.run_id, run.info.start_time
            self._client.update_run(self._id, status="RUNNING")
            _log_settings(self._client, run, self._run.settings)
        has = run.data.metrics
        return Position(int(has["uploads"]), int(has["version"])) if "uploads" in has else NOTHING

    def _create(self) -> Run:
        tags = {"qafel.group": self._run.group, "qafel.metric": self._run.metric_name, "qafel.version": __version__}
        if self._run.track.mlflow_parent is not None:
            tags["mlflow.parentRunId"] = self._run.track.mlflow_parent
        experiment = self._store.experiment(self._client)
        made = self._client.create_run(experiment, int(time() * 1000), tags, self._run.path.name)
        self._memory.write(uri=self._store.uri, run_id=made.info.run_id)
        return made

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        # A row is never split over two batches: its position then holds for all its metrics.
        batch: list[Metric] = []
        for row in rows:
            metrics = self._metrics(row)
            if len(batch) + len(metrics) > _METRICS_A_BATCH:
                self._log(batch)
                batch = []
            batch += metrics
        self._log(batch)

    def _metrics(self, row: Mapping[str, Any]) -> list[Metric]:
        values, at_ms = scalars(row, self._run.metric_name), self._began_ms + int(1000 * row["wall_s"])
        return [Metric(name, value, at_ms, row["uploads"]) for name, value in values.items()]

    def _log(self, metrics: list[Metric]) -> None:
        with self._store.alone():
            self._client.log_batch(self._id, metrics=metrics, synchronous=True)

    def end(self, summary: Summary | None) -> None:
        at_ms, figures = int(time() * 1000), summary_figures(summary or {})
        metrics = [Metric(f"summary/{name}", value, at_ms, 0) for name, value in figures.items()]
        status = "failed" if summary is None else str(summary["status"])
        with self._store.alone():
            self._client.log_batch(self._id, metrics, tags=[RunTag("qafel.status", status)], synchronous=True)
            for name in FILES:
                if (file := self._run.path / name).is_file():
                    self._client.log_artifact(self._id, str(file))
            self._client.set_terminated(self._id, _STATUS.get(status, "KILLED"))


def group_runs(folder: Path, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the id of the parent run of each group of a sweep in `folder`. Missing parents are created.

    `groups` maps each name to the settings of one of its runs. MLflow shows the runs of a group below their parent.
    """
    store, memory = _Store(folder), Memory(folder / "trackers" / "mlflow.json")
    with store.alone():
        client = MlflowClient(tracking_uri=store.uri)
        experiment, known = store.experiment(client), memory.read()
        parents: dict[str, str] = known.get("groups", {}) if known.get("uri") == store.uri else {}
        for name, settings in groups.items():
            if name in parents and _run(client, parents[name]) is not None:
                continue
            made = client.create_run(experiment, int(time() * 1000), {"qafel.group": name}, name)
            _log_settings(client, made, {key: value for key, value in settings.items() if key != "seed"})
            client.set_terminated(made.info.run_id)
            parents[name] = made.info.run_id
            memory.write(uri=store.uri, groups=parents)
    return {name: parents[name] for name in groups}


def _known(client: MlflowClient, memory: Memory, uri: str) -> Run | None:
    known = memory.read()
    return _run(client, str(known["run_id"])) if known.get("uri") == uri and "run_id" in known else None


def _run(client: MlflowClient, run_id: str) -> Run | None:
    """Return a run, or None if the store does not have it."""
    try:
        found = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return found if found.info.lifecycle_stage == "active" else None


def _log_settings(client: MlflowClient, run: Run, settings: Mapping[str, Any]) -> None:
    """Log settings as parameters. MLflow never changes one, so a changed limit becomes a tag."""
    values = {safe(path): str(value)[:_LONGEST] for path, value in by_path(settings).items()}
    has = run.data.params
    new = [Param(name, value) for name, value in values.items() if name not in has]
    tags = [RunTag(name, value) for name, value in values.items() if has.get(name, value) != value]
    for at in range(0, len(new), _PARAMS_A_BATCH):
        client.log_batch(run.info.run_id, params=new[at : at + _PARAMS_A_BATCH], synchronous=True)
    if tags:
        client.log_batch(run.info.run_id, tags=tags, synchronous=True)
