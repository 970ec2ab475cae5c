"""Where datasets lie: under $QAFEL_DATA, or under ~/.cache/qafel."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

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


# Datasets as memory-mapped arrays, built on first use.
#
#     <cache>/<name>-<fingerprint>/manifest.json    names, sizes and XXH3 checksums of the arrays
#     <cache>/<name>-<fingerprint>/<array>.npy
#
# The fingerprint is that of the source files (path, size, time of change) and of the format, so a changed source
# makes a
# new folder. A folder appears at once and whole, by a rename; several processes may build the same one, and the
# first to
# finish wins. A damaged folder is built again.


Arrays: TypeAlias = dict[str, NDArray[Any]]


_FORMAT = 1


def cached(
    folder: Path,
    name: str,
    sources: Iterable[Path],
    build: Callable[[], Mapping[str, NDArray[Any]]],
    settings: str = "",
) -> Arrays:
    """The arrays that `build` makes of the sources, memory-mapped; `build` runs only if they are not in the cache."""
    place = folder / f"{name}-{_fingerprint(sources, settings)}"
    arrays = _load(place)
    if arrays is None:
        shutil.rmtree(place, ignore_errors=True)
        _write(place, build())
        arrays = _load(place)
    if arrays is None:
        raise DataError(f"the cache {place} cannot be read back: check the disk, or set QAFEL_CACHE to another folder")
    return arrays


def _fingerprint(sources: Iterable[Path], settings: str) -> str:
    digest = hashlib.blake2b(f"{_FORMAT} {settings}".encode(), digest_size=8)
    for path in sources:
        try:
            stat = path.stat()
        except OSError:
            raise DataError(f"{path} is missing or cannot be read") from None
        digest.update(f"\n{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


def _write(place: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise DataError(
            f"the cache {place} cannot be written ({error.strerror}): set QAFEL_CACHE to a folder of your own"
        ) from None
    try:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
        manifest = {name: _checksum(unfinished / f"{name}.npy") for name in arrays}
        (unfinished / "manifest.json").write_text(json.dumps(manifest))
        unfinished.rename(place)
    except OSError as error:
        if not place.is_dir():  # else another process was faster, with the same content
            raise DataError(
                f"the cache {place} cannot be written ({error.strerror}): free the space, or set QAFEL_CACHE"
            ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _load(place: Path) -> Arrays | None:
    """The arrays, or None if there are none or they are not what was written."""
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        arrays = {}
        for name, checksum in manifest.items():
            path = place / f"{name}.npy"
            if _checksum(path) != checksum:
                return None
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, AttributeError):
        return None
    return arrays


def _checksum(path: Path) -> str:
    """XXH3 of the file: it runs at the speed of memory, so every opening can afford it."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(1 << 20))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return f"{os.path.getsize(path)}:{digest.hexdigest()}"
