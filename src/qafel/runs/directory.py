"""A run's directory: config.toml, metrics.jsonl, summary.json and model.safetensors.

Files that are only useful whole are written beside their place and moved there, so that a killed run leaves the old
file or the new one, never half of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import safetensors
import safetensors.numpy
import xxhash

from qafel.algorithm import Checkpoint
from qafel.errors import DataError, OutputError
from qafel.files import write_atomically
from qafel.params import Layout, Vector


@final
class RunDirectory:
    """A context in which one run writes its results."""

    def __init__(self, path: Path, *, keep_metrics_bytes: int = 0) -> None:
        """Open a directory for writing; a resumed run keeps the first part of its metrics."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "summary.json").unlink(missing_ok=True)
            self._metrics = (path / "metrics.jsonl").open("ab")
            self._metrics.truncate(keep_metrics_bytes)
            self._metrics.seek(0, os.SEEK_END)  # else `metrics_bytes` says the old length until a row is written
        except OSError as error:
            raise OutputError(
                f"cannot write results to {path}: {error.strerror}; choose another folder with --out"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.close()

    def write_config(self, toml: str) -> None:
        write_atomically(self.path / "config.toml", toml.encode())

    def append_row(self, row: Mapping[str, Any]) -> None:
        self._metrics.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def metrics_bytes(self) -> int:
        """How long the metrics are, all of them written out."""
        self._metrics.flush()
        return self._metrics.tell()

    def write_model(self, model: Vector, layout: Layout) -> None:
        tensors = {name: tensor.copy() for name, tensor in layout.split(model).items()}
        write_atomically(self.path / "model.safetensors", safetensors.numpy.save(tensors))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Last of all: a directory with a summary is a finished run."""
        self._metrics.flush()
        write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


# A checkpoint as one file: arrays in safetensors, values as JSON in its header; written atomically, read with care.


_DIGEST_BYTES = 8


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint; a process killed meanwhile leaves the one before."""
    data = safetensors.numpy.save(checkpoint.arrays, metadata={"values": json.dumps(checkpoint.values)})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, xxhash.xxh3_64_digest(data) + data)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read it back; what is missing or damaged is named."""
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no checkpoint at {path}: run without --resume") from None
    except OSError as error:
        raise DataError(f"checkpoint {path} cannot be read: {error.strerror}") from None
    data = whole[_DIGEST_BYTES:]
    if len(whole) < _DIGEST_BYTES or xxhash.xxh3_64_digest(data) != whole[:_DIGEST_BYTES]:
        raise DataError(f"checkpoint {path} is damaged (its checksum differs): run with --overwrite")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return Checkpoint(safetensors.numpy.load(data), json.loads(header["__metadata__"]["values"]))
