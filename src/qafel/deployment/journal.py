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
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import BinaryIO, Final, final

import xxhash

from qafel.errors import DataError, OutputError

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
        self._files: list[tuple[BinaryIO, list[bytes]]] = [(self._open(count), [])]
        """The file in use last; before it those that were full when they were last synced."""

    def append(self, data: bytes) -> None:
        record = _RECORD.pack(len(data), xxhash.xxh3_64_intdigest(data))
        with self._lock:
            self._files[-1][1].extend((record, data))
        self.count += 1

    def rotate(self) -> None:
        """Begin a new file: what a checkpoint holds and what follows it lie apart."""
        file = self._open(self.count)
        with self._lock:
            self._files.append((file, []))

    def sync(self) -> None:
        """Write and sync, for all that wait at once."""
        with self._syncing:
            with self._lock:
                waiting = self._files
                self._files = [(waiting[-1][0], [])]
            try:
                for file, records in waiting:
                    file.write(b"".join(records))
                    os.fsync(file.fileno())
            except OSError as error:
                raise OutputError(
                    f"cannot write the journal in {self.folder}: {error.strerror}; free some space"
                ) from None
            for file, _ in waiting[:-1]:
                file.close()

    def close(self) -> None:
        self.sync()
        self._files[-1][0].close()

    def drop_before(self, count: int) -> None:
        """Delete the files all of whose records come before that one."""
        files = _files(self.folder)
        for (_, path), (following, _) in pairwise(files):
            if following <= count:
                path.unlink(missing_ok=True)

    def _open(self, count: int) -> BinaryIO:
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
        data = path.read_bytes()
        sound = 0
        for number, (begin, end) in enumerate(_records(data), first):
            sound = end
            if number >= start:
                yield data[begin:end]
                start = number + 1
        if sound < len(data):
            if following is not None:
                raise DataError(f"{path} is damaged at byte {sound}: restore it from a copy")
            os.truncate(path, sound)


def sync_folder(folder: Path) -> None:
    """Make the names of new files last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _records(data: bytes) -> Iterator[tuple[int, int]]:
    end = 0
    while end + _RECORD.size <= len(data):
        length, checksum = _RECORD.unpack_from(data, end)
        begin = end + _RECORD.size
        end = begin + length
        if end > len(data) or xxhash.xxh3_64_intdigest(memoryview(data)[begin:end]) != checksum:
            return
        yield begin, end


def _files(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem.removeprefix("journal-")), path) for path in folder.glob("journal-*.log"))
