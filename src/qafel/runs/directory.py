"""A run's directory: config.toml, metrics.jsonl, summary.json, model.safetensors; on the way checkpoint and live.json.

Files that are only useful whole are written beside their place and moved there, so that a killed run leaves the old
file or the new one, never half of one. A directory with a summary is a finished run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeAlias, final

import safetensors
import safetensors.numpy
from pydantic import TypeAdapter

from qafel.algorithm import Checkpoint
from qafel.config import Config
from qafel.config.sections import read_table
from qafel.errors import ConfigError, DataError, OutputError
from qafel.files import Lock, read_checked, read_regular, write_atomically, write_checked, writing
from qafel.params import Layout, Vector
from qafel.runs.live import LIVE_FILE, LiveFile, LiveState
from qafel.runs.progress import Row
from qafel.runs.summary import Summary, read_summary

FORMAT = 2
"""Version of the directory's format; 1 did not state it. It is the first line of config.toml."""
CHECKPOINT = Path("checkpoint/checkpoint.safetensors")
_CHECKPOINT_FORMAT = 2
_CHECKPOINT_VALUES = TypeAdapter(dict[str, Any])
_HEADER = re.compile(r"# qafel run directory, format (\d{1,9})\n")

State: TypeAlias = Literal["absent", "other", "damaged", "interrupted", "other limits", "finished"]
"""How far a directory is with a run; "other": it is of another one, "other limits": of this one but for its end."""

_LABELS = ("name", "description")
_CONFIG_BYTES = 1 << 20
_FLUSH_S = 0.5  # as long a row may wait before others can read it


@final
class RunDirectory:
    """A context in which one process, and no other, writes a run's results. It is a listener of the run."""

    def __init__(self, path: Path) -> None:
        """The directory at `path`, which need not exist yet; nothing is written before `begin`, but for a lock."""
        self.path = path
        whole = Path(os.path.realpath(path))
        # The lock lies beside the folder, which may itself be moved aside; or in it, if its parent cannot be written,
        # as with a mounted volume.
        inside = os.path.exists(whole.parent) and not os.access(whole.parent, os.W_OK)
        self._lock = Lock(
            whole / ".lock" if inside else whole.parent / f".{whole.name}.lock",
            OutputError(f"another process is at work in {path}: wait for its end, or choose another `out`"),
            beside=path,
        )
        self._metrics: IO[bytes] | None = None
        self._live = LiveFile(path)
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
        """Open the directory for a run with that configuration.

        A resumed run keeps the first `keep_metrics_bytes` of its metrics; None keeps every whole row. A new one removes
        checkpoint and model of a run before: killed early, it must not be resumed from the one or stand beside the
        other.
        """
        path = self.path
        with writing(f"results to {path}", "; choose another folder, `out`"):
            path.mkdir(parents=True, exist_ok=True)
            for name in ("summary.json", LIVE_FILE):
                (path / name).unlink(missing_ok=True)
            if keep_metrics_bytes == 0:
                for old in (CHECKPOINT, "model.safetensors"):
                    (path / old).unlink(missing_ok=True)
            self._metrics = (path / "metrics.jsonl").open("a+b")
            if keep_metrics_bytes is None:
                self._metrics.seek(0)
                keep_metrics_bytes = self._metrics.read().rfind(b"\n") + 1
            self._metrics.truncate(keep_metrics_bytes)
            self._metrics.seek(0, os.SEEK_END)  # else `metrics_bytes` says the old length until a row is written
        write_atomically(path / "config.toml", f"# qafel run directory, format {FORMAT}\n{toml}".encode())

    def on_row(self, row: Row) -> None:
        """Append a row to the metrics."""
        assert self._metrics is not None
        with writing(f"the evaluation of version {row.version}"):
            self._metrics.write(json.dumps(row.to_json(), allow_nan=False).encode() + b"\n")
            if row.wall_s - self._flushed_s >= _FLUSH_S:
                self._flushed_s = row.wall_s
                self._metrics.flush()

    def on_live(self, state: LiveState) -> None:
        """Say how the run stands now, to whoever watches the directory. A full disk is for the next row to notice."""
        with suppress(OutputError):
            self.flush()
        self._live.write(state)

    def on_end(self, summary: Summary | None) -> None:
        """Write the summary, last of all."""
        self.flush()
        if summary is not None:
            write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        self._live.end(finished=summary is not None)

    def flush(self) -> None:
        """Hand all rows to the system."""
        if self._metrics is not None:
            with writing(str(self.path / "metrics.jsonl")):
                self._metrics.flush()

    def metrics_bytes(self) -> int:
        """How long the metrics are, all of them written out."""
        assert self._metrics is not None
        self.flush()
        return self._metrics.tell()

    def write_model(self, model: Vector, layout: Layout) -> None:
        """Write model.safetensors."""
        write_atomically(self.path / "model.safetensors", model_file(model, layout))

    def move_aside(self, rows_too: bool = True) -> Path | None:
        """Move a run with results, or half of them, out of the way; return where to. Refuse what is not a run.

        Rows of a run that was killed before its first checkpoint are results, unless `rows_too` is false.
        """
        path = self.path
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return None
        if not (path / "config.toml").exists():
            raise OutputError(f"{path} holds something else than a run: move it away, or choose another `out`")
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
    """A model as a safetensors file, a tensor under each name of its layout."""
    return bytes(safetensors.numpy.save({name: tensor.copy() for name, tensor in layout.split(model).items()}))


