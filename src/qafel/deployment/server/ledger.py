"""The server's state and its proof: the pure `Server`, a checkpoint of it, and the journal of uploads since.

x and x̂ are a function of the journal. A start restores the newest sound checkpoint and receives the records after it
again; the broadcasts that this makes again are bit-identical, because their randomness is named by the version.
docs/decisions/deployment-broker-is-not-the-truth.md
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from io import FileIO
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import BinaryIO, Final, final

import xxhash

from qafel.algorithm import Accepted, Algorithm, Checkpoint, Message, Server, restore_server, save_server
from qafel.errors import ConfigError, DataError, OutputError
from qafel.files import Lock, sync_folder, write_atomically
from qafel.params import Vector
from qafel.runs.directory import read_checkpoint, write_checkpoint
from qafel.runs.progress import Traffic

_JOURNAL_BYTES: Final = 1 << 30  # received again at most, besides what comes while a checkpoint is written
_JOURNAL_KIND: Final = b"qafel journal "
_JOURNAL_VERSION: Final = 1
_JOURNAL_HEADER: Final = _JOURNAL_KIND + b"%d\n" % _JOURNAL_VERSION
_RECORD: Final = struct.Struct("<IQ")
_KEPT: Final = 2  # checkpoints: the one before the last survives a damaged disk block

log = logging.getLogger(__name__)


@final
class Ledger:
    """The one place where uploads count. `take` changes the state, `journal.sync` makes it last."""

    def __init__(
        self, folder: Path, server: Server, traffic: Traffic, norms: Mapping[int, float], history: int
    ) -> None:
        """Made by `open`; `history` is how many broadcasts are kept in memory."""
        self.folder = folder
        self.server = server
        self.traffic = traffic
        self.norms = norms
        """Each client's last norm at the last checkpoint, so that a restarted server judges as before."""
        self.broadcasts: deque[tuple[int, bytes]] = deque(maxlen=history)
        """The last broadcasts with their versions: what a broker that lost them is given again."""
        self.run_id = _run_id(folder)
        saved = traffic.uploads
        for frame in read_journal(folder, saved):
            self._count(frame, Message.from_bytes(frame))
        if traffic.uploads > saved:
            log.info("received %d journalled uploads again, now at version %d", traffic.uploads - saved, server.version)
        self.journal = Journal(folder, traffic.uploads)
        self._saved = traffic.copy()

    @staticmethod
    @contextmanager
    def open(
        folder: Path, initial_model: Callable[[], Vector], algorithm: Algorithm, seed: int, *, history: int = 1000
    ) -> Iterator[Ledger]:
        """Open a run's ledger, a context: the run begins, or goes on from what its folder holds.

        folder         the run's state: run-id, journal and checkpoints
        initial_model  makes x⁰, for a run that begins
        algorithm      how server and clients are wired
        seed           the run's seed
        history        how many broadcasts are kept in memory
        """
        busy = ConfigError(f"another server uses {folder}: stop it, or choose another --out")
        with Lock(folder / "lock", busy):
            found = _newest_checkpoint(folder, algorithm, seed)
            if found is None:
                found = Server(initial_model(), algorithm, seed, log_capacity=0), Traffic(), {}
            ledger = Ledger(folder, *found, history)
            with closing(ledger.journal):
                yield ledger

    def take(self, frame: bytes, upload: Message) -> Accepted:
        """Receive an upload and journal its frame. A rejected upload raises, and leaves no record but its count."""
        accepted = self._count(frame, upload)
        self.journal.append(frame)
        return accepted

    def _count(self, frame: bytes, upload: Message) -> Accepted:
        version = self.server.version
        accepted = self.server.receive(upload)
        self.traffic.count_upload(frame, accepted.staleness)
        if accepted.broadcast is not None:
            self.traffic.count_broadcast(accepted.broadcast)
            self.broadcasts.append((version, accepted.broadcast))
        return accepted

    def begin_checkpoint(self, every: int, norms: Mapping[int, float]) -> Callable[[], None] | None:
        """Every so many uploads, fewer if large: what writes the state of this moment, to be called in a thread."""
        before, now = self._saved, self.traffic
        if now.uploads - before.uploads < every and now.upload_bytes - before.upload_bytes < _JOURNAL_BYTES:
            return None
        now, saved = now.copy(), save_server(self.server)
        self._saved = now
        values = {"server": saved.values, "traffic": asdict(now), "norms": list(norms.items())}
        self.journal.rotate()

        def write() -> None:
            write_checkpoint(self.folder / f"checkpoint-{now.uploads:012}.qafel", Checkpoint(saved.arrays, values))
            sync_folder(self.folder)
            for _, path in _checkpoints(self.folder)[:-_KEPT]:
                path.unlink(missing_ok=True)

        return write

    def drop_old_journal(self) -> None:
        """Delete what no kept checkpoint needs."""
        kept = _checkpoints(self.folder)
        if len(kept) >= _KEPT:
            self.journal.drop_before(kept[-_KEPT][0])


