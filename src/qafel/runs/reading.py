"""Reads run directories: configuration, summary and history of a run; mean and spread over several runs.

A run directory holds `config.toml`, `metrics.jsonl` and, once the run has finished, `summary.json`. A killed run has no
summary and may end with a partial row. It loads too, with its last complete row in place of the summary.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

from qafel.config.sections import parse_toml
from qafel.errors import DataError, NothingToShow
from qafel.files import open_regular
from qafel.lazy import require_installed
from qafel.runs.directory import damaged_config, read_toml
from qafel.runs.live import LiveState, read_live, read_summary
from qafel.runs.progress import Row, bounded, fault_of, histogram_mean, meets
from qafel.tasks.protocol import Goal
from qafel.text import UNKNOWN, cut, printable

_MOST_LINE = 1 << 20
_MOST_LINES = 4_000_000
_MOST_COLUMNS = 256
_MOST_FAULTS = 100
"""With this many lines that are not rows, the file is something else."""
_DECLARED: dict[str, Any] = {
    name: (kind | None, None) for name, kind in get_type_hints(Row, include_extras=True).items() if name != "figures"
}
_ROW = TypeAdapter(create_model("RowRecord", __config__=ConfigDict(extra="allow"), **_DECLARED))
"""A line of metrics.jsonl: the fields of a `Row`, each optional, and any figures of its task."""


def run_directories(path: Path) -> list[Path]:
    """Return the run directories in `path`, in natural order; `path` itself, if it is one or has none."""
    return [path] if is_run_directory(path) else _inside(path) or [path]


def is_run_directory(path: Path) -> bool:
    """Return whether a folder has a config.toml. Its reader reports a damaged one."""
    return os.path.lexists(path / "config.toml")


def _inside(path: Path) -> list[Path]:
    try:
        return sorted(filter(is_run_directory, path.iterdir()), key=natural_order)
    except OSError:
        return []


def natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts seed 2 before seed 10."""
    return [(int(digits or -1), word) for word, digits in re.findall(r"(\D+)|(\d+)", path.name)]


def is_moved_aside(path: Path) -> bool:
    """Return whether another run took the folder's place, by its name."""
    return re.fullmatch(r".*\.old-\d+", path.name) is not None


def folder_name(path: Path) -> str:
    """Return the name of a run's folder, safe to show on a page or a terminal."""
    return printable(Path(os.path.realpath(path)).name)


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration of the run directory `path` as a table."""
    try:
        return parse_toml(read_toml(path))
    except FileNotFoundError:
        inside = [child.name for child in _inside(path)]
        hint = f"choose one of its runs: {', '.join(inside)}" if inside else "choose one that `qafel run` wrote"
        message = f"{path} is not a run directory, it has no config.toml: {hint}"
        raise NothingToShow(message, "no run directory") from None
    except ValueError as error:
        raise damaged_config(path, error) from None


@final
class RowReader:
    """Reads the rows of a metrics.jsonl, each once. A later call returns the rows that were added."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.fault = ""
        """The fault of the first line that is not a row."""
        self._read_bytes = self._lines = self._faults = 0
        self._columns: set[str] = set()

    def more(self) -> Iterator[dict[str, Any]]:
        """Yield the new, complete rows. Other lines are left out; `fault` describes the first.

        Raises `FileNotFoundError`, or `DataError` if the file cannot be read.
        """
        with open_regular(self.file) as file:
            file.seek(self._read_bytes)
            while self._faults < _MOST_FAULTS and (line := file.readline(_MOST_LINE)):
                if not line.endswith(b"\n") and len(line) < _MOST_LINE:
                    return  # a partial row
                self._read_bytes += len(line)
                self._lines += 1
                if self._lines > _MOST_LINES:
                    self._complain(f"it has more than {_MOST_LINES:,} lines", to_the_end=True)
                elif line.strip() and (row := self._row(line)) is not None:
                    yield row

    def is_shorter(self) -> bool:
        """Return whether the file is shorter than before: the run started again."""
        try:
            return self.file.stat().st_size < self._read_bytes
        except OSError:
            return self._read_bytes > 0

    def _row(self, line: bytes) -> dict[str, Any] | None:
        """Return the row of a line, or None if it is not one."""
        try:
            row: dict[str, Any] = _ROW.validate_json(line).model_dump(exclude_unset=True)
        except ValidationError as error:
            self._complain(fault_of(error), to_the_end=len(line) == _MOST_LINE)
            return None
        self._columns |= row.keys()
        if len(self._columns) > _MOST_COLUMNS:
            self._complain(f"it has more than {_MOST_COLUMNS} columns", to_the_end=True)
            return None
        return row

    def _complain(self, why: str, to_the_end: bool) -> None:
        self._faults += _MOST_FAULTS if to_the_end else 1
        self.fault = self.fault or (
            f"{self.file} is damaged in line {self._lines} ({why}): restore it, or repeat the run"
        )


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return all rows of a metrics.jsonl, without a partial last row."""
    reader = RowReader(file)
    try:
        rows = list(reader.more())
    except FileNotFoundError:
        raise _nothing_yet(f"{file} is missing") from None
    if reader.fault:
        raise DataError(reader.fault)
    if not rows:
        raise _nothing_yet(f"{file} holds no complete row")
    if not any("metric" in row for row in rows):
        raise DataError(f"{file} has no column 'metric': repeat the run")
    return rows


def summary_so_far(
    row: Mapping[str, Any], staleness: list[int], config: Mapping[str, Any], live: LiveState | None
) -> dict[str, Any]:
    """Return the last row of an unfinished run under the names of a summary.

    staleness   the histogram of all rows; a row has the updates since the row before
    live        the run's live state, which knows the task's metric and goal
    """
    renamed = {"metric": "metric_final", "version": "server_steps"}
    summary = {renamed.get(key, key): value for key, value in row.items()}
    summary |= {
        "staleness_histogram": staleness,
        "staleness_mean": histogram_mean(staleness),
        "staleness_max": max(0, len(staleness) - 1),
    }
    if live is not None:
        summary |= {"metric_name": live.metric_name, "metric_goal": live.metric_goal}
    evaluation = config.get("evaluation")
    if isinstance(evaluation, Mapping):
        summary["target"] = evaluation.get("target")
    return summary | {key: config[key] for key in ("task", "algorithm", "seed") if key in config}


def add_staleness(counts: list[int], row: Mapping[str, Any]) -> list[int]:
    """Return the sum of a staleness histogram and that of a row."""
    more = row.get("staleness_histogram") or ()
    return [one + other for one, other in zip_longest(counts, more, fillvalue=0)]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the numeric columns of `rows`. A value that is missing or not a number is NaN."""
    keys = dict.fromkeys(key for row in rows for key in row)
    table = {key: np.array([number_of(row.get(key)) for row in rows], dtype=np.float64) for key in keys}
    return {key: column for key, column in table.items() if key == "metric" or not np.isnan(column).all()}


