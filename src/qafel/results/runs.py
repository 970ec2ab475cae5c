"""Run directories, read back: configuration, summary and history of one run.

A run directory holds `config.toml`, `metrics.jsonl` and, once the run has finished, `summary.json`. A killed run leaves
no summary and perhaps half a last row; it loads all the same, with its last row in place of the summary.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError

Column: TypeAlias = NDArray[np.float64]

_METRICS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("mushrooms", "quadratic", "logistic"), ("f(x) − f*", "min")),
    **dict.fromkeys(("cifar10", "celeba", "shakespeare"), ("accuracy", "max")),
}
"""Each task's metric and its goal. A summary states both; without one, asking the task would mean to load torch."""


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
        """Read a run directory; a file that is missing or damaged raises a DataError that names it."""
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path} is no run directory: give the directory that `qafel run` wrote")
        config = _read_config(path)
        rows = _read_rows(path / "metrics.jsonl")
        summary = _read_summary(path / "summary.json")
        finished = summary is not None
        if summary is None:
            summary = _summary_so_far(rows[-1], config)
        name = summary.get("name") or config.get("name") or path.resolve().name
        return Run(path, str(name), config, summary, _columns(rows), finished)

    def number(self, key: str) -> float:
        """One figure of the summary, NaN where the run does not know it."""
        return _number(self.summary.get(key))

    def column(self, key: str) -> Column:
        """One column of the history, all NaN where the run did not record it."""
        return self.history.get(key, np.full(len(self.history["metric"]), np.nan))

    @property
    def traffic(self) -> Column:
        """Bytes that crossed so far, per evaluation: uploads, and each broadcast once."""
        return self.column("upload_bytes_total") + self.column("broadcast_bytes_total")

    @property
    def traffic_total(self) -> float:
        """Bytes that crossed in the whole run: uploads, and each broadcast once."""
        return self.number("upload_bytes_total") + self.number("broadcast_bytes_total")

    @property
    def staleness_histogram(self) -> Column:
        """Uploads per staleness τ = 0, 1, 2, …; empty where the run did not record it."""
        counts = self.summary.get("staleness_histogram")
        if not isinstance(counts, list):
            return np.zeros(0)
        return np.nan_to_num(np.array([_number(count) for count in counts], dtype=np.float64))


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.toml"
    try:
        return tomllib.loads(_read(file).decode())
    except FileNotFoundError:
        inside = sorted(child.name for child in path.iterdir() if (child / "config.toml").is_file())
        hint = f"it holds the runs {', '.join(inside)}: name those" if inside else "give the one `qafel run` wrote"
        raise DataError(f"{path} is no run directory, for it has no config.toml: {hint}") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}): restore it, or repeat the run") from None


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """All rows; a last line that a killed run left half-written is dropped."""
    try:
        lines = _read(file).split(b"\n")
    except FileNotFoundError:
        raise DataError(f"{file} is missing: nothing was evaluated yet; let the run go on, or repeat it") from None
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
        raise DataError(f"{file} holds no complete row: nothing was evaluated yet; let the run go on, or repeat it")
    if not any("metric" in row for row in rows):
        raise DataError(f"{file} has no column 'metric', which every row should have: was it written by `qafel run`?")
    return rows


def _read_summary(file: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(_read(file))
        if not isinstance(summary, dict):
            raise ValueError("expected a JSON object")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged ({error}): delete it to see the run as unfinished, or repeat it") from None
    return summary


def _summary_so_far(row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What the last row of an unfinished run says under the names of a summary, and what follows from its task."""
    renamed = {"metric": "metric_final", "version": "server_steps"}
    summary = {renamed.get(key, key): value for key, value in row.items()}
    task = config.get("task")
    if isinstance(task, Mapping) and (metric := _METRICS.get(str(task.get("name")))) is not None:
        summary["metric_name"], summary["metric_goal"] = metric
    return summary | {key: config[key] for key in ("task", "algorithm", "seed") if key in config}


def _columns(rows: list[dict[str, Any]]) -> dict[str, Column]:
    """The numeric columns; a value that is missing, or no number, is NaN."""
    keys = dict.fromkeys(key for row in rows for key in row)
    table = {key: np.array([_number(row.get(key)) for row in rows], dtype=np.float64) for key in keys}
    return {key: column for key, column in table.items() if key == "metric" or not np.isnan(column).all()}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): check its permissions") from None
