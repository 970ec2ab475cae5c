"""Run directories, read back: configuration, summary and history of one run.

A run directory holds `config.toml`, `metrics.jsonl` and, once the run has finished, `summary.json`. A killed run leaves
no summary and perhaps half a last row; it loads all the same, with its last row in place of the summary.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError, NothingToShow
from qafel.lazy import require_installed
from qafel.runs.directory import require_known_format
from qafel.runs.progress import meets
from qafel.tasks.protocol import Goal

_METRICS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("mushrooms", "quadratic", "logistic"), ("f(x) − f*", "min")),
    **dict.fromkeys(("cifar10", "celeba", "shakespeare"), ("accuracy", "max")),
}
"""Each task's metric and its goal. A summary states both; without one, asking the task would mean to load torch."""


def run_directories(path: Path) -> list[Path]:
    """The run directories that `path` holds, seed 2 before seed 10; or `path` itself, if it is one or holds none."""
    if not path.is_dir() or (path / "config.toml").is_file():
        return [path]
    inside = [child for child in path.iterdir() if (child / "config.toml").is_file()]
    return sorted(inside, key=natural_order) or [path]


def natural_order(path: Path) -> list[tuple[int, str]]:
    """What to sort folders by, so that seed 2 comes before seed 10."""
    return [(int(digits or -1), word) for word, digits in re.findall(r"(\D+)|(\d+)", path.name)]


def is_moved_aside(path: Path) -> bool:
    """Whether a folder's name says that another run took its place."""
    return re.fullmatch(r".*\.old-\d+", path.name) is not None


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of the run directory `path`, as a table."""
    file = path / "config.toml"
    try:
        text = _read(file).decode()
        require_known_format(text, file)
        return tomllib.loads(text)
    except FileNotFoundError:
        inside = sorted(child.name for child in path.iterdir() if (child / "config.toml").is_file())
        hint = f"it holds the runs {', '.join(inside)}; name those" if inside else "name the one that `qafel run` wrote"
        message = f"{path} is not a run directory, it has no config.toml: {hint}"
        raise NothingToShow(message, "no run directory") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}): restore it, or repeat the run") from None


def read_rows(file: Path) -> list[dict[str, Any]]:
    """All rows of a metrics.jsonl; a last line that a killed run left half-written is dropped."""
    try:
        lines = _read(file).split(b"\n")
    except FileNotFoundError:
        raise _nothing_yet(f"{file} is missing") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("expected a JSON object")
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise DataError(f"{file} is damaged in line {number} ({error}): restore it, or repeat the run") from None
        rows.append(row)
    if not rows:
        raise _nothing_yet(f"{file} holds no complete row")
    if not any("metric" in row for row in rows):
        raise DataError(f"{file} has no column 'metric', which every row should have: was it written by `qafel run`?")
    return rows


def read_summary(file: Path) -> dict[str, Any] | None:
    """A summary.json; None if there is none."""
    try:
        summary = json.loads(_read(file))
        if not isinstance(summary, dict):
            raise ValueError("expected a JSON object")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged ({error}): delete it to see the run as unfinished, or repeat it") from None
    return summary


def summary_so_far(row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What the last row of an unfinished run says under the names of a summary, and what follows from its task."""
    renamed = {"metric": "metric_final", "version": "server_steps"}
    summary = {renamed.get(key, key): value for key, value in row.items()}
    task = config.get("task")
    if isinstance(task, Mapping) and (metric := _METRICS.get(str(task.get("name")))) is not None:
        summary["metric_name"], summary["metric_goal"] = metric
    evaluation = config.get("evaluation")
    if isinstance(evaluation, Mapping):
        summary["target"] = evaluation.get("target")
    return summary | {key: config[key] for key in ("task", "algorithm", "seed") if key in config}


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """The numeric columns of `rows`; a value that is missing, or not a number, is NaN."""
    keys = dict.fromkeys(key for row in rows for key in row)
    table = {key: np.array([number_of(row.get(key)) for row in rows], dtype=np.float64) for key in keys}
    return {key: column for key, column in table.items() if key == "metric" or not np.isnan(column).all()}


