"""A run's directory: config.toml, metrics.jsonl, summary.json, model.safetensors; checkpoint and live.json meanwhile.

Files are written atomically: a killed run leaves the old file or the new one. A directory with a summary is a finished
run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeAlias, final

import safetensors.numpy

from qafel.config import Config
from qafel.config.sections import read_table
from qafel.errors import ConfigError, DataError, OutputError
from qafel.files import Lock, read_regular, write_atomically, writing
from qafel.params import Layout, Vector
from qafel.runs.live import LIVE_FILE, LiveState, Summary, read_summary, write_live
from qafel.runs.progress import Row

FORMAT = 2
"""Version of the directory's format, in the first line of config.toml."""
CHECKPOINT = Path("checkpoint/checkpoint.safetensors")
_HEADER = re.compile(r"# qafel run directory, format (\d{1,9})\n")

State: TypeAlias = Literal["absent", "other", "damaged", "interrupted", "other limits", "finished"]
"""The state of a directory for a run. "other": it holds another run; "other limits": this run with another end."""

_LABELS = ("name", "description")
_CONFIG_BYTES = 1 << 20
_FLUSH_S = 0.5  # the longest time until other processes can read a row


@final
class RunDirectory:
    """A context with exclusive write access to a run directory, and a listener of the run."""

    def __init__(self, path: Path) -> None:
        """Prepare the directory `path`, which need not exist. Nothing but a lock is written before `begin`."""
        self.path = path
        whole = Path(os.path.realpath(path))
        # The lock is beside the folder, which may be moved aside; inside, if the parent is not writable, as with a
        # mounted volume.
        inside = os.path.exists(whole.parent) and not os.access(whole.parent, os.W_OK)
        self._lock = Lock(
            whole / ".lock" if inside else whole.parent / f".{whole.name}.lock",
            OutputError(f"another process writes to {path}: wait until it ends, or choose another `out`"),
            beside=path,
        )
        self._metrics: IO[bytes] | None = None
        self._last: LiveState | None = None
        self._flushed_s = 0.0

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._metrics is not None:
                with writing(str(self.path / "metrics.jsonl")):
                    self._metrics.close()
        finally:
            self._metrics = None
            self._lock.__exit__()

    def begin(self, toml: str, *, keep_metrics_bytes: int | None = 0) -> None:
        """Open the directory for a run with the configuration `toml`.

        `keep_metrics_bytes`: the bytes of metrics that a resumed run keeps; None keeps every complete row. A new run
        removes the old checkpoint and model, so that a resume never mixes two runs.
        """
        path = self.path
        with writing(f"results to {path}", "; choose another folder, `out`"):
            path.mkdir(parents=True, exist_ok=True)
            for name in ("summary.json", LIVE_FILE):
                (path / name).unlink(missing_ok=True)
            if keep_metrics_bytes == 0:
                for old in (CHECKPOINT, "model.safetensors", "metrics.jsonl"):
                    (path / old).unlink(missing_ok=True)
            # First of all files: it marks the folder as a run's, should the process be killed here.
            write_atomically(path / "config.toml", f"# qafel run directory, format {FORMAT}\n{toml}".encode())
            self._metrics = (path / "metrics.jsonl").open("a+b")
            if keep_metrics_bytes is None:
                self._metrics.seek(0)
                keep_metrics_bytes = self._metrics.read().rfind(b"\n") + 1
            self._metrics.truncate(keep_metrics_bytes)
            self._metrics.seek(0, os.SEEK_END)  # without it, `metrics_bytes` returns the old length before the next row

    def on_row(self, row: Row) -> None:
        """Append a row to the metrics."""
        assert self._metrics is not None
        with writing(f"the evaluation of version {row.version}"):
            self._metrics.write(json.dumps(row.to_json(), allow_nan=False).encode() + b"\n")
            if row.wall_s - self._flushed_s >= _FLUSH_S:
                self._flushed_s = row.wall_s
                self._metrics.flush()

    def on_live(self, state: LiveState) -> None:
        """Publish the live state. A full disk raises at the next row, not here."""
        self._last = state
        with suppress(OutputError):
            self.flush()
        write_live(self.path, state)

    def on_end(self, summary: Summary | None) -> None:
        """Write the summary and remove the live state. Without a summary, mark the live state as stopped."""
        self.flush()
        if summary is not None:
            write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
            with suppress(OSError):
                (self.path / LIVE_FILE).unlink(missing_ok=True)
        elif self._last is not None:
            write_live(self.path, replace(self._last, status="stopped", at=time.time(), updates_per_s=0.0))

    def flush(self) -> None:
        """Pass all rows to the operating system."""
        if self._metrics is not None:
            with writing(str(self.path / "metrics.jsonl")):
                self._metrics.flush()

    def metrics_bytes(self) -> int:
        """Return the length of the metrics after writing all rows."""
        assert self._metrics is not None
        self.flush()
        return self._metrics.tell()

    def write_model(self, model: Vector, layout: Layout) -> None:
        """Write model.safetensors."""
        write_atomically(self.path / "model.safetensors", model_file(model, layout))

    def move_aside(self, rows_too: bool = True) -> Path | None:
        """Move a run with results to another name and return it. Raises `OutputError` for anything but a run.

        `rows_too`: rows without a checkpoint are results too, and are not deleted.
        """
        path = self.path
        unfinished = {".config.toml.part", ".lock"}  # a process killed in `begin` leaves no more than these
        if not path.exists() or (path.is_dir() and {inside.name for inside in path.iterdir()} <= unfinished):
            return None
        if not (path / "config.toml").exists():
            raise OutputError(f"{path} is not a run directory: move it, or choose another `out`")
        if not _has_results(path) and not (rows_too and _has_rows(path)):
            shutil.rmtree(path)  # it ended before its first checkpoint
            return None
        names = (path.with_name(f"{path.name}.old-{number}") for number in itertools.count(1))
        moved = next(name for name in names if not name.exists())
        try:
            path.rename(moved)
        except OSError as error:
            raise OutputError(f"cannot move {path} aside: {error.strerror}; choose another `out`") from None
        return moved


