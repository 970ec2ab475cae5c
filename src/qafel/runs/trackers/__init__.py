"""Trackers: TensorBoard, MLflow and Weights & Biases show runs elsewhere than in the run directory.

A listener passes rows, summary and files to a tracker in a separate thread. A slow or broken tracker never delays a
run.

mlflow   a run in an MLflow store
wandb    a run in Weights & Biases, online or offline
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, final, get_args

from qafel.errors import ConfigError, DataError
from qafel.files import read_regular, write_atomically
from qafel.lazy import is_installed, require_installed
from qafel.runs.live import Listener, Summary
from qafel.runs.progress import Row
from qafel.runs.reading import read_rows
from qafel.text import cut

Say: TypeAlias = Callable[[str], None]
TrackerName: TypeAlias = Literal["tensorboard", "mlflow", "wandb"]
NAMES: tuple[TrackerName, ...] = get_args(TrackerName)
log = logging.getLogger(__name__)

FILES = ("config.toml", "metrics.jsonl", "summary.json", "model.safetensors")
"""Files of a run directory that a tracker stores."""
BETWEEN_S = 1.0
"""Seconds between two batches of rows."""
AGAIN_S = 60.0
"""Seconds between a failure and the next attempt."""
END_S = 120.0
"""The longest time in seconds that a finished run waits for its tracker."""
_WHOLE, _SHARE = 1000, 500
_MOST_BYTES = 1 << 20
_SUMMARY_FIGURES = (
    *("metric_final", "metric_best", "uploads_to_target", "virtual_time_to_target"),
    *("upload_bytes_mean", "broadcast_bytes_mean", "wall_s", "updates_per_s"),
)


@final
@dataclass(frozen=True, slots=True)
class Track:
    """The trackers of a run. In a sweep, `mlflow_parent` is the MLflow run that groups the seeds of a configuration."""

    names: tuple[TrackerName, ...] = ()
    mlflow_parent: str | None = None


NOT_TRACKED = Track()


def track_of(asked: str | Sequence[str] | Track | None) -> Track:
    """Return the trackers for a user's choice. None means TensorBoard, if it is installed; "none" means no tracker.

    Raises `ConfigError` for an unknown name or a missing package.
    """
    if isinstance(asked, Track):
        return asked
    if asked is None:
        return Track(("tensorboard",) if is_installed("tensorboard") else ())
    names = [asked] if isinstance(asked, str) else list(asked)
    if unknown := [name for name in names if name not in (*NAMES, "none")]:
        raise ConfigError(f"a tracker is one of {', '.join(NAMES)} or none; got {unknown[0]!r}")
    chosen = tuple(name for name in NAMES if name in names)
    if "none" in names and chosen:
        raise ConfigError(f"choose either no tracker (none) or {' and '.join(chosen)}")
    for name in chosen:
        beside = ("sqlalchemy", "alembic") if name == "mlflow" else ()
        require_installed(f"tracking by {name}", name, name, *beside)
    return Track(chosen)


class Position(NamedTuple):
    """Uploads and server steps of the last row that a tracker has."""

    uploads: int
    version: int

    @staticmethod
    def of(row: Mapping[str, Any]) -> Position:
        return Position(row["uploads"], row["version"])


NOTHING = Position(-1, -1)


@final
@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The facts that a tracker needs before the first row.

    path          the run directory
    settings      the table of settings in config.toml
    metric_name   the task's name for its metric
    resumed       whether this process resumes the run; then the tracker resumes its run, too
    """

    path: Path
    settings: Mapping[str, Any]
    metric_name: str
    resumed: bool
    track: Track

    @property
    def group(self) -> str:
        """The name that runs with different seeds share."""
        return str(self.settings["name"])

    def memory(self, tracker: TrackerName) -> Memory:
        """Return the tracker's file in this run's directory."""
        return Memory(self.path / "trackers" / f"{tracker}.json")


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """A small file with the facts that a tracker needs to resume, such as its name for the run."""

    file: Path

    def read(self) -> dict[str, Any]:
        """Return the values written last; an empty table if the file is missing or damaged."""
        try:
            found = json.loads(read_regular(self.file, _MOST_BYTES))
        except (FileNotFoundError, DataError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, **values: object) -> None:
        write_atomically(self.file, (json.dumps(values, indent=2) + "\n").encode(), make_folder=True)


class Tracker(Protocol):
    """One run in one tracker. Any method may raise any error: the run continues, and the call is repeated later."""

    def begin(self) -> Position:
        """Start or resume a tracked run. Return the position of the last row that it has."""
        ...

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store rows of metrics.jsonl, in order."""
        ...

    def end(self, summary: Summary | None) -> None:
        """Finish a run whose files are written. None: an error ended the run."""
        ...


def scalars(row: Mapping[str, Any], metric_name: str) -> dict[str, float]:
    """Return the numbers of a row under names that every tracker accepts. The metric has the task's name for it."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    found = {safe(name): float(value) for name, value in numbers.items() if name != "metric"}
    if "metric" in numbers:
        name = safe(metric_name)
        found[name if name and name not in found else "metric"] = float(numbers["metric"])
    return found


def summary_figures(summary: Summary) -> dict[str, float]:
    """Return the figures of a summary that help to compare runs."""
    return {name: float(summary[name]) for name in _SUMMARY_FIGURES if isinstance(summary.get(name), int | float)}


def safe(name: str) -> str:
    """Replace characters that some tracker refuses: `f(x) − f*` becomes f_x_-_f."""
    return re.sub(r"[^A-Za-z0-9.\-]+", "_", name.replace("−", "-")).strip("_.")


