"""The files of a run directory, read with care: what is missing or damaged is named, with what to do."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError

_METRICS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("mushrooms", "quadratic", "logistic"), ("f(x) − f*", "min")),
    **dict.fromkeys(("cifar10", "celeba", "shakespeare"), ("accuracy", "max")),
}
"""Each task's metric and its goal. A summary states both; without one, asking the task would mean to load torch."""


@final
class NothingToShow(DataError):
    """Here is no run, or one without any evaluation yet; among others it may be left out. `why` is a short phrase."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def read_config(path: Path) -> dict[str, Any]:
    file = path / "config.toml"
    try:
        return tomllib.loads(_read(file).decode())
    except FileNotFoundError:
        inside = sorted(child.name for child in path.iterdir() if (child / "config.toml").is_file())
        hint = f"it holds the runs {', '.join(inside)}: name those" if inside else "give the one `qafel run` wrote"
        message = f"{path} is no run directory, for it has no config.toml: {hint}"
        raise NothingToShow(message, "no run directory") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}): restore it, or repeat the run") from None


def read_rows(file: Path) -> list[dict[str, Any]]:
    """All rows; a last line that a killed run left half-written is dropped."""
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


def columns_of(rows: list[dict[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """The numeric columns; a value that is missing, or no number, is NaN."""
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