def number_of(value: object) -> float:
    """A number from JSON; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _nothing_yet(what: str) -> NothingToShow:
    message = f"{what}: nothing was evaluated yet; let the run go on, or repeat it"
    return NothingToShow(message, "nothing evaluated yet")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): check its permissions") from None


Column: TypeAlias = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False)
class Run:
    """One run as it lies on disk; `history` holds the numeric columns of `metrics.jsonl`, all of one length."""

    path: Path
    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    history: Mapping[str, Column]
    finished: bool = True

    @staticmethod
    def load(path: Path) -> Run:
        """Read the run directory `path`; a file that is missing or damaged raises a `DataError` that names it."""
        path = Path(path)
        if not path.is_dir():
            message = f"{path} is not a run directory: name the one that `qafel run` wrote"
            # A path that leads nowhere is a mistake, not something to leave out.
            raise NothingToShow(message, "no run directory") if path.exists() else DataError(message)
        config = read_config(path)
        rows = read_rows(path / "metrics.jsonl")
        summary = read_summary(path / "summary.json")
        finished = summary is not None
        if summary is None:
            summary = summary_so_far(rows[-1], config)
            if (path / "state").is_dir():  # of a deployed server, whose time is in seconds
                summary["virtual_time_unit"] = "s"
        name = summary.get("name") or config.get("name") or path.resolve().name
        return Run(path, str(name), config, summary, columns_of(rows), finished)

    def number(self, key: str) -> float:
        """The summary's figure `key`; NaN if it is missing."""
        return number_of(self.summary.get(key))

    def column(self, key: str) -> Column:
        """The history's column `key`; all NaN if the run did not record it."""
        return self.history.get(key, np.full(len(self.history["metric"]), np.nan))

    @property
    def diverged(self) -> bool:
        """Whether the run's model, or its last metric, was no longer finite."""
        return self.summary.get("status") == "diverged" or not math.isfinite(float(self.column("metric")[-1]))

    @property
    def task(self) -> str:
        """The task's name; empty if the run does not state it."""
        task = self.config.get("task") or self.summary.get("task") or ""
        return str(task.get("name", "") if isinstance(task, Mapping) else task)

    @property
    def traffic(self) -> Column:
        """Bytes that crossed so far, per evaluation: uploads, and each broadcast once."""
        return self.column("upload_bytes_total") + self.column("broadcast_bytes_total")

    @property
    def traffic_total(self) -> float:
        """Bytes that crossed in the whole run: uploads, and each broadcast once."""
        return self.number("upload_bytes_total") + self.number("broadcast_bytes_total")

    @property
    def goal(self) -> Goal:
        """Whether the metric should be small or large."""
        return "max" if self.summary.get("metric_goal") == "max" else "min"

    def first_at(self, target: float, goal: Goal | None = None) -> int | None:
        """The number of the first row whose metric meets a target; None if no row does. `goal` is the run's own."""
        rows = enumerate(self.column("metric").tolist())
        return next((number for number, metric in rows if meets(metric, target, goal or self.goal)), None)

    def at_target(self, column: Column, goal: Goal | None = None) -> float:
        """A column's value at the first row that meets the run's own target; infinite if none does, NaN without one."""
        target = self.number("target")
        if math.isnan(target):
            return math.nan
        first = self.first_at(target, goal)
        return math.inf if first is None else float(column[first])

    @property
    def staleness_histogram(self) -> Column:
        """Uploads per staleness τ = 0, 1, 2, …; empty if the run did not record it."""
        counts = self.summary.get("staleness_histogram")
        if not isinstance(counts, list):
            return np.zeros(0)
        return np.nan_to_num(np.array([number_of(count) for count in counts], dtype=np.float64))


@final
class History(Mapping[str, NDArray[Any]]):
    """A run's evaluations as columns by name: `history["metric"]`; also `columns`, `rows` and `to_pandas()`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)
        self.columns = list(self.rows[0]) if self.rows else []

    @staticmethod
    def load(path: Path) -> History:
        """The history of the run directory `path`."""
        return History(read_rows(path / "metrics.jsonl"))

    def __getitem__(self, column: str) -> NDArray[Any]:
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        values = [row.get(column) for row in self.rows]
        if all(value is None or isinstance(value, int | float) for value in values):
            return np.array([np.nan if value is None else value for value in values])
        array = np.empty(len(values), object)
        array[:] = values
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"History({len(self.rows)} rows × {len(self.columns)} columns: {', '.join(self.columns)})"

    def to_pandas(self) -> Any:
        """A pandas DataFrame with these columns, which needs the extra `pandas`."""
        require_installed("to_pandas", "pandas", "pandas")
        import pandas as pd  # noqa: PLC0415  (an extra)

        return pd.DataFrame(self.rows)
