"""Where datasets lie: under $QAFEL_DATA, or under ~/.cache/qafel."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from qafel.errors import DataError


def data_folder(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all datasets: the one given, else $QAFEL_DATA, else ~/.cache/qafel."""
    return Path(data or os.environ.get("QAFEL_DATA") or Path.home() / ".cache" / "qafel").expanduser()


def cache_folder(data: Path) -> Path:
    """Where compact copies of the datasets are kept: $QAFEL_CACHE, else a folder beside the data."""
    return Path(os.environ.get("QAFEL_CACHE") or data / "cache").expanduser()


def require_file(path: Path, dataset: str) -> Path:
    """The path itself, if there is such a file."""
    if not path.is_file():
        raise DataError(
            f"{dataset}: {path} is missing; put the file there, or set QAFEL_DATA to the folder that holds {dataset}"
        )
    return path


def require_md5(path: Path, dataset: str, expected: str) -> None:
    """Raise unless the file's MD5 sum is the one its authors published."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != expected:
        raise DataError(
            f"{dataset}: {path} is damaged: its md5 is {found}, expected {expected}; delete it and download it again"
        )