def settings_of(config: Config) -> dict[str, Any]:
    """A configuration as the table that its run directory states, with the digest of the model that it starts from."""
    table = config.model_dump(exclude_none=True)
    if config.start is not None:
        table["start"] = config.start.pinned().model_dump()
    return table


def by_path(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """What nested tables hold, each value under its path, such as algorithm.client_lr."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= by_path(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def read_settings(toml: str, source: str) -> dict[str, Any]:
    """The table of settings in a run directory's `toml`, with defaults filled in unless a Python program made the run.

    `source` names the text in errors.
    """
    table = read_table(toml, source)
    return table if table.get("made_in") == "python" else settings_of(Config.from_dict(table, source))


def same_run(one: Mapping[str, Any], other: Mapping[str, Any], ignoring: Container[str] = ()) -> bool:
    """Whether two tables of settings give the same results: names and descriptions do not matter, nor `ignoring`.

    Nor does it matter where the model to start from lies, if it is the same one.
    """
    first, second = (
        {
            key: value["sha256"] if key == "start" and isinstance(value, Mapping) else value
            for key, value in table.items()
            if key not in _LABELS and key not in ignoring
        }
        for table in (one, other)
    )
    return first == second


def state_of(path: Path, settings: Config | Mapping[str, Any]) -> State:
    """How far the directory `path` is with the run of these settings: a configuration, or its table."""
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
    goes_on = (path / CHECKPOINT).is_file() or (path / "state").is_dir()
    return "interrupted" if goes_on else "damaged" if os.path.exists(path / "summary.json") else "absent"


def read_toml(path: Path) -> str:
    """The text of a run directory's config.toml; `FileNotFoundError` if there is none.

    `DataError` if it is damaged, or of a newer version, whose files may mean something else.
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
    """Whether anything was measured: a run that was killed before its first checkpoint has rows, too."""
    try:
        return (path / "metrics.jsonl").stat().st_size > 0
    except OSError:
        return False


def has_summary(path: Path) -> bool:
    """Whether the run in the directory `path` has come to its end."""
    try:
        read_summary(path)
    except (FileNotFoundError, DataError):
        return False
    return True


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint file `path`; a process killed meanwhile leaves the one before.

    Arrays are in safetensors, values as JSON in its header, and a checksum is over all of it.
    """
    data = safetensors.numpy.save(checkpoint.arrays, metadata={"values": json.dumps(checkpoint.values)})
    write_checked(path, "checkpoint", _CHECKPOINT_FORMAT, data)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file; `DataError` says that it is missing, damaged or of another version."""
    data = read_checked(path, "checkpoint", _CHECKPOINT_FORMAT)
    try:
        arrays = safetensors.numpy.load(data)
        header: Mapping[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return Checkpoint(arrays, _CHECKPOINT_VALUES.validate_json(header["__metadata__"]["values"]))
    except (safetensors.SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}): its content is not a checkpoint") from None
