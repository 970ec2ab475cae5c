"""The journal: accepted uploads and server steps in append-only files. One sync covers many records.

A file is named after its first record, as in journal-000000005000.log. It begins with two lines: the format's name and
version, then a salt and a checksum of the lines. A record is

    mark | kind | length | checksum of the record before | note | checksum of all of it under the salt | bytes

A lost or exchanged record breaks the chain. A valid record behind a damaged one can be found by its mark. Each start
begins a new file. The file `synced` stores how many bytes of the newest file are safe. It is written after each sync
but not synced itself, so its number may be too small, never too large.

upload   a frame as received; the note stores how it was applied
step     a server step with the uploads since the previous step; the note has the digest of the new x̂
dropped  the step of the upload before this record diverged, so that upload does not count

A process killed during a write leaves a torn tail, which was never acknowledged. It is cut off and logged. Any other
unreadable data is damage: the server refuses to start and changes nothing.
docs/decisions/deployment.md
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
import struct
import threading
from collections.abc import Iterator
from enum import IntEnum
from io import FileIO
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, final

import xxhash

from qafel.errors import DamagedJournal, DataError, OutputError
from qafel.files import open_private, read_regular, sync_folder, writing

_VERSION: Final = 4
_KIND: Final = b"qafel journal "
_HEADER: Final = re.compile(rb"qafel journal (\d+)\n(?:([0-9a-f]{16}) [0-9a-f]{16}\n)?")
_HEADER_BYTES: Final = len(b"qafel journal 4\n0123456789abcdef 0123456789abcdef\n")
_MARK: Final = b"\x89QJ\n"
_RECORD: Final = struct.Struct("<4sBIQ24sQ")
_SYNCED: Final = re.compile(rb"(\d{12}) (\d{15}) ([0-9a-f]{16})\n")

log = logging.getLogger(__name__)


class Entry(IntEnum):
    """The kind of a record."""

    UPLOAD = 1
    STEP = 2
    DROPPED = 3


@final
class Record(NamedTuple):
    """One record of the journal."""

    entry: Entry
    data: bytes
    """The frame of an upload; else empty."""
    note: bytes
    """24 bytes for the ledger."""
    before: int
    """The checksum of the previous record."""
    checksum: int


@final
class Journal:
    """Appends records. `append` in the event loop; `sync` in a thread. `sync` makes all earlier appends durable."""

    def __init__(self, folder: Path, count: int = 0, checksum: int = 0) -> None:
        """Continue in a new file after `count` records. `checksum`: of the last record."""
        self.folder = folder
        self.count = count
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self.safe = count
        """A lower bound on the number of synced records."""
        self.checksum = checksum
        """The checksum of the last record, written or not."""
        with writing(f"the journal in {folder}"):
            self._synced = FileIO(open_private(folder / "synced", os.O_RDWR), "r+")  # its line is replaced in place
            self._begin_file(count, salt := secrets.randbits(64))
        self._waiting: list[tuple[int, int, list[bytes]]] = [(count, salt, [])]
        """Unwritten data with first record and salt of its file: first for the open file, then for each new file."""
        self._failure: OutputError | None = None

    def append(self, data: bytes, note: bytes = b"", entry: Entry = Entry.UPLOAD) -> None:
        """Add a record. The next `sync` makes it durable."""
        with self._lock:
            _, salt, pieces = self._waiting[-1]
            pieces += (head := _head(salt, entry, data, self.checksum, note)), data
        self.checksum = int.from_bytes(head[-8:], "little")
        self.count += 1

    def rotate(self) -> None:
        """Continue in a new file, so that records before and after a checkpoint are separate.

        `sync` creates it after the previous file is complete on disk, so only the last file can be torn.
        """
        with self._lock:
            if self._waiting[-1][0] < self.count:
                self._waiting.append((self.count, secrets.randbits(64), []))

    def sync(self) -> None:
        """Write and sync all appended records. After a failure, no record counts as safe."""
        with self._syncing:
            if self._failure is not None:
                raise self._failure
            with self._lock:
                waiting, count = self._waiting, self.count
                self._waiting = [(*waiting[-1][:2], [])]
            try:
                self._write(waiting[0][2])
                for first, salt, pieces in waiting[1:]:
                    self._file.close()
                    self._begin_file(first, salt)
                    self._write(pieces)
                self.safe = count
            except OSError as error:
                self._failure = OutputError(
                    f"cannot write the journal in {self.folder}: {error.strerror}; free some space"
                )
                raise self._failure from None

    def _write(self, pieces: list[bytes]) -> None:
        """Write all pieces. A full disk accepts a part first and fails at the next write."""
        whole = b"".join(pieces)
        rest = memoryview(whole)
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())
        self._length += len(whole)
        if whole:
            self._synced.seek(0)
            self._synced.write(_synced_line(self._first, self._length))

    def close(self) -> None:
        try:
            self.sync()
            os.fsync(self._synced.fileno())
        finally:
            self._file.close()
            self._synced.close()

    def drop_before(self, count: int) -> None:
        """Delete files that contain only records before this one."""
        for (_, path), (following, _) in pairwise(_files(self.folder)):
            if following <= count:
                path.unlink(missing_ok=True)

    def _begin_file(self, first: int, salt: int) -> None:
        self._first, self._length = first, _HEADER_BYTES
        # Only the owner may read clients' uploads.
        self._file = FileIO(open_private(self.folder / f"journal-{first:012}.log", os.O_WRONLY | os.O_EXCL), "w")
        self._file.write(_header(salt))
        sync_folder(self.folder)


@final
class JournalReader:
    """Reads records in order. Only `resume` changes files.

    Missing or unreadable synced records raise `DamagedJournal`.
    """

    def __init__(self, folder: Path, start: int = 0, checksum: int | None = None) -> None:
        """Start at record `start`. `checksum`: of the record before it, if known."""
        self.folder = folder
        self._start = self.count = start
        """The number of the next record."""
        self.checksum = checksum
        self._end = 0
        """The number of records up to the last one found."""
        self._torn: tuple[Path, int, int] | None = None

    def __iter__(self) -> Iterator[Record]:
        files, synced = _files(self.folder), _read_synced(self.folder)
        for (first, path), following in zip_longest(files, files[1:]):
            if following is not None and following[0] <= self.count:
                if following[0] == self._start:
                    self._check_end(path)
                continue
            if first > self.count:
                raise DamagedJournal(
                    f"records {self.count} to {first - 1} of the journal in {self.folder} are missing: restore the "
                    "deleted file from a copy"
                )
            try:
                with path.open("rb") as file:
                    yield from self._read(file, path, first, following is not None, synced.get(first, 0))
            except OSError as error:
                raise DamagedJournal(f"cannot read {path} ({error.strerror}): restore it from a copy") from None
        if files and self._end < self._start:
            raise DataError(f"the checkpoint counts {self._start} records, the journal has {self._end}")
        first = next(iter(synced), -1)
        if first > (files[-1][0] if files else -1):
            raise DamagedJournal(
                f"the journal in {self.folder} is missing from record {first} on: restore journal-{first:012}.log from "
                f"a copy, or discard its records by deleting {self.folder / 'synced'}"
            )

    def _check_end(self, path: Path) -> None:
        """Raise if the file does not end with the checkpoint's last record. Damage is ignored here."""
        with path.open("rb") as file:
            size, salt = os.fstat(file.fileno()).st_size, _read_header(file, path)
            sound, last = 0, None
            while (record := _read_record(file, size, salt)) is not None:
                sound, last = file.tell(), record.checksum
            if sound == size and self.checksum not in (None, last):
                raise DataError(f"record {self._start - 1} in {path} is not the checkpoint's last record")

    def _read(self, file: BinaryIO, path: Path, first: int, followed: bool, synced: int) -> Iterator[Record]:
        size = os.fstat(file.fileno()).st_size
        salt = _read_header(file, path)
        sound, number, last = file.tell(), first, None
        self._end = first
        while (record := _read_record(file, size, salt)) is not None:
            expected = self.checksum if number >= self.count else last
            if expected not in (None, record.before):
                if number == self._start:
                    raise DataError(f"record {number} in {path} does not follow the checkpoint")
                break
            sound, last, number = file.tell(), record.checksum, number + 1
            self._end = number
            if number > self.count:
                self.count, self.checksum = number, last
                yield record
        if sound == size and sound >= synced:
            return
        file.seek(sound)
        if followed or sound < synced or _sound_follows(file.read(), salt):
            why = f"{synced} bytes of it were synced" if sound < synced else "valid records follow"
            raise DamagedJournal(
                f"{path} is damaged at byte {sound}, in record {number}, and {why}. Nothing was changed: restore it "
                f"from a copy, or discard this record and all after it (truncate -s {sound} {path}; delete "
                f"{self.folder / 'synced'}{' and the journal files after it' if followed else ''})"
            )
        self._torn = path, sound, size

    def resume(self) -> Journal:
        """Cut off a torn tail, and return the journal to append to."""
        if self._torn is not None:
            path, sound, size = self._torn
            log.warning(
                "%s: cut off %d bytes from byte %d on, of an interrupted write that was never acknowledged.",
                path, size - sound, sound,
            )  # fmt: skip
            os.truncate(path, sound)
        if (empty := self.folder / f"journal-{self.count:012}.log").exists():
            empty.unlink()  # it has no records; the new file takes its name
        return Journal(self.folder, self.count, self.checksum or 0)


