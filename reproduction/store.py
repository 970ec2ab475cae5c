"""Where finished runs lie: as run directories, and as files of a few kB that a repository can hold.

A stored run, `NAME-seedN.json.gz`, holds its configuration, its summary and the columns that entries read. Model,
checkpoint and other columns are left out.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from qafel.config import Config
from qafel.errors import ConfigError, DataError, OutputError
from qafel.runs import History, Run
from qafel.search import RunSpec, unfinished

ALWAYS = ("version", "uploads", "virtual_time", "upload_bytes_total", "broadcast_bytes_total", "metric")
COLUMNS = (*ALWAYS, "gradient_norm_squared", "loss", "received_bytes_total")
"""The columns that entries read. Not every run has the last three."""


@final
@dataclass(frozen=True, slots=True)
class Store:
    """Finished runs: directories in the folder `runs`, and stored runs in the folder `results`, if there is one."""

    runs: Path
    results: Path | None = None

    def unfinished(self, planned: Sequence[RunSpec]) -> list[RunSpec]:
        """The planned runs that are neither finished in `runs` nor stored in `results`, each once."""
        return [run for run in unfinished(planned, self.runs) if not self._is_stored(run)]

    def finished(self, planned: Sequence[RunSpec]) -> list[RunSpec]:
        """The planned runs that can be loaded."""
        missing = {run.folder for run in self.unfinished(planned)}
        return [run for run in planned if run.folder not in missing]

    def load(self, planned: Sequence[RunSpec]) -> list[tuple[RunSpec, Run]]:
        """The planned runs that are finished, each with what it recorded; DataError if one is damaged."""
        stored = {run.folder for run in unfinished(planned, self.runs)}
        return [
            (run, self._read(run) if run.folder in stored else whole_run(Run.load(self.runs / run.folder)))
            for run in self.finished(planned)
        ]

    def keep(self, planned: Sequence[RunSpec]) -> None:
        """Store those of the planned runs that are finished in `runs` and not stored yet."""
        if self.results is None:
            return
        missing = {run.folder for run in unfinished(planned, self.runs)}
        for run in planned:
            if run.folder not in missing and not self._is_stored(run):
                write_file(self._file(run), _packed(self.runs / run.folder))

    def require_writable(self) -> None:
        """Raise OutputError if runs cannot be stored: before they are made, not after."""
        if self.results is None:
            return
        try:
            self.results.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.results):
                pass
        except OSError as error:
            reason = f"Cannot write to {self.results}: {error.strerror}."
            raise OutputError(f"{reason} Choose another folder with --results.") from None

    def check(self, planned: Iterable[RunSpec]) -> None:
        """Raise DataError if a stored run is damaged or has other settings than the planned one."""
        if self.results is not None and not self.results.is_dir():
            raise DataError(f"{self.results} is not a folder of stored runs.")
        for run in planned:
            if self._is_stored(run):
                self._read(run)

    def _file(self, run: RunSpec) -> Path:
        assert self.results is not None
        return self.results / f"{run.folder}.json.gz"

    def _is_stored(self, run: RunSpec) -> bool:
        return self.results is not None and self._file(run).exists()

    def _read(self, run: RunSpec) -> Run:
        file = self._file(run)
        try:
            content = json.loads(gzip.decompress(file.read_bytes()))
            config = Config.from_toml(content["config.toml"], str(file))
            history = {key: np.array(values, dtype=np.float64) for key, values in content["columns"].items()}
            if len({len(column) for column in history.values()}) != 1:
                raise ValueError("its columns differ in length")
            summary = dict(json.loads(content["summary.json"]))
            found = whole_run(Run.of(file, config.model_dump(exclude_none=True), summary, history))
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, zlib.error) as error:
            raise _damaged(file, error) from None
        except (RecursionError, ConfigError, DataError) as error:
            raise _damaged(file, error) from None
        if _settings(config) != _settings(run.config):
            raise DataError(f"{file} has other settings than {run.folder} has now. Delete it to repeat the run.")
        return found


def _damaged(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} is damaged ({error}). Restore it, or delete it to repeat the run.")


def _settings(config: Config) -> dict[str, Any]:
    return config.model_dump(exclude={"name", "description"})


def whole_run(run: Run) -> Run:
    """The run itself; DataError if its rows do not reach the end that its summary states."""
    if missing := [name for name in ALWAYS if name not in run.history]:
        raise DataError(f"{run.path} is damaged: it has no {', '.join(missing)}.")
    ended, last = run.number("uploads"), float(run.column("uploads")[-1])
    if run.summary.get("status") == "finished" and ended != last:
        raise DataError(f"{run.path} is damaged: its rows end after {last:,g} uploads, its summary after {ended:,g}.")
    return run


def _packed(path: Path) -> bytes:
    """One JSON object, compressed; the same run gives the same bytes."""
    whole_run(Run.load(path))
    rows = History.load(path).rows
    columns = {key: [row.get(key) for row in rows] for key in COLUMNS if any(key in row for row in rows)}
    texts = {name: (path / name).read_text(encoding="utf-8") for name in ("config.toml", "summary.json")}
    content = json.dumps(texts | {"columns": columns}, ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(content.encode(), 9, mtime=0)


def write_file(path: Path, content: bytes) -> None:
    """Replace the file `path`, all of it or nothing; its folder is made."""
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"Cannot write {path}: {error.strerror}.") from None