def number_of(value: object) -> float:
    """Return a number from JSON or TOML, infinite beyond `LARGEST`; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(bounded(value))


def _nothing_yet(what: str) -> NothingToShow:
    message = f"{what}: nothing was evaluated yet; let the run continue, or repeat it"
    return NothingToShow(message, "nothing evaluated yet")


Column: TypeAlias = NDArray[np.float64]

BYTES = ("upload_bytes_total", "broadcast_bytes_total", "received_bytes_total")
"""The parts of total bytes."""


@final
@dataclass(frozen=True, eq=False)
class Run:
    """One run on disk. `history` holds the numeric columns of `metrics.jsonl`, all of one length."""

    path: Path
    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    history: Mapping[str, Column]
    finished: bool = True

    @staticmethod
    def load(path: Path) -> Run:
        """Read the run directory `path`. Raises a `DataError` that names a missing or damaged file."""
        path = Path(path)
        if not os.path.isdir(path):
            message = f"{path} is not a run directory: choose one that `qafel run` wrote"
            # A path that does not exist is a mistake, not something to leave out.
            raise NothingToShow(message, "no run directory") if os.path.lexists(path) else DataError(message)
        config, summary = read_config(path), None
        with suppress(FileNotFoundError):
            summary = read_summary(path)  # before the rows: all of them are there once it is
        rows = read_rows(path / "metrics.jsonl")
        if summary is not None:
            return Run.of(path, config, summary, columns_of(rows))
        try:
            live = read_live(path)
        except DataError:
            live = None
        so_far = summary_so_far(rows[-1], reduce(add_staleness, rows, []), config, live)
        return Run.of(path, config, so_far, columns_of(rows), finished=False)

    @staticmethod
    def of(
        path: Path,
        config: Mapping[str, Any],
        summary: Mapping[str, Any],
        history: Mapping[str, Column],
        finished: bool = True,
    ) -> Run:
        """Return a run of the directory `path`, named by its summary, its configuration or its folder."""
        if not finished and os.path.isdir(path / "state"):  # a deployed run: its time is in seconds
            summary = {"virtual_time_unit": "s", **summary}
        names = (one.get("name") for one in (summary, config))
        name = next((cut(printable(found), 200) for found in names if found and isinstance(found, str)), "")
        return Run(path, name or folder_name(path), config, summary, history, finished)

    def number(self, key: str) -> float:
        """Return the summary's figure `key`, or NaN."""
        return number_of(self.summary.get(key))

    def column(self, key: str) -> Column:
        """Return the history's column `key`, all NaN if the run did not record it."""
        return self.history.get(key, np.full(len(self.history["metric"]), np.nan))

    @property
    def diverged(self) -> bool:
        """Whether the model or the last metric was not finite."""
        return self.summary.get("status") == "diverged" or not math.isfinite(float(self.column("metric")[-1]))

    @property
    def task(self) -> str:
        """The task's name, or an empty text."""
        task = self.config.get("task") or self.summary.get("task") or ""
        return str(task.get("name", "") if isinstance(task, Mapping) else task)

    @property
    def bytes_so_far(self) -> Column:
        """Total bytes at each evaluation: up, broadcast (each broadcast once) and received by starting clients."""
        total: Column = np.sum([self.column(part) for part in BYTES], axis=0)
        return total

    @property
    def total_bytes(self) -> float:
        """Total bytes of the whole run; NaN if the run did not count received bytes."""
        return sum(self.number(part) for part in BYTES)

    @property
    def goal(self) -> Goal:
        """The better direction of the metric: "min" or "max"."""
        return "max" if self.summary.get("metric_goal") == "max" else "min"

    def first_at(self, target: float, goal: Goal | None = None) -> int | None:
        """Return the index of the first row whose metric meets a target, or None. `goal` defaults to the run's."""
        rows = enumerate(self.column("metric").tolist())
        return next((number for number, metric in rows if meets(metric, target, goal or self.goal)), None)

    def at_target(self, column: Column, goal: Goal | None = None) -> float:
        """Return a column's value at the first row that meets the run's target.

        It is infinite if no row does, and NaN without a target.
        """
        target = self.number("target")
        if math.isnan(target):
            return math.nan
        first = self.first_at(target, goal)
        return math.inf if first is None else float(column[first])

    @property
    def staleness_histogram(self) -> Column:
        """Uploads per staleness τ = 0, 1, 2, …; empty if not recorded."""
        counts = self.summary.get("staleness_histogram")
        if not isinstance(counts, list):
            return np.zeros(0)
        return np.nan_to_num(np.array([number_of(count) for count in counts], dtype=np.float64))


