"""The files of datasets: where they lie, how they are downloaded, and their compact copies as memory-mapped arrays.

Datasets lie under $QAFEL_DATA, or under ~/.cache/qafel. Their copies lie in a cache beside them:

    <cache>/<name>-<fingerprint>/manifest.json    names, sizes and XXH3 checksums of the arrays
    <cache>/<name>-<fingerprint>/<array>.npy
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final
from urllib.parse import urlsplit

import numpy as np
import xxhash
from numpy.typing import NDArray

from qafel.errors import DataError

Arrays: TypeAlias = dict[str, NDArray[Any]]
_FORMAT = 1
DOWNLOADED = "; a run downloads it if nothing of it is there"


def data_folder(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all datasets: `data` if given, else $QAFEL_DATA, else ~/.cache/qafel."""
    return Path(data or os.environ.get("QAFEL_DATA") or Path.home() / ".cache" / "qafel").expanduser()


def require_file(path: Path, dataset: str, advice: str = "") -> Path:
    """The path itself, if something is there; else raise what to do.

    `dataset` is its name for people, `advice` a sentence on how to get it.
    """
    if not path.exists():
        raise DataError(
            f"{dataset}: {path} is missing; put it there, or set QAFEL_DATA to the folder that holds {dataset}{advice}"
        )
    return path


def require_md5(path: Path, dataset: str, expected: str) -> None:
    """Raise unless the MD5 sum of the file `path` is `expected`, which the authors of `dataset` published."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != expected:
        raise DataError(
            f"{dataset}: {path} is damaged: its md5 is {found}, expected {expected}; delete it and download it again"
        )


@final
@dataclass(frozen=True)
class Archive:
    """What is downloaded: an archive, its published MD5 sum if there is one, and where its files go."""

    dataset: str
    url: str
    md5: str | None
    files: Mapping[str, str]
    """Name in the archive to path in the data folder. Nothing else is unpacked."""


def download(archive: Archive, data: Path, check: Callable[[Path], None] | None = None) -> None:
    """Download `archive` and unpack it into the folder `data`; each file appears whole or not at all.

    `check` gets each unpacked file and raises if it is the wrong one. Nothing large is held in memory: the archive is
    streamed into a temporary folder under `data`, and its files from there to their places.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=data) as folder:
            unpacked = Path(folder) / "unpacked"
            _unpack(archive, _fetch(archive, Path(folder), data), unpacked)
            for name, place in archive.files.items():
                if check:
                    check(unpacked / name)
                (data / place).parent.mkdir(parents=True, exist_ok=True)
                (unpacked / name).replace(data / place)
    except OSError as error:
        raise DataError(f"{data} cannot be written ({error.strerror}): set QAFEL_DATA to a folder of yours") from None


def _fetch(archive: Archive, folder: Path, data: Path) -> Path:
    """The archive as a file in `folder`, its checksum compared."""
    import pooch  # noqa: PLC0415 — only a download needs it, and the HTTP client below it
    import requests  # noqa: PLC0415

    pooch.get_logger().setLevel("WARNING")  # the bar says enough
    known = archive.md5 and f"md5:{archive.md5}"
    try:
        http = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 20, timeout=30)
        return Path(pooch.retrieve(archive.url, known, "archive", folder, downloader=http))
    except OSError as error:
        first = data / next(iter(archive.files.values()))
        check = f" (md5 {archive.md5})" if archive.md5 else ""
        server = urlsplit(archive.url).netloc
        reason = f"no connection to {server}" if isinstance(error, requests.ConnectionError) else error
        raise DataError(
            f"{archive.dataset} is not in {data} and cannot be downloaded ({reason}): fetch {archive.url}{check} on "
            f"another machine and unpack it so that {first} is there"
        ) from None
    except ValueError:
        raise DataError(
            f"{archive.dataset}: {archive.url} came damaged: its md5 is not {archive.md5}, as published; try again"
        ) from None


def _unpack(archive: Archive, packed: Path, folder: Path) -> None:
    """Unpack the wanted files, and no others, into `folder`, under their names in the archive."""
    wanted = archive.files
    try:
        if zipfile.is_zipfile(packed):
            with zipfile.ZipFile(packed) as zipped:
                zipped.extractall(folder, wanted)
        else:
            with tarfile.open(packed) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
                # In the archive's own order: a compressed one is read from its beginning for each step back.
                tar.extractall(folder, (file for file in tar if file.isfile() and file.name in wanted))
    except (KeyError, EOFError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{archive.dataset}: {archive.url} is not the expected archive: {error}") from None
    if absent := [name for name in wanted if not (folder / name).exists()]:
        raise DataError(f"{archive.dataset}: {archive.url} is not the expected archive: it has no {absent[0]}")


def cached(data: Path, name: str, sources: Iterable[Path], build: Callable[[], Arrays], settings: str = "") -> Arrays:
    """The arrays that `build` makes of the files `sources` in the folder `data`, memory-mapped from the cache.

    That is $QAFEL_CACHE, or a folder in `data`. A copy is found by `name` and a fingerprint of the sources (path, size,
    time of change) and of `settings`: a changed source makes a new one. It appears at once and whole, by a rename;
    several processes may build the same one, and the first to finish wins. A damaged one is built again.
    """
    folder = Path(os.environ.get("QAFEL_CACHE") or data / "cache").expanduser()
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


def _write(place: Path, arrays: Arrays) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as folder:
            unfinished = Path(folder) / "copy"
            unfinished.mkdir()
            for name, array in arrays.items():
                np.save(unfinished / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
            manifest = {name: _checksum(unfinished / f"{name}.npy") for name in arrays}
            (unfinished / "manifest.json").write_text(json.dumps(manifest))
            unfinished.rename(place)
    except OSError as error:
        if not place.is_dir():  # else another process was faster, with the same content
            raise DataError(
                f"the cache {place} cannot be written ({error.strerror}): free the space, or set QAFEL_CACHE to a "
                "folder of yours"
            ) from None


def _load(place: Path) -> Arrays | None:
    """The arrays, or None if there are none or they are not what was written."""
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        if any(_checksum(place / f"{name}.npy") != checksum for name, checksum in manifest.items()):
            return None
        return {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in manifest}
    except (OSError, ValueError, AttributeError):
        return None


def _checksum(path: Path) -> str:
    """Size and XXH3 of the file: it runs at the speed of memory, so every opening can afford it."""
    with path.open("rb", buffering=0) as file:
        return f"{os.path.getsize(path)}:{hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()}"
