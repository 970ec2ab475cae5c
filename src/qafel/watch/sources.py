"""Where runs are seen: in folders, which are followed file by file; or told by somebody who hears of their states."""

from __future__ import annotations

import asyncio
import json
import os
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

import numpy as np

from qafel.errors import DataError
from qafel.runs.live import LiveState, read_live
from qafel.runs.reading import (
    Run,
    is_moved_aside,
    natural_order,
    number_of,
    read_config,
    read_summary,
    summary_so_far,
)
from qafel.watch.watched import Watched

_DEEP = 3  # folders below the given one
_MOST_FOLDERS = 5000
_MOST_TOLD = 4000
_COLUMNS = (
    *("metric", "uploads", "version", "virtual_time", "hidden_state_lag", "wall_s"),
    *("upload_bytes_total", "broadcast_bytes_total", "received_bytes_total"),
)


class Source(Protocol):
    """Sees runs."""

    async def look(self) -> Sequence[Watched]:
        """The runs as they are now; called about once a second."""
        ...

    @property
    def note(self) -> str:
        """What a reader should know besides, such as that a broker does not answer; empty if nothing."""
        ...


@final
class Columns:
    """The history of a run that goes on: numbers by column, and how stale its updates were."""

    def __init__(self) -> None:
        self._values = {name: array("d") for name in _COLUMNS}
        self.staleness: list[int] = []
        self.last: Mapping[str, Any] = {}

    def __len__(self) -> int:
        return len(self._values["metric"])

    def add(self, row: Mapping[str, Any]) -> None:
        for name, values in self._values.items():
            values.append(number_of(row.get(name)))
        self.last = row

    def add_staleness(self, counts: object) -> None:
        if isinstance(counts, list) and all(isinstance(count, int) for count in counts):
            self.staleness = [a + b for a, b in zip_longest(self.staleness, counts, fillvalue=0)]

    def halve(self) -> None:
        """Drop every second value but the last."""
        self._values = {
            name: array("d", [*values[:-1:2], *values[-1:]]) if values else values
            for name, values in self._values.items()
        }

    def history(self) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """The columns that hold any number, as arrays of their own."""
        found = {name: np.array(values, dtype=np.float64) for name, values in self._values.items()}
        return {name: column for name, column in found.items() if name == "metric" or not np.isnan(column).all()}


_Identity: TypeAlias = tuple[int, int, int]


def _identity(file: Path) -> _Identity | None:
    """What changes when a file is written again; None if there is none."""
    with suppress(OSError):
        found = file.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


@final
class FollowedRun:
    """One run directory, of which every byte is read once, unless the run begins anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config_identity: _Identity | None = None
        self._summary_identity: _Identity | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._columns = Columns()
        self._read_bytes = 0
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] | None = None

    def look(self) -> Watched:
        """The run as its files say it now. One that is damaged is told of by its `problem`."""
        problem = ""
        try:
            self._look_for_a_new_begin()
            self._read_rows()
            self._read_summary()
        except DataError as error:
            problem = str(error)
        live = None if self._summary is not None else read_live(self.path)
        return Watched(
            str(self.path), self._run(live), live, self._heard_s(live), problem or (live.problem if live else "")
        )

    def _look_for_a_new_begin(self) -> None:
        identity, size = _identity(self.path / "config.toml"), _identity(self.path / "metrics.jsonl")
        if identity != self._config_identity or (size or (0, 0, 0))[2] < self._read_bytes:
            self._begin_anew()
            self._config_identity = identity
            self._config = read_config(self.path)

    def _read_rows(self) -> None:
        """Take up the rows that are new and whole; what cannot be read is for the report to complain of."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and "metric" in row:
                    self._columns.add(row)
                    self._columns.add_staleness(row.get("staleness_histogram"))

    def _read_summary(self) -> None:
        identity = _identity(self.path / "summary.json")
        if identity != self._summary_identity:
            self._summary_identity = identity
            self._summary = read_summary(self.path / "summary.json")

    def _run(self, live: LiveState | None) -> Run:
        summary = self._summary
        if summary is None:
            summary = summary_so_far(self._columns.last, self._config) | {
                "staleness_histogram": self._columns.staleness,
                **({"virtual_time_unit": "s"} if (self.path / "state").is_dir() else {}),
                **(_of_live(live) if live is not None else {}),
            }
        name = str(summary.get("name") or self._config.get("name") or self.path.resolve().name)
        return Run(self.path, name, self._config, summary, self._columns.history(), self._summary is not None)

    def _heard_s(self, live: LiveState | None) -> float:
        """Since the last word of its driver; without any, since its files changed."""
        changed = [
            found[1] / 1e9 for name in ("metrics.jsonl", "config.toml") if (found := _identity(self.path / name))
        ]
        return max(0.0, time.time() - (live.at if live is not None else max(changed, default=0.0)))