@final
class History(Mapping[str, NDArray[Any]]):
    """A run's evaluations as columns: `history["metric"]`, `columns`, `rows` and `to_pandas()`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)
        self.columns = list(self.rows[0]) if self.rows else []

    @staticmethod
    def load(path: Path) -> History:
        """Read the history of the run directory `path`."""
        return History(read_rows(path / "metrics.jsonl"))

    def __getitem__(self, column: str) -> NDArray[Any]:
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; known columns: {', '.join(self.columns)}")
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
        """Return a pandas DataFrame. It needs the extra `pandas`."""
        require_installed("to_pandas", "pandas", "pandas")
        import pandas as pd  # noqa: PLC0415  (an extra)

        return pd.DataFrame(self.rows)


@final
@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds: mean, standard deviation, lowest and highest value."""

    mean: float
    std: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Return the spread of `values`. The standard deviation divides by n − 1 and is NaN for one value.

        If a value is not finite, the mean is not either.
        """
        found = np.array(list(values), dtype=np.float64)
        if not found.size:
            return Spread(math.nan, math.nan, math.nan, math.nan, 0)
        low, high = float(found.min()), float(found.max())
        if not np.isfinite(found).all():
            return Spread(high, math.nan, low, high, found.size)
        std = float(found.std(ddof=1)) if found.size > 1 else math.nan
        return Spread(float(found.mean()), std, low, high, found.size)

    def apart_from(self, other: Spread) -> bool:
        """Return whether the two ranges are disjoint. The range of one seed is a point."""
        return self.high < other.low or other.high < self.low

    def text(self, show: Callable[[float], str]) -> str:
        """Return "mean ± standard deviation", with numbers as `show` formats them."""
        mean = UNKNOWN if math.isnan(self.mean) else show(self.mean) if math.isfinite(self.mean) else "∞"
        return f"{mean} ± {show(self.std)}" if math.isfinite(self.std) else mean


class MeanCurve(NamedTuple):
    """Mean y against mean x over seeds, with the range of y; None for a single run."""

    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None


def mean_curve(across: Sequence[Column], values: Sequence[Column]) -> MeanCurve:
    """Return the mean of `values` over runs, row by row, against the mean of `across`.

    After a run's end, the mean is over the others: the curve is as long as the longest. From there, x advances by the
    mean increment of the others, so that it never decreases.
    """
    if len(values) == 1:
        return MeanCurve(across[0], values[0])
    longest = max(map(len, values))
    there = np.arange(longest) < np.array([[len(column)] for column in values])
    x, y = (
        np.stack([np.pad(column, (0, longest - len(column))) for column in columns]) for columns in (across, values)
    )
    with np.errstate(over="ignore", invalid="ignore"):  # runs may have diverged
        grown = np.diff(x, axis=1, prepend=0.0).mean(axis=0, where=there).cumsum()
        everywhere = there.all(axis=0)
        means = x.mean(axis=0, where=there)
        mean = y.mean(axis=0, where=there)
    # While all runs last, the plain mean is exact.
    return MeanCurve(
        np.where(everywhere, means, grown),
        mean,
        y.min(axis=0, where=there, initial=np.inf),
        y.max(axis=0, where=there, initial=-np.inf),
    )