def follow(run: TrackedRun, say: Say = log.warning) -> list[Listener]:
    """Return a listener for each tracker of the run. `say` receives one message for each tracker that fails.

    Open the directory of a resumed run first: the listeners read the rows that it keeps.
    """
    return [TrackerListener(name, partial(_tracker, name, run), run, say) for name in run.track.names]


def group_tracks(
    track: Track, folder: Path, groups: Mapping[str, Mapping[str, Any]], say: Say = log.warning
) -> dict[str, Track]:
    """Return the trackers for each group of a sweep in `folder`, by the group's name.

    `groups` maps each name to the settings of one of its runs. MLflow gets a parent run for each group. If that fails,
    `say` receives a message and MLflow tracks none of the runs.
    """
    if "mlflow" in track.names and groups:
        try:
            from qafel.runs.trackers.mlflow import group_runs  # noqa: PLC0415  (an extra, slow to load)

            parents = group_runs(folder, groups)
            return {name: replace(track, mlflow_parent=parents[name]) for name in groups}
        except Exception as error:
            say(f"mlflow does not accept these runs ({_in_a_line(error)}); they continue without it")
            track = replace(track, names=tuple(name for name in track.names if name != "mlflow"))
    return dict.fromkeys(groups, track)


def _tracker(name: TrackerName, run: TrackedRun) -> Tracker:
    if name == "mlflow":
        from qafel.runs.trackers.mlflow import MlflowRun  # noqa: PLC0415  (an extra, slow to load)

        return MlflowRun(run)
    if name == "wandb":
        from qafel.runs.trackers.wandb import WandbRun  # noqa: PLC0415  (an extra, slow to load)

        return WandbRun(run)
    return TensorBoardRun(run)


@final
class TensorBoardRun:
    """A run as TensorBoard events in its directory, with uploads as the step. A resumed run replaces the old events."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: PLC0415  (an extra)

        self._run = run
        self._writer: Any = None
        self._events: Any = event_pb2
        self._scalars: Any = summary_pb2.Summary

    def begin(self) -> Position:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415  (an extra)

        for file in self._run.path.glob("events.out.tfevents.*"):
            file.unlink()
        self._writer = EventFileWriter(str(self._run.path))
        # Tells a running TensorBoard to forget the removed events.
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(step=0, session_log=start))
        return NOTHING

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            values = scalars(row, self._run.metric_name)
            uploads = int(values.pop("uploads"))
            points = [self._scalars.Value(tag=name, simple_value=value) for name, value in values.items()]
            summary = self._scalars(value=points)
            self._writer.add_event(self._events.Event(wall_time=values["wall_s"], step=uploads, summary=summary))
        self._writer.flush()

    def end(self, summary: Summary | None) -> None:
        self._writer.close()


@final
class TrackerListener:
    """Sends a run's rows to a tracker in batches, in a separate thread.

    After a thousand rows it sends a decreasing share of them, and always the last: a chart shows no more. Rows that the
    tracker has from an earlier process are not sent again.
    """

    def __init__(self, name: TrackerName, make: Callable[[], Tracker], run: TrackedRun, say: Say) -> None:
        """Start the thread. It calls `make`, because the tracker's library may be slow to load, or broken."""
        self._name, self._make, self._say = name, make, say
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._left_out: Mapping[str, Any] | None = None
        self._rows = 0
        self._reached = NOTHING
        self._problem: str | None = None
        self._said = False
        self._summary: Summary | None = None
        self._ended = threading.Event()
        if run.resumed:
            for row in _kept_rows(run):
                self._take(row)
        self._thread = threading.Thread(target=self._work, name=f"qafel-{name}", daemon=True)
        self._thread.start()

    def on_row(self, row: Row) -> None:
        self._take(row.to_json())
        self._say_once()

    def on_end(self, summary: Summary | None) -> None:
        """Send the rest. Give up after two minutes."""
        if self._left_out is not None:
            self._waiting.append(self._left_out)
        self._summary = summary
        self._ended.set()
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._problem = self._problem or f"it did not accept the last rows within {END_S:.0f} s"
        self._say_once()

    def _take(self, row: Mapping[str, Any]) -> None:
        self._rows += 1
        thinned = self._rows > _WHOLE and self._rows % (self._rows // _SHARE)
        self._left_out = row if thinned else None
        if not thinned:
            self._waiting.append(row)

    def _say_once(self) -> None:
        """Report a problem from the run's thread, where progress bars and pipes expect it."""
        if self._problem is not None and not self._said:
            self._said = True
            self._say(f"{self._name} does not accept this run's rows ({self._problem}); the run continues without it")

    def _work(self) -> None:
        """Begin, send rows, end. After a failure, wait and continue from the same place."""
        tracker: Tracker | None = None
        failed_at = -AGAIN_S
        while True:
            ended = self._ended.is_set()
            try:
                if tracker is None:
                    made = self._make()
                    self._reached, tracker = made.begin(), made
                self._send(tracker)
                if ended:
                    tracker.end(self._summary)
                    return
                self._ended.wait(BETWEEN_S)
            except Exception as error:
                self._problem = _in_a_line(error)
                if ended or (self._ended.is_set() and monotonic() - failed_at < AGAIN_S):
                    return
                failed_at = monotonic()
                self._ended.wait(AGAIN_S)

    def _send(self, tracker: Tracker) -> None:
        waiting = [self._waiting[index] for index in range(len(self._waiting))]
        if rows := [row for row in waiting if Position.of(row) > self._reached]:
            tracker.log(rows)
            self._reached = Position.of(rows[-1])
        for _ in waiting:  # only now: rows that the tracker refused are sent again
            self._waiting.popleft()


def _kept_rows(run: TrackedRun) -> list[dict[str, Any]]:
    try:
        return read_rows(run.path / "metrics.jsonl")
    except DataError:  # no rows yet, or a damaged file, which the report describes
        return []


def _in_a_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return cut(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__, 200)
