"""Run directories, read back: configuration, summary and history of one run.

A run directory holds `config.toml`, `metrics.jsonl` and, once the run has finished, `summary.json`. A killed run leaves
no summary and perhaps half a last row; it loads all the same, with its last row in place of the summary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError
from qafel.results.run_files import (
    NothingToShow,
    columns_of,
    number_of,
    read_config,
    read_rows,
    read_summary,
    summary_so_far,
)

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
        """Read a run directory; a file that is missing or damaged raises a DataError that names it."""
        path = Path(path)
        if not path.is_dir():
            message = f"{path} is no run directory: give the directory that `qafel run` wrote"
            # A path that leads nowhere is a slip of the pen, not something to leave out.
            raise NothingToShow(message, "no run directory") if path.exists() else DataError(message)
        config = read_config(path)
        rows = read_rows(path / "metrics.jsonl")
        summary = read_summary(path / "summary.json")
        finished = summary is not None
        if summary is None:
            summary = summary_so_far(rows[-1], config)
        name = summary.get("name") or config.get("name") or path.resolve().name
        return Run(path, str(name), config, summary, columns_of(rows), finished)

    def number(self, key: str) -> float:
        """One figure of the summary, NaN where the run does not know it."""
        return number_of(self.summary.get(key))

    def column(self, key: str) -> Column:
        """One column of the history, all NaN where the run did not record it."""
        return self.history.get(key, np.full(len(self.history["metric"]), np.nan))

    @property
    def diverged(self) -> bool:
        """Whether the run ended because its model was no longer finite; its last metric may be finite all the same."""
        return self.summary.get("status") == "diverged"

    @property
    def task(self) -> str:
        """The task's name, empty where the run does not state it."""
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

    def at_target(self, column: Column, goal: str) -> float:
        """A column's value at the first evaluation that meets the target; infinite where none does, NaN without one."""
        target, metric = self.number("target"), self.column("metric")
        if math.isnan(target):
            return math.nan
        met = np.flatnonzero(metric <= target if goal == "min" else metric >= target)
        return float(column[met[0]]) if met.size else math.inf

    @property
    def staleness_histogram(self) -> Column:
        """Uploads per staleness τ = 0, 1, 2, …; empty where the run did not record it."""
        counts = self.summary.get("staleness_histogram")
        if not isinstance(counts, list):
            return np.zeros(0)
        return np.nan_to_num(np.array([number_of(count) for count in counts], dtype=np.float64))
