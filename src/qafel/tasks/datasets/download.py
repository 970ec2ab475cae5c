"""Fetch a dataset from its authors into the data folder, checked; or say how to do it by hand."""

from __future__ import annotations

import hashlib
import http.client
import io
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from qafel.errors import ConfigError, DataError
from qafel.tasks.datasets.cifar10 import BINARY_FOLDER, BINARY_MD5, PYTHON_FOLDER
from qafel.tasks.datasets.shakespeare import parse_shakespeare


@final
@dataclass(frozen=True)
class Archive:
    """What is fetched: an archive, its published MD5 sum if there is one, and where its files go."""

    title: str
    url: str
    md5: str | None
    files: Mapping[str, str]
    """Name in the archive to path in the data folder. Nothing else is unpacked."""
    or_instead: tuple[str, ...] = ()
    """Other places whose presence means that the data is there."""

    def is_there(self, data: Path) -> bool:
        """Whether any of it is there; what is missing then is for the reader to say."""
        return any((data / place).exists() for place in (*self.files.values(), *self.or_instead))


ARCHIVES = {
    "cifar10": Archive(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        {f"{BINARY_FOLDER}/{name}": f"{BINARY_FOLDER}/{name}" for name in BINARY_MD5},
        (BINARY_FOLDER, PYTHON_FOLDER),
    ),
    "shakespeare": Archive(
        "Shakespeare",
        "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
        None,
        {"100.txt": "shakespeare/pg100.txt"},
        ("shakespeare/data/raw_data/raw_data.txt", "shakespeare/data/train"),
    ),
}


_BY_HAND = {
    "celeba": "CelebA may not be downloaded by programs: get img_align_celeba, list_attr_celeba.txt and "
    "identity_CelebA.txt from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and put them in {data}/celeba"
}


def download_if_missing(dataset: str, data: Path) -> None:
    """Fetch the dataset if nothing of it is there."""
    if not ARCHIVES[dataset].is_there(data):
        download(dataset, data)


def download(dataset: str, data: Path) -> None:
    """Fetch the dataset, check it, and unpack it into the data folder; each file appears whole or not at all."""
    if dataset in _BY_HAND:
        raise DataError(_BY_HAND[dataset].format(data=data))
    if dataset not in ARCHIVES:
        known = ", ".join([*ARCHIVES, *_BY_HAND])
        raise ConfigError(f"there is no dataset {dataset!r} to download; choose from {known}")
    archive = ARCHIVES[dataset]
    content = _fetch(archive, data)
    if archive.md5 is not None and (found := hashlib.md5(content).hexdigest()) != archive.md5:
        raise DataError(
            f"{archive.title}: {archive.url} came damaged: its md5 is {found}, expected {archive.md5}; try again"
        )
    files = _unpack(archive, content)
    if dataset == "shakespeare":
        # Project Gutenberg publishes no checksum; a text that is not the one of 1994 does not parse.
        parse_shakespeare(files["100.txt"].decode("utf-8-sig", errors="replace").replace("\r\n", "\n"))
    for name, place in archive.files.items():
        _write(data / place, files[name])


def _fetch(archive: Archive, data: Path) -> bytes:
    try:
        with urllib.request.urlopen(archive.url, timeout=30) as response:
            content: bytes = response.read()
    except (OSError, http.client.HTTPException) as error:
        first = data / next(iter(archive.files.values()))
        check = f" (md5 {archive.md5})" if archive.md5 else ""
        raise DataError(
            f"{archive.title} is not in {data} and cannot be downloaded ({error}): "
            f"fetch {archive.url}{check} elsewhere and unpack it so that {first} is there"
        ) from None
    return content


def _unpack(archive: Archive, content: bytes) -> dict[str, bytes]:
    """The files that are wanted, by their names in the archive."""
    try:
        if archive.url.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(content)) as opened:
                return {name: opened.read(name) for name in archive.files}
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            members = {name: tar.extractfile(name) for name in archive.files}
            return {name: member.read() for name, member in members.items() if member is not None}
    except (KeyError, OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{archive.title}: {archive.url} is not the expected archive: {error}") from None


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(content)
        Path(file.name).rename(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error.strerror}): set QAFEL_DATA to a folder of your own"
        ) from None
