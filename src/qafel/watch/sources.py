"""Watched runs, forecasts of their duration, and their sources: followed folders, and reported states."""

from __future__ import annotations

import asyncio
import math
import os
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np

from qafel.errors import DataError
from qafel.runs.live import LIVE_FILE, LiveState, Rate, read_live, read_summary
from qafel.runs.progress import meets
from qafel.runs.reading import (
    BYTES,
    Column,
    RowReader,
    Run,
    add_staleness,
    is_moved_aside,
    is_run_directory,
    natural_order,
    number_of,
    read_config,
    summary_so_far,
)
from qafel.text import human_seconds

SILENT_S = 15.0
"""A running run reports every second or two. After this long without a report it is silent."""
_LEAST_ROWS = 6
_FAR = 20.0
_SHARE_OF_ROWS = 0.75
"""The first quarter of a curve predicts its end worst."""
_DEEP = 3  # folders below the given one
_MOST_FOLDERS = 5000
_MOST_REPORTED = 4000
_COLUMNS = (
    *("metric", "uploads", "version", "virtual_time", "hidden_state_lag", "wall_s"),
    *BYTES,
)
_LIVE = (
    *("metric_name", "metric_goal", "target", "staleness_histogram", "uploads", "run_id"),
    *BYTES,
)
"""Fields of a live state that a summary has, too."""


@final
@dataclass(frozen=True, eq=False)
class Watched:
    """A run at one moment."""

    key: str
    """A unique name: the run's folder, or its source and name."""
    run: Run
    """The run with its rows so far, perhaps none."""
    live: LiveState | None
    """The last state of its driver; None if unknown, as for a finished run."""
    heard_s: float
    """Seconds since its last report."""
    problem: str = ""
    """Why it cannot be shown, or what its operator should fix."""
    damaged: bool = False
    """Whether its files are too damaged to show its status."""

    @property
    def rows(self) -> int:
        return len(self.run.column("metric"))

    @property
    def run_id(self) -> str:
        """The identity of a deployed run; empty for a simulated one."""
        return str(self.run.summary.get("run_id", ""))

    @property
    def silent(self) -> bool:
        """Whether its current status is unknown."""
        return self.damaged or (self.running and self.heard_s > SILENT_S)

    @property
    def running(self) -> bool:
        """Whether it is running, as far as is known. A silent run may be."""
        return not self.run.finished and (self.live is None or self.live.status == "running")

    @property
    def word(self) -> str:
        """Its status in a word or two."""
        if self.damaged:
            return "damaged"
        if self.run.finished:
            return str(self.run.summary.get("status", "finished"))
        if not self.running and self.live is not None:
            return self.live.status
        return f"silent for {human_seconds(round(self.heard_s))}" if self.silent else "running"

    @property
    def target_reached(self) -> int | None:
        """The uploads that reached the target; None if it is not reached, or there is none."""
        target = self.run.number("target")
        first = None if math.isnan(target) else self.run.first_at(target)
        uploads = math.nan if first is None else float(self.run.column("uploads")[first])
        return round(uploads) if math.isfinite(uploads) else None


def seen_once(watched: Iterable[Watched]) -> list[Watched]:
    """Remove duplicates by run id: a run may come from its folder and from its broker.

    The first one counts, unless it is silent and another one is not.
    """
    found: dict[str, Watched] = {}
    for one in watched:
        name = one.run_id or one.key
        if name not in found or (found[name].silent and not one.silent):
            found[name] = one
    return list(found.values())


def uploads_to_target(uploads: Column, metric: Column, target: float, goal: str) -> float:
    """Predict the total uploads to the target from the last three quarters of the curve.

    Learning slows down: an accuracy grows about like the logarithm of the uploads, a loss falls about like a power of
    them. Infinite if the metric does not approach the target, or needs over twenty times the uploads so far. NaN with
    too few rows.
    """
    known = np.isfinite(metric) & np.isfinite(uploads) & (uploads > 0)
    logarithmic = goal == "min" and target > 0
    if logarithmic:
        known &= metric > 0
    x, y = np.log(uploads[known]), metric[known]
    recent = slice(int(len(x) * (1 - _SHARE_OF_ROWS)), None)
    x, y = x[recent], y[recent]
    if len(x) < _LEAST_ROWS or np.ptp(x) == 0:
        return math.nan
    aim = target
    if logarithmic:
        y, aim = np.log(y), math.log(target)
    slope = float(np.cov(x, y)[0, 1] / np.var(x, ddof=1))
    if slope == 0 or (slope > 0) != (goal == "max"):
        return math.inf
    at = float(x.mean() + (aim - y.mean()) / slope)
    return math.exp(at) if at <= x[-1] + math.log(_FAR) else math.inf