def model_file(model: Vector, layout: Layout) -> bytes:
    """Return a model as the content of a safetensors file with the layout's tensors."""
    return bytes(safetensors.numpy.save({name: tensor.copy() for name, tensor in layout.split(model).items()}))


def settings_of(config: Config) -> dict[str, Any]:
    """Return the configuration as the table in its run directory, with the digest of the start model."""
    table = config.model_dump(exclude_none=True)
    if config.start is not None:
        table["start"] = config.start.pinned().model_dump()
    return table


def by_path(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten nested tables: each value under its path, such as algorithm.client_lr."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= by_path(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def read_settings(toml: str, source: str) -> dict[str, Any]:
    """Return the settings in a run directory's `toml`. `source` names the text in errors.

    Defaults are filled in, unless a Python program made the run.
    """
    table = read_table(toml, source)
    return table if table.get("made_in") == "python" else settings_of(Config.from_dict(table, source))


def same_run(one: Mapping[str, Any], other: Mapping[str, Any], ignoring: Container[str] = ()) -> bool:
    """Return whether two tables of settings give the same results.

    Names, descriptions, the path of the start model and the keys in `ignoring` do not matter. A recipe whose task has
    not been made lacks the digest of the task, so the digest matters only if both tables have it.
    """
    known = all(isinstance(table.get("task"), Mapping) and "digest" in table["task"] for table in (one, other))

    def part(key: str, value: Any) -> Any:
        if key == "start" and isinstance(value, Mapping):
            return value["sha256"]
        if key == "task" and isinstance(value, Mapping) and not known:
            return {name: setting for name, setting in value.items() if name != "digest"}
        return value

    first, second = (
        {key: part(key, value) for key, value in table.items() if key not in _LABELS and key not in ignoring}
        for table in (one, other)
    )
    return first == second


def state_of(path: Path, settings: Config | Mapping[str, Any]) -> State:
    """Return the state of the directory `path` for the run of these settings: a configuration or its table."""
    wanted = settings_of(settings) if isinstance(settings, Config) else settings
    if not _has_results(path) and not _has_rows(path):
        return "absent"
    try:
        found = read_settings(read_toml(path), str(path / "config.toml"))
        if not same_run(found, wanted, {"stop"}):
            return "other"
    except (FileNotFoundError, ConfigError, DataError):
        return "other"
    if not same_run(found, wanted):
        return "other limits"
    if has_summary(path):
        return "finished"
    resumable = (path / CHECKPOINT).is_file() or (path / "state").is_dir()
    return "interrupted" if resumable else "damaged" if os.path.exists(path / "summary.json") else "absent"


def read_toml(path: Path) -> str:
    """Return the text of a run directory's config.toml.

    Raises `FileNotFoundError`, or `DataError` if the file is damaged or of a newer format.
    """
    file = path / "config.toml"
    try:
        toml = read_regular(file, _CONFIG_BYTES).decode()
    except UnicodeDecodeError as error:
        raise damaged_config(path, error) from None
    header = _HEADER.match(toml)
    if header is not None and int(header[1]) > FORMAT:
        raise DataError(
            f"{path} is a run directory of format {header[1]}, this version reads up to {FORMAT}: upgrade qafel"
        )
    return toml


def damaged_config(path: Path, why: object) -> DataError:
    return DataError(f"{path / 'config.toml'} is damaged ({why}): restore it, or repeat the run")


def _has_results(path: Path) -> bool:
    return any(os.path.exists(path / name) for name in ("summary.json", CHECKPOINT, "state"))


def _has_rows(path: Path) -> bool:
    """Return whether anything was evaluated, which happens before the first checkpoint."""
    try:
        return (path / "metrics.jsonl").stat().st_size > 0
    except OSError:
        return False


def has_summary(path: Path) -> bool:
    """Return whether the run in the directory `path` has ended."""
    try:
        read_summary(path)
    except (FileNotFoundError, DataError):
        return False
    return True
