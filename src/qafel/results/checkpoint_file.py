"""A checkpoint as one file: arrays in safetensors, values as JSON in its header; written atomically, read with care."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors
import safetensors.numpy
import xxhash

from qafel.algorithm import Checkpoint
from qafel.errors import DataError
from qafel.results.run_directory import write_atomically

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
