"""Files that last: atomic writes, folder locks, checksummed files."""

from __future__ import annotations

import os
from pathlib import Path

from qafel.errors import OutputError


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file by new content, or leave it as it was."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Make the names of new files last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