def read_journal(folder: Path, start: int = 0) -> Iterator[bytes]:
    """The uploads from record `start` on, as received. Changes nothing, and skips a torn tail."""
    return (record.data for record in JournalReader(folder, start) if record.entry is Entry.UPLOAD)


def _header(salt: int) -> bytes:
    start = _KIND + b"%d\n%016x" % (_VERSION, salt)
    return start + b" %016x\n" % xxhash.xxh3_64_intdigest(start)


def _head(salt: int, entry: Entry, data: bytes, before: int, note: bytes) -> bytes:
    start = _RECORD.pack(_MARK, entry, len(data), before, note, 0)[:-8]
    return start + _checksum(salt, start, data).to_bytes(8, "little")


def _checksum(salt: int, start: bytes, data: bytes) -> int:
    hasher = xxhash.xxh3_64(start, seed=salt)
    hasher.update(data)
    return hasher.intdigest()


def _read_header(file: BinaryIO, path: Path) -> int | None:
    """Read the header and return the salt; None if the header is torn or damaged."""
    start = file.read(_HEADER_BYTES)
    found = _HEADER.match(start)
    if found is not None and int(found[1]) != _VERSION:
        raise DataError(
            f"{path} has format version {int(found[1])}, this qafel reads version {_VERSION}: use the qafel that wrote "
            "it, or start again in another folder"
        )
    if found is not None and found[2] is not None and start == _header(salt := int(found[2], 16)):
        return salt
    file.seek(0)
    return None