def seconds_to_target(watched: Watched) -> float:
    """Predict the seconds to the target from the curve so far and the current rate; NaN if unknown."""
    run, live = watched.run, watched.live
    target = run.number("target")
    if live is None or not watched.running or not live.updates_per_s > 0 or math.isnan(target) or not watched.rows:
        return math.nan
    if meets(float(run.column("metric")[-1]), target, run.goal):
        return 0.0
    needed = uploads_to_target(run.column("uploads"), run.column("metric"), target, run.goal)
    return max(0.0, needed - live.uploads) / live.updates_per_s


def seconds_left(live: LiveState, pace: Rate) -> float:
    """Predict the time to a run's end from its recent `pace`, else from all of it; NaN if unknown."""
    if live.share_done is None:
        return math.nan
    overall = live.share_done / live.wall_s if live.wall_s > 0 else 0.0
    rate = pace.mark(live.at, live.share_done, unknown=overall)
    return max(0.0, 1.0 - live.share_done) / rate if rate > 0 else math.nan


class Source(Protocol):
    """A source of runs."""

    async def look(self) -> Sequence[Watched]:
        """The current runs. Called about once a second."""
        ...

    @property
    def note(self) -> str:
        """A remark for the reader, such as a broker that does not answer; else empty."""
        ...


@final
class Columns:
    """The history of a running run: columns of numbers, and its staleness histogram."""

    def __init__(self) -> None:
        self._values = {name: array("d") for name in _COLUMNS}
        self.staleness: list[int] = []
        self.last: Mapping[str, Any] = {}

    def __len__(self) -> int:
        return len(self._values["metric"])

    def add(self, row: Mapping[str, Any]) -> None:
        for name, values in self._values.items():
            values.append(number_of(row.get(name)))
        self.staleness = add_staleness(self.staleness, row)
        self.last = row

    def halve(self) -> None:
        """Drop every second value, but keep the last."""
        self._values = {
            name: array("d", [*values[:-1:2], *values[-1:]]) if values else values
            for name, values in self._values.items()
        }

    def history(self) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Copies of the columns that have any number."""
        found = {name: np.array(values, dtype=np.float64) for name, values in self._values.items()}
        return {name: column for name, column in found.items() if name == "metric" or not np.isnan(column).all()}


@final
class FollowedRun:
    """A run directory. Every row is read once, unless the run starts again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identities: dict[str, tuple[int, ...]] = {}
        """By file. They change when the file changes: inode, time and size; the error number if it cannot be read."""
        self._content: dict[str, Any] = {}
        """By file; None if it is missing or damaged."""
        self._faults: dict[str, str] = {}
        self._begin()

    def _begin(self) -> None:
        self._columns, self._rows = Columns(), RowReader(self.path / "metrics.jsonl")
        self._identities.pop("metrics.jsonl", None)

    def _changed(self, name: str, read: Callable[[Path], object]) -> bool:
        """Read a file again if it has changed, and return whether it has."""
        try:
            found = (self.path / name).stat()
            identity: tuple[int, ...] = found.st_ino, found.st_mtime_ns, found.st_size
        except OSError as error:
            identity = (error.errno or 0,)
        if identity == self._identities.get(name):
            return False
        self._identities[name], self._content[name], self._faults[name] = identity, None, ""
        try:
            self._content[name] = read(self.path)
        except FileNotFoundError:
            pass
        except DataError as error:
            self._faults[name] = str(error)
        return True

    def _take_rows(self, _: Path) -> None:
        for row in self._rows.more():
            if "metric" in row:
                self._columns.add(row)
        if self._rows.fault:
            raise DataError(self._rows.fault)

    def _written_at(self, name: str) -> float:
        """When a file was last written, in seconds since 1970; zero if unknown."""
        identity = self._identities[name]
        return identity[1] / 1e9 if len(identity) > 1 else 0.0

    def look(self) -> Watched:
        """The run according to its files. `problem` describes damaged files."""
        if self._changed("config.toml", read_config) or self._rows.is_shorter():
            self._begin()
        self._changed("summary.json", read_summary)  # before the rows: all of them are there once it is
        self._changed("metrics.jsonl", self._take_rows)
        self._changed(LIVE_FILE, read_live)
        finished = self._content["summary.json"] is not None
        live = None if finished else self._content[LIVE_FILE]
        faults = [fault for name, fault in self._faults.items() if fault and not (finished and name == LIVE_FILE)]
        heard_at = max(map(self._written_at, ("metrics.jsonl", "config.toml"))) if live is None else live.at
        return Watched(
            str(self.path),
            self._run(live),
            live,
            max(0.0, time.time() - heard_at),
            "; ".join([*faults, *([live.problem] if live and live.problem else [])]),
            damaged=bool(faults) and not finished,
        )

    def _run(self, live: LiveState | None) -> Run:
        config, summary = self._content["config.toml"] or {}, self._content["summary.json"]
        history = self._columns.history()
        if summary is not None:
            return Run.of(self.path, config, summary, history)
        so_far = summary_so_far(self._columns.last, self._columns.staleness, config, live)
        return Run.of(self.path, config, so_far | ({} if live is None else _of_live(live)), history, finished=False)