def _run_id(folder: Path) -> str:
    """Tells a run from another of the same name: a client's saved hidden state belongs to one of them."""
    path = folder / "run-id"
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex.encode())
        sync_folder(folder)
    return path.read_text(encoding="ascii")


def _newest_checkpoint(
    folder: Path, algorithm: Algorithm, seed: int
) -> tuple[Server, Traffic, Mapping[int, float]] | None:
    """The newest that can be read; None if there is none, and the journal is whole without."""
    if old := sorted(folder.glob("checkpoint-*.safetensors")):
        raise DataError(
            f"{old[-1]} was written by a qafel before 0.2, which this one does not read: finish the run with the qafel "
            "that wrote it, or begin anew in another --out"
        )
    error: DataError | None = None
    for _, path in reversed(_checkpoints(folder)):
        try:
            saved = read_checkpoint(path)
            values = saved.values
            server = restore_server(Checkpoint(saved.arrays, values["server"]), algorithm, seed, log_capacity=0)
            return server, Traffic(**values["traffic"]), {int(client): norm for client, norm in values["norms"]}
        except (KeyError, TypeError, ValueError, DataError) as found:
            log.warning("%s cannot be used, trying the one before: %s", path, found)
            error = found if isinstance(found, DataError) else DataError(f"{path} is damaged: {found!r}")
    if error is not None and not any(first == 0 for first, _ in _journal_files(folder)):
        raise error  # without the first records, the run would start from nothing
    return None


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    paths = folder.glob("checkpoint-*.qafel")
    return sorted((int(path.stem.removeprefix("checkpoint-")), path) for path in paths)


@final
class Journal:
    """The accepted uploads: append-only files of checked records, synced many at a time.

    A file is named for the number of its first record, journal-000000005000.log. It begins with a line that names the
    format and its version. A record is its length (4 bytes), the XXH3-64 of its bytes (8) and the bytes. A process
    killed in the middle of a write leaves a torn tail, which was never acknowledged and is cut off; a damaged record
    that others follow in a later file is an error.

    Append in the event loop, `sync` in a thread: what was appended before it began is safe when it returns.
    """

    def __init__(self, folder: Path, count: int) -> None:
        """Go on behind the first `count` records, which `read_journal` has found sound."""
        self.folder = folder
        self.count = count
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._file = self._open(count)
        self._waiting: list[tuple[int, list[bytes]]] = [(count, [])]
        """What is not written yet: first what goes into the open file, then a part for every file to begin."""
        self._failure: OutputError | None = None

    def append(self, data: bytes) -> None:
        """Add a record, which is not safe before the next `sync`."""
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
        files = _journal_files(self.folder)
        for (_, path), (following, _) in pairwise(files):
            if following <= count:
                path.unlink(missing_ok=True)

    def _open(self, count: int) -> FileIO:
        file = (self.folder / f"journal-{count:012}.log").open("ab", buffering=0)
        if not file.tell():
            file.write(_JOURNAL_HEADER)
        sync_folder(self.folder)
        return file


def read_journal(folder: Path, start: int = 0) -> Iterator[bytes]:
    """The records from number `start` on. A torn tail of the last file is cut off, so that appending may go on."""
    files = _journal_files(folder)
    for (first, path), following in zip_longest(files, files[1:]):
        if following is not None and following[0] <= start:
            continue
        if first > start:
            raise DataError(f"{folder} lacks records {start} to {first - 1} of the journal: a file was deleted")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            sound = _skip_header(file, path)
            for number, data in enumerate(_records(file, size), first):
                sound = file.tell()
                if number >= start:
                    yield data
                    start = number + 1
        if sound < size:
            if following is not None:
                raise DataError(f"{path} is damaged at byte {sound}: restore it from a copy")
            os.truncate(path, sound)


def _skip_header(file: BinaryIO, path: Path) -> int:
    """Go to the first record. Journals from before 0.2 have no header: their first record is at the start."""
    start = file.read(len(_JOURNAL_HEADER) + 8)
    head, newline, _ = start.partition(b"\n")
    version = head.removeprefix(_JOURNAL_KIND)
    if newline and head.startswith(_JOURNAL_KIND) and version.isdigit() and int(version) != _JOURNAL_VERSION:
        raise DataError(
            f"{path} has version {int(version)} of its format, and this qafel reads version {_JOURNAL_VERSION}: "
            "use the qafel that wrote it, or begin anew in another folder"
        )
    # A header without its newline is a torn tail as well: it is cut off, and written again.
    return file.seek(len(_JOURNAL_HEADER) if start.startswith(_JOURNAL_HEADER) else 0)


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


def _journal_files(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem.removeprefix("journal-")), path) for path in folder.glob("journal-*.log"))