def _of_live(live: LiveState) -> dict[str, Any]:
    """What only the driver of an unfinished run knows, under the names of a summary."""
    told = {
        "metric_name": live.metric_name,
        "metric_goal": live.metric_goal,
        "target": live.target,
        "staleness_histogram": live.staleness_histogram,
        "upload_bytes_total": live.upload_bytes_total,
        "broadcast_bytes_total": live.broadcast_bytes_total,
        "uploads": live.uploads,
        "server_steps": live.version,
    }
    return told | ({"virtual_time_unit": live.virtual_time_unit} if live.virtual_time_unit else {})


@final
class Folders:
    """All runs in some folders, and such as appear there later. It is a source."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                kind = "is not a folder" if folder.exists() else "does not exist"
                raise DataError(f"{folder} {kind}: name run directories, or folders in which runs are or will be")
        self._folders = tuple(folders)
        self._followed: dict[Path, FollowedRun] = {}

    @property
    def note(self) -> str:
        return ""

    async def look(self) -> Sequence[Watched]:
        return await asyncio.to_thread(self.look_now)

    def look_now(self) -> Sequence[Watched]:
        found = dict.fromkeys(run for folder in self._folders for run in find_runs(folder))
        # Runs keep the order in which they were seen first, so that none changes its colour.
        kept = {path: followed for path, followed in self._followed.items() if path in found}
        self._followed = kept | {path: FollowedRun(path) for path in found if path not in kept}
        return [followed.look() for followed in self._followed.values()]


def find_runs(folder: Path) -> list[Path]:
    """The run directories in a folder and in folders in it; or the folder, if it is one. Moved-aside ones are not."""
    found: list[Path] = []
    level, seen = [folder], 0
    for depth in range(_DEEP + 1):
        below: list[Path] = []
        for path in level:
            if _is_run(path):
                if depth == 0 or not is_moved_aside(path):
                    found.append(path)
            elif depth < _DEEP and seen < _MOST_FOLDERS:
                children = _folders_in(path)
                seen += len(children)
                below += children
        level = below
    return found


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file() and (path / "metrics.jsonl").is_file()


def _folders_in(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = [entry.path for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(map(Path, names), key=natural_order)


@final
class Told:
    """Runs of which somebody tells: their states as they come are all their history. It is a source."""

    def __init__(self, where: str) -> None:
        """Runs at `where`, such as a broker's address, which tells them from others of the same name."""
        self._where = where
        self._columns: dict[str, Columns] = {}
        self._states: dict[str, tuple[LiveState, float, str]] = {}
        self.note = ""

    def tell(self, name: str, live: LiveState, silent_s: float, problem: str = "") -> None:
        """A run's state, and for how long its driver has been silent; `problem` if there is more to say."""
        columns = self._columns.setdefault(name, Columns())
        if columns.last and live.uploads < columns.last["uploads"]:
            columns = self._columns[name] = Columns()  # it began anew
        row = {key: getattr(live, key, None) for key in _COLUMNS}
        if live.metric is not None and any(row[key] != columns.last.get(key) for key in ("metric", "uploads")):
            columns.add(row)
        if len(columns) > _MOST_TOLD:
            columns.halve()
        self._states[name] = live, time.time() - silent_s, problem or live.problem

    def forget_all_but(self, names: Sequence[str]) -> None:
        """Leave out runs that are no longer there."""
        for gone in self._states.keys() - set(names):
            del self._states[gone]
            self._columns.pop(gone, None)

    async def look(self) -> Sequence[Watched]:
        return [self._watched(name, *state) for name, state in self._states.items()]

    def _watched(self, name: str, live: LiveState, heard_at: float, problem: str) -> Watched:
        summary = {**_of_live(live), "name": name, "metric_final": live.metric, "status": live.status}
        finished = live.status in ("finished", "diverged")
        run = Run(Path(self._where) / name, name, {}, summary, self._columns[name].history(), finished)
        return Watched(f"{self._where}/{name}", run, live, max(0.0, time.time() - heard_at), problem)