def _of_live(live: LiveState) -> dict[str, Any]:
    """The driver's state of an unfinished run, under the names of a summary."""
    found = {name: getattr(live, name) for name in _LIVE} | {"server_steps": live.version}
    return found | ({"virtual_time_unit": live.virtual_time_unit} if live.virtual_time_unit else {})


@final
class Folders:
    """A source: all runs in some folders, including runs that appear later."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not os.path.isdir(folder):
                kind = "is not a folder" if os.path.lexists(folder) else "does not exist"
                raise DataError(f"{folder} {kind}: create it, or name another folder")
        self._folders = tuple(folders)
        self._followed: dict[str, FollowedRun] = {}
        """By real path, because a folder may be named twice."""

    @property
    def note(self) -> str:
        return ""

    async def look(self) -> Sequence[Watched]:
        return await asyncio.to_thread(self.look_now)

    def look_now(self) -> Sequence[Watched]:
        found: dict[str, Path] = {}
        for folder in self._folders:
            for path in find_runs(folder):
                found.setdefault(os.path.realpath(path), path)
        # Runs keep their first order, so that none changes its colour.
        kept = {place: followed for place, followed in self._followed.items() if place in found}
        self._followed = kept | {place: FollowedRun(path) for place, path in found.items() if place not in kept}
        return [followed.look() for followed in self._followed.values()]


def find_runs(folder: Path) -> list[Path]:
    """The run directories in a folder and its subfolders, or the folder itself. Skips moved-aside ones."""
    found: list[Path] = []
    seen = 0
    for place, names, files in os.walk(folder, followlinks=True):
        path = Path(place)
        depth = len(path.parts) - len(folder.parts)
        if "metrics.jsonl" in (*files, *names) and is_run_directory(path):
            if depth == 0 or not is_moved_aside(path):
                found.append(path)
            names.clear()
        elif depth == _DEEP or seen >= _MOST_FOLDERS:
            names.clear()
        else:
            names[:] = sorted(
                (name for name in names if not name.startswith(".")), key=lambda name: natural_order(Path(name))
            )
            seen += len(names)
    return found


@final
class Reported:
    """A source: runs known by their reported states, which are their only history."""

    def __init__(self, where: str) -> None:
        """`where`: the origin of the reports, such as a broker's address."""
        self._where = where
        self._columns: dict[str, Columns] = {}
        self._states: dict[str, tuple[LiveState, float]] = {}
        self.note = ""

    def report(self, name: str, live: LiveState, silent_s: float) -> None:
        """Add a run's state. `silent_s`: its age in seconds."""
        columns = self._columns.setdefault(name, Columns())
        if columns.last and live.uploads < columns.last["uploads"]:
            columns = self._columns[name] = Columns()  # the run started again
        row = {key: getattr(live, key, None) for key in _COLUMNS}
        if live.metric is not None and any(row[key] != columns.last.get(key) for key in ("metric", "uploads")):
            columns.add(row)
        if len(columns) > _MOST_REPORTED:
            columns.halve()
        self._states[name] = live, time.time() - silent_s

    def forget_all_but(self, names: Sequence[str]) -> None:
        """Remove all other runs."""
        for gone in self._states.keys() - set(names):
            del self._states[gone]
            self._columns.pop(gone, None)

    async def look(self) -> Sequence[Watched]:
        return [self._watched(name, *state) for name, state in self._states.items()]

    def _watched(self, name: str, live: LiveState, heard_at: float) -> Watched:
        summary = {**_of_live(live), "name": name, "metric_final": live.metric, "status": live.status}
        finished = live.status in ("finished", "diverged")
        run = Run(Path(self._where) / name, name, {}, summary, self._columns[name].history(), finished)
        return Watched(f"{self._where}/{name}", run, live, max(0.0, time.time() - heard_at), live.problem)