def _read_record(file: BinaryIO, size: int, salt: int | None) -> Record | None:
    """The next record; None if it is not valid. A wrong length cannot allocate more than the file's size."""
    head = file.read(_RECORD.size)
    if len(head) < _RECORD.size or salt is None:
        return None
    mark, entry, length, before, note, checksum = _RECORD.unpack(head)
    if mark != _MARK or length > size - file.tell():
        return None
    data = file.read(length)
    sound = _checksum(salt, head[:-8], data) == checksum
    return Record(Entry(entry), data, note, before, checksum) if sound else None


def _sound_follows(rest: bytes, salt: int | None) -> bool:
    """Whether the unreadable rest contains a valid record; without the salt, whether it may."""
    if salt is None:
        return len(rest.rstrip(b"\0")) >= _HEADER_BYTES + _RECORD.size
    file, found = io.BytesIO(rest), rest.find(_MARK)
    while found >= 0:
        file.seek(found)
        if _read_record(file, len(rest), salt) is not None:
            return True
        found = rest.find(_MARK, found + 1)
    return False


def _read_synced(folder: Path) -> dict[int, int]:
    """The synced bytes of the newest file, by its first record; empty if unknown."""
    try:
        line = read_regular(folder / "synced", 1000)
    except FileNotFoundError:
        return {}
    found = _SYNCED.fullmatch(line)
    if line and (found is None or line != _synced_line(int(found[1]), int(found[2]))):
        log.warning("%s is damaged. Reading the journal without it.", folder / "synced")
        return {}
    return {} if found is None else {int(found[1]): int(found[2])}


def _synced_line(first: int, length: int) -> bytes:
    start = b"%012d %015d" % (first, length)
    return start + b" %016x\n" % xxhash.xxh3_64_intdigest(start)


def _files(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem.removeprefix("journal-")), path) for path in folder.glob("journal-*.log"))


def begins_at_start(folder: Path) -> bool:
    """Whether the journal's first file is there."""
    return any(first == 0 for first, _ in _files(folder))
