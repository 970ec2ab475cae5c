"""Files of datasets: folders, downloads, and compact copies as memory-mapped arrays.

Datasets are in $QAFEL_DATA, or in ~/.cache/qafel. Their copies are in a cache beside them:

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
DOWNLOADED = "; a run downloads it if the dataset is missing"


def data_folder(data: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of all datasets: `data`, else $QAFEL_DATA, else ~/.cache/qafel."""
    return Path(data or os.environ.get("QAFEL_DATA") or Path.home() / ".cache" / "qafel").expanduser()


def require_file(path: Path, dataset: str, advice: str = "") -> Path:
    """Return the path if it exists. Raises a `DataError` that names the `dataset` and ends with `advice`."""
    if not path.exists():
        raise DataError(
            f"{dataset}: {path} is missing; set QAFEL_DATA to the folder of {dataset}, or put the file there{advice}"
        )
    return path


def require_md5(path: Path, dataset: str, expected: str) -> None:
    """Raise `DataError` unless the file `path` has the published MD5 sum `expected`."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != expected:
        raise DataError(
            f"{dataset}: {path} is damaged: its md5 is {found}, expected {expected}; delete it and download it again"
        )


@final
@dataclass(frozen=True)
class Archive:
    """An archive to download, with its published MD5 sum if there is one."""

    dataset: str
    url: str
    md5: str | None
    files: Mapping[str, str]
    """Names in the archive and their paths in the data folder. Other files are ignored."""


def download(archive: Archive, data: Path, check: Callable[[Path], None] | None = None) -> None:
    """Download `archive` and unpack it into the folder `data`. Files appear complete or not at all.

    `check` raises if an unpacked file is wrong. The archive is streamed to a temporary folder under `data`, so memory
    use is small.
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
        raise DataError(f"cannot write to {data} ({error.strerror}): set QAFEL_DATA to another folder") from None


def _fetch(archive: Archive, folder: Path, data: Path) -> Path:
    """Download the archive to `folder` and verify its checksum."""
    import pooch  # noqa: PLC0415 — only a download needs it
    import requests  # noqa: PLC0415

    pooch.get_logger().setLevel("WARNING")  # the progress bar suffices
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
            f"{archive.dataset} is not in {data} and cannot be downloaded ({reason}): download {archive.url}{check} on "
            f"another machine and unpack it to {first}"
        ) from None
    except ValueError:
        raise DataError(
            f"{archive.dataset}: the download of {archive.url} is damaged, its md5 is not {archive.md5}: try again"
        ) from None


def _unpack(archive: Archive, packed: Path, folder: Path) -> None:
    """Unpack the files of `archive.files` into `folder`, under their names in the archive."""
    wanted = archive.files
    try:
        if zipfile.is_zipfile(packed):
            with zipfile.ZipFile(packed) as zipped:
                zipped.extractall(folder, wanted)
        else:
            with tarfile.open(packed) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # missing before Python 3.11.4
                # In the archive's order: every step back would read a compressed archive from its start.
                tar.extractall(folder, (file for file in tar if file.isfile() and file.name in wanted))
    except (KeyError, EOFError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{archive.dataset}: {archive.url} is not the expected archive: {error}") from None
    if absent := [name for name in wanted if not (folder / name).exists()]:
        raise DataError(f"{archive.dataset}: {archive.url} is not the expected archive: {absent[0]} is missing")


def cached(data: Path, name: str, sources: Iterable[Path], build: Callable[[], Arrays], settings: str = "") -> Arrays:
    """Return the arrays that `build` makes from the files `sources`, memory-mapped from the cache.

    The cache is $QAFEL_CACHE, or a folder in `data`. The key of an entry is `name` with a fingerprint of the sources
    (path, size, time of change) and of `settings`. Entries appear atomically: several processes may build the same one,
    and the first wins. A damaged entry is built again.
    """
    folder = Path(os.environ.get("QAFEL_CACHE") or data / "cache").expanduser()
    place = folder / f"{name}-{_fingerprint(sources, settings)}"
    arrays = _load(place)
    if arrays is None:
        shutil.rmtree(place, ignore_errors=True)
        _write(place, build())
        arrays = _load(place)
    if arrays is None:
        raise DataError(f"cannot read the cache {place} back: check the disk, or set QAFEL_CACHE to another folder")
    return arrays


def _fingerprint(sources: Iterable[Path], settings: str) -> str:
    digest = hashlib.blake2b(f"{_FORMAT} {settings}".encode(), digest_size=8)
    for path in sources:
        try:
            stat = path.stat()
        except OSError:
            raise DataError(f"cannot read {path}: check that it exists, and its permissions") from None
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
        if not place.is_dir():  # otherwise another process was faster, with the same content
            raise DataError(
                f"cannot write the cache {place} ({error.strerror}): free some space, or set QAFEL_CACHE to another "
                "folder"
            ) from None


def _load(place: Path) -> Arrays | None:
    """Return the arrays, or None if they are missing or damaged."""
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        if any(_checksum(place / f"{name}.npy") != checksum for name, checksum in manifest.items()):
            return None
        return {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in manifest}
    except (OSError, ValueError, AttributeError):
        return None


def _checksum(path: Path) -> str:
    """Return size and XXH3 of the file. It is fast enough to run at every opening."""
    with path.open("rb", buffering=0) as file:
        return f"{os.path.getsize(path)}:{hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()}"
