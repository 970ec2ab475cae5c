"""The journal of accepted uploads: append-only files of checked records, synced many at a time.

A record is its length (4 bytes), the XXH3-64 of its bytes (8) and the bytes. A file is named for the number of its
first record, journal-000000005000.log. A process killed in the middle of a write leaves a torn tail, which was never
acknowledged and is cut off; a damaged record that others follow in a later file is an error.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from io import FileIO
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import BinaryIO, Final, final

import xxhash

from qafel.errors import DataError, OutputError
from qafel.files import sync_folder

_RECORD: Final = struct.Struct("<IQ")


@final
class Journal:
    """Append in the event loop, `sync` in a thread: what was appended before it began is safe when it returns."""

    def __init__(self, folder: Path, count: int) -> None:
        """Go on behind the first `count` records, which `read` has found sound."""
        self.folder = folder
        self.count = count
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._file = self._open(count)
        self._waiting: list[tuple[int, list[bytes]]] = [(count, [])]
        """What is not written yet: first what goes into the open file, then a part for every file to begin."""
        self._failure: OutputError | None = None

    def append(self, data: bytes) -> None:
        record = _RECORD.pack(len(data), xxhash.xxh3_64_intdigest(data))
        with self._lock:
            self._waiting[-1][1].extend((record, data))
        self.count += 1

    def rotate(self) -> None:
        """Go on in a new file: what a checkpoint holds and what follows it lie apart.

        `sync` makes it, when the file before it is whole on disk: a file with a successor is never torn.
        """
        with self._lock:
            self._waiting.append((self.count, []))

    def sync(self) -> None:
        """Write and sync, for all that wait at once. After a failure nothing counts as safe any more."""
        with self._syncing:
            if self._failure is not None:
                raise self._failure
            with self._lock:
                waiting = self._waiting
                self._waiting = [(waiting[-1][0], [])]
            try:
                self._write(waiting[0][1])
                for first, records in waiting[1:]:
                    self._file.close()
                    self._file = self._open(first)
                    self._write(records)
            except OSError as error:
                self._failure = OutputError(
                    f"cannot write the journal in {self.folder}: {error.strerror}; free some space"
                )
                raise self._failure from None

    def _write(self, records: list[bytes]) -> None:
        """All of it: a disk that fills up takes a part first, and complains at the next write."""
        rest = memoryview(b"".join(records))
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self._file.close()

    def drop_before(self, count: int) -> None:
        """Delete the files all of whose records come before that one."""
        files = _files(self.folder)
        for (_, path), (following, _) in pairwise(files):
            if following <= count:
                path.unlink(missing_ok=True)

    def _open(self, count: int) -> FileIO:
        file = (self.folder / f"journal-{count:012}.log").open("ab", buffering=0)
        sync_folder(self.folder)
        return file


def read(folder: Path, start: int = 0) -> Iterator[bytes]:
    """The records from number `start` on. A torn tail of the last file is cut off, so that appending may go on."""
    files = _files(folder)
    for (first, path), following in zip_longest(files, files[1:]):
        if following is not None and following[0] <= start:
            continue
        if first > start:
            raise DataError(f"{folder} lacks records {start} to {first - 1} of the journal: a file was deleted")
        sound = 0
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for number, data in enumerate(_records(file, size), first):
                sound = file.tell()
                if number >= start:
                    yield data
                    start = number + 1
        if sound < size:
            if following is not None:
                raise DataError(f"{path} is damaged at byte {sound}: restore it from a copy")
            os.truncate(path, sound)


def _records(file: BinaryIO, size: int) -> Iterator[bytes]:
    """One after another, so that a large file takes no more memory than its largest record; up to the first unsound."""
    while len(head := file.read(_RECORD.size)) == _RECORD.size:
        length, checksum = _RECORD.unpack(head)
        if length > size - file.tell():
            return
        data = file.read(length)
        if xxhash.xxh3_64_intdigest(data) != checksum:
            return
        yield data


def _files(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem.removeprefix("journal-")), path) for path in folder.glob("journal-*.log"))
