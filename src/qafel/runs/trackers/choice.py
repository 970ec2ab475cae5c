"""Which trackers hear of a run, and what each is told of it: names that every tracker takes, numbers, what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, final, get_args

from qafel.errors import ConfigError, DataError
from qafel.files import read_regular, write_atomically
from qafel.lazy import is_installed, require_installed
from qafel.runs.summary import Summary

TrackerName: TypeAlias = Literal["tensorboard", "mlflow", "wandb"]
NAMES: tuple[TrackerName, ...] = get_args(TrackerName)

FILES = ("config.toml", "metrics.jsonl", "summary.json", "model.safetensors")
"""What a tracker that keeps files is given of a run directory."""
_MOST_BYTES = 1 << 20
_SUMMED_UP = (
    *("metric_final", "metric_best", "uploads_to_target", "virtual_time_to_target"),
    *("upload_bytes_mean", "broadcast_bytes_mean", "wall_s", "updates_per_s"),
)


@final
@dataclass(frozen=True, slots=True)
class Track:
    """Which trackers hear of a run; in a sweep also the MLflow run that stands for all seeds of its configuration."""

    names: tuple[TrackerName, ...] = ()
    mlflow_parent: str | None = None


NOT_TRACKED = Track()


def track_of(asked: str | Sequence[str] | Track | None) -> Track:
    """The trackers that a user asked for; none asked: TensorBoard, if it is installed; "none": none.

    `ConfigError` says which name is not known, or what to install.
    """
    if isinstance(asked, Track):
        return asked
    if asked is None:
        return Track(("tensorboard",) if is_installed("tensorboard") else ())
    names = [asked] if isinstance(asked, str) else list(asked)
    if unknown := [name for name in names if name not in (*NAMES, "none")]:
        raise ConfigError(f"a run is tracked by {', '.join(NAMES)} or none; got {unknown[0]!r}")
    chosen = tuple(name for name in NAMES if name in names)
    if "none" in names and chosen:
        raise ConfigError(f"a run is tracked by none, or by {' and '.join(chosen)}: choose")
    for name in chosen:
        beside = ("sqlalchemy", "alembic") if name == "mlflow" else ()
        require_installed(f"tracking by {name}", name, name, *beside)
    return Track(chosen)


class Position(NamedTuple):
    """How far a tracker has heard of a run: uploads and server steps of the last row that it has."""

    uploads: int
    version: int


NOTHING = Position(-1, -1)


@final
@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of a run before its first row.

    path          its directory
    settings      its table of settings, as config.toml says them
    metric_name   the task's metric, as its author calls it
    resumed       whether the directory's run goes on, so that the tracked run goes on too
    """

    path: Path
    settings: Mapping[str, Any]
    metric_name: str
    resumed: bool
    track: Track

    @property
    def group(self) -> str:
        """What runs that differ only by seed have in common."""
        return str(self.settings["name"])

    def memory(self, tracker: TrackerName) -> Memory:
        """What the tracker remembers in this run's directory."""
        return Memory(self.path / "trackers" / f"{tracker}.json")


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """A small file in which a tracker keeps what it needs to go on: its own name for the run, say."""

    file: Path

    def read(self) -> dict[str, Any]:
        """What was kept last; nothing, if there is none or it is damaged."""
        try:
            found = json.loads(read_regular(self.file, _MOST_BYTES))
        except (FileNotFoundError, DataError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, **values: object) -> None:
        write_atomically(self.file, (json.dumps(values, indent=2) + "\n").encode(), make_folder=True)


class Tracker(Protocol):
    """One run in one tracker. Every method may raise anything: the run goes on, and it is tried again later."""

    def begin(self) -> Position:
        """Begin a tracked run, or go on with the one that was begun; return the last row that it has."""
        ...

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take these rows, of metrics.jsonl's form, each later than the one before."""
        ...

    def end(self, summary: Summary | None) -> None:
        """The run has ended with this summary, and its files are written; None: it was broken off."""
        ...


def scalars(row: Mapping[str, Any], metric_name: str) -> dict[str, float]:
    """The numbers of a row under names that every tracker takes; the metric is under the task's name for it."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    found = {safe(name): float(value) for name, value in numbers.items() if name != "metric"}
    if "metric" in numbers:
        name = safe(metric_name)
        found[name if name and name not in found else "metric"] = float(numbers["metric"])
    return found


def summed_up(summary: Summary) -> dict[str, float]:
    """The figures of a summary by which runs are compared."""
    return {name: float(summary[name]) for name in _SUMMED_UP if isinstance(summary.get(name), int | float)}


def safe(name: str) -> str:
    """A name of letters, digits, and . _ - alone, as all trackers take it: `f(x) − f*` is f_x_-_f."""
    return re.sub(r"[^A-Za-z0-9.\-]+", "_", name.replace("−", "-")).strip("_.")
