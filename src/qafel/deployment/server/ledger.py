"""The server's state: the pure `Server`, its checkpoints, and the journal of uploads since the last one.

x and x̂ are a function of the journal. A start restores the newest valid checkpoint and replays the uploads and steps
after it. The replayed broadcasts are bit-identical, because the version names their random stream. If the process was
killed between the upload that closes a batch and its step, the start makes the step.
docs/decisions/deployment.md
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from pydantic import BaseModel, ValidationError

from qafel.algorithm import (
    Accepted,
    Admitted,
    Algorithm,
    Batch,
    Checkpoint,
    Message,
    Server,
    require_savable,
    restore_server,
    save_server,
)
from qafel.algorithm.messages import checksum_of
from qafel.deployment.server.journal import Entry, JournalReader, Record, begins_at_start
from qafel.errors import (
    ConfigError,
    DamagedJournal,
    DataError,
    NonFiniteVector,
    OutputError,
)
from qafel.files import Lock, make_private, read_word, sync_folder, write_atomically, write_word, writing
from qafel.params import Vector
from qafel.runs.checkpoints import RowLog, read_checkpoint, write_checkpoint
from qafel.runs.progress import Amount, Count, Traffic, fault_of

_JOURNAL_BYTES: Final = 1 << 30  # uploads after which a checkpoint is due
_QUARANTINED: Final = 100
_NOTE: Final = struct.Struct("<fffIQ")
_DIGEST: Final = struct.Struct("<Q")
_KEPT: Final = 2  # checkpoints, in case a disk block is damaged

log = logging.getLogger(__name__)


@final
class UploadNote(NamedTuple):
    """The journal's note on an upload: how the server applied it, in float32, so that a replay gives the same bits."""

    weight: float
    """The client's weight, limited."""
    factor: float = 1.0
    """The factor that brings the update's norm within its limit."""
    norm: float = 0.0
    """The weighted norm before scaling: the client's vote in the median."""
    key: int = 0
    """The `key_number` of the client's key; zero without keys."""
    received_bytes: int = 0
    """Bytes that the client received since its previous upload, limited."""

    def to_bytes(self) -> bytes:
        return _NOTE.pack(*self)

    @staticmethod
    def read(record: Record, upload: Message) -> UploadNote:
        """How an upload of the journal was applied; unchanged if its record has no note."""
        return UploadNote(*_NOTE.unpack_from(record.note)) if any(record.note) else UploadNote(upload.weight)

    @staticmethod
    def of(weight: float, factor: float = 1.0, norm: float = 0.0, key: int = 0, received_bytes: int = 0) -> UploadNote:
        """Round to what the journal stores."""
        return UploadNote(*_NOTE.unpack(_NOTE.pack(weight, factor, norm, key, received_bytes)))


@final
class ClientShare(NamedTuple):
    """One client's share, for a checkpoint."""

    client: Count
    level: Amount
    """Of its bucket."""
    silent_s: Amount
    """Since its last accepted update."""
    pause_s: Amount
    """The longest recent one between two accepted updates."""


class _Values(BaseModel):
    """The values of a checkpoint."""

    server: dict[str, Any]
    traffic: Traffic
    norms: list[tuple[Count, Amount]]
    keys: list[tuple[Count, Count]]
    last: list[tuple[Count, tuple[Count, Count]]]
    shares: list[ClientShare]
    void: Count
    """Earlier records of the journal that do not count: diverged steps and the uploads before them."""
    journal_checksum: Count
    """The checksum of the last record."""


_NEW: Final = _Values(server={}, traffic=Traffic(), norms=[], keys=[], last=[], shares=[], void=0, journal_checksum=0)


@final
class Ledger:
    """Counts uploads. `take` and `step_if_due` change the state; `journal.sync` makes it durable."""

    def __init__(self, folder: Path, server: Server, rows: RowLog, values: _Values, history: int) -> None:
        """Called by `open`: replay the journal after a checkpoint. `history`: broadcasts to keep in memory."""
        self.folder, self.server, self._rows = folder, server, rows
        self.traffic, self.shares, self._void = values.traffic.copy(), values.shares, values.void
        self.norms = dict(values.norms)
        """Each client's last norm, so that a restarted server uses the same median."""
        self.keys = dict(values.keys)
        """The key of each client's last counted upload. A new key restarts the client's numbers, because uploads signed
        with the old key are not accepted.
        """
        self._last = dict(values.last)
        """For each client: the checksum of its counted upload with the highest number, and the total bytes broadcast at
        its last counted upload.
        """
        self._with_memory = self.server.algorithm.needs.client_memory
        self.since: list[int] = []
        """The senders of replayed uploads. `shares` has the shares at the checkpoint before them."""
        self.broadcasts: deque[tuple[int, bytes]] = deque(maxlen=history)
        """The last broadcasts with their versions, to refill a broker."""
        self._batch: Batch | None = None
        """A batch closed by the last upload, whose step is due."""
        before = self.saved_uploads = self.traffic.uploads
        reader = JournalReader(
            folder, self.traffic.uploads + self.traffic.broadcasts + self._void, values.journal_checksum
        )
        before_it: Record | None = None
        for record in reader:
            if record.entry is Entry.DROPPED:
                before_it, self._void = None, self._void + 2
                continue
            if before_it is not None:
                self._repeat(before_it)
            before_it = record
        if before_it is not None:
            self._repeat(before_it)
        if self.traffic.uploads > before:
            uploads, version = self.traffic.uploads - before, self.server.version
            log.info("Replayed %d uploads of the journal. Version %d.", uploads, version)
        self._saved = self.traffic.copy()
        self._diverged = False
        self.run_id = _run_id(folder)
        self.epoch = _epoch(folder)
        """The last epoch in which this folder served the run; zero if none."""
        self.journal = reader.resume()

    @staticmethod
    @contextmanager
    def open(
        folder: Path,
        initial_model: Callable[[], Vector],
        algorithm: Algorithm,
        seed: int,
        *,
        size: int,
        history: int = 1000,
        clients: int | None = None,
    ) -> Iterator[Ledger]:
        """Open a run's ledger, as a context. Start the run, or resume it from its folder.

        folder         the run's state: run-id, journal and checkpoints
        initial_model  makes x⁰ for a new run
        algorithm      the run's algorithm
        seed           the run's seed
        size           the number of model parameters
        history        the number of broadcasts kept in memory
        clients        the number of clients, for methods that need it
        """

        def begin() -> Server:
            server = Server(initial_model(), algorithm, seed, clients=clients)
            require_savable(server)
            return server

        busy = ConfigError(f"another server uses {folder}: stop it, or choose another `out`")
        with writing(f"to {folder}", "; choose another folder"):
            make_private(folder)  # it holds clients' uploads
        with Lock(folder / "lock", busy):
            restore = partial(restore_server, algorithm=algorithm, seed=seed, size=size, clients=clients)
            load = partial(_newest_sound, folder, history, begin, restore)
            ledger = load()
            try:
                ledger.step_if_due()  # the process was killed before it
            except NonFiniteVector as error:
                log.warning("%s. Continuing without this step.", error)
                ledger.journal.close()
                ledger = load()
            with closing(ledger.journal):
                yield ledger

    @property
    def place(self) -> str:
        """Distinguishes this folder from its copies: the inode and change time of the lock file cannot be copied."""
        found = (self.folder / "lock").stat()
        return f"{found.st_ino:x}-{found.st_ctime_ns:x}"

    def begin_epoch(self, epoch: int) -> None:
        """Store the epoch of this folder's server."""
        self.epoch = epoch
        write_word(self.folder / "epoch", str(epoch))

    def take(
        self,
        frame: bytes,
        upload: Message,
        note: UploadNote | None = None,
        decoded: Vector | None = None,
        admitted: Admitted | None = None,
    ) -> Accepted:
        """Receive an upload and journal its frame. A rejected upload raises and leaves no record.

        If it closes a batch, call `step_if_due` next.
        """
        accepted = self._count(frame, upload, note or UploadNote(upload.weight), decoded, admitted)
        self.journal.append(frame, note.to_bytes() if note else b"")
        return accepted

    def step_if_due(self) -> bytes | None:
        """Make the step of a closed batch and journal it; return the broadcast.

        A step that makes the model diverge raises `NonFiniteVector`. A restart drops the upload before it.
        """
        if self._batch is None:
            return None
        try:
            broadcast = self._step()
        except NonFiniteVector:
            self._diverged = True
            self.journal.append(b"", entry=Entry.DROPPED)
            raise
        self.journal.append(b"", _DIGEST.pack(self.server.hidden_state.digest), Entry.STEP)
        return broadcast

    def _repeat(self, record: Record) -> None:
        """Replay a record of the journal. A step must give the same x̂ as before, because clients hold it."""
        if record.entry is Entry.STEP:
            self._step()
            if _DIGEST.unpack_from(record.note) != (self.server.hidden_state.digest,):
                raise DataError(f"step {self.server.version} of the journal gives another hidden state than before")
        else:
            upload = Message.from_bytes(record.data)
            note = UploadNote.read(record, upload)
            self._count(record.data, upload, note)
            self.since.append(upload.sender)
            self.norms.pop(upload.sender, None)  # the latest is the last
            if note.norm:
                self.norms[upload.sender] = note.norm

    def has_new_key(self, client: int, key: int) -> bool:
        """Whether this key of a client is new, so that its numbers restart. With a client memory they never restart."""
        return bool(key) and not self._with_memory and self.keys.get(client, key) != key

    def last_of(self, client: int) -> tuple[int, int]:
        """Number and checksum of the client's last counted upload; (-1, 0) if there is none."""
        highest, _ = self.server.seen.windows.get(client, (-1, 0))
        return highest, self._last.get(client, (0, 0))[0]

    def receivable_bytes(self, client: int) -> int:
        """The most bytes that a client can have received since its last counted upload: broadcasts and one snapshot."""
        _, position = self._last.get(client, (0, 0))
        return self.server.broadcast_bytes - position + self.server.hidden_state.snapshot_bytes

    def _count(
        self,
        frame: bytes,
        upload: Message,
        note: UploadNote,
        decoded: Vector | None = None,
        admitted: Admitted | None = None,
    ) -> Accepted:
        client = upload.sender
        if self._batch is not None:
            raise DataError(f"step {self.server.version + 1} is due before a further upload")
        if admitted is None and self.has_new_key(client, note.key):
            admitted = self.server.admit(upload, anew=True)
        upload = upload if note.weight == upload.weight else upload._replace(weight=note.weight)
        accepted = self.server.receive(upload, note.factor, decoded, admitted)
        self._batch = accepted.batch
        if note.key:
            self.keys[client] = note.key
        is_latest = self.server.seen.windows[client][0] == upload.sequence
        checksum = checksum_of(frame) if is_latest else self.last_of(client)[1]
        self._last[client] = checksum, self.server.broadcast_bytes
        self.traffic.count_upload(frame, accepted.staleness)
        self.traffic.count_download(note.received_bytes)
        return accepted

    def _step(self) -> bytes:
        version, batch = self.server.version, self._batch
        if batch is None:
            raise DataError(f"step {version + 1} of the journal has no uploads")
        self._batch = None
        broadcast = self.server.step(batch)
        self.traffic.count_broadcast(broadcast)
        self.broadcasts.append((version, broadcast))
        return broadcast

    def begin_checkpoint(
        self, every: int, judged: Callable[[], tuple[Mapping[int, float], Sequence[ClientShare]]] = lambda: ({}, ())
    ) -> Callable[[], None] | None:
        """Return a function that writes the current state, to be called in a thread; None if no checkpoint is due.

        every   uploads between two checkpoints, fewer if they are large
        judged  returns the clients' norms and shares
        """
        before, now = self._saved, self.traffic
        if self._diverged:  # a failed step leaves a partial state
            return None
        if now.uploads - before.uploads < every and now.upload_bytes - before.upload_bytes < _JOURNAL_BYTES:
            return None
        now, saved = now.copy(), save_server(self.server)
        self._saved = now
        norms, shares = judged()
        values = {
            "server": saved.values,
            "traffic": asdict(now),
            "norms": list(norms.items()),
            "shares": shares,
            "keys": list(self.keys.items()),
            "last": list(self._last.items()),
            "void": self._void,
            "journal_checksum": self.journal.checksum,
        }
        records = self.journal.count
        self.journal.rotate()

        def write() -> None:
            whole = Checkpoint(saved.arrays, values, saved.rows)
            write_checkpoint(self.folder / f"checkpoint-{records:012}.qafel", whole, self._rows)
            sync_folder(self.folder)
            self.saved_uploads = now.uploads
            for _, path in _checkpoints(self.folder)[:-_KEPT]:
                path.unlink(missing_ok=True)

        return write

    def quarantine(self, name: str, frame: bytes) -> None:
        """Store an upload that the server cannot process, for the operator. At most a hundred are stored."""
        folder = self.folder / "quarantine"
        try:
            folder.mkdir(exist_ok=True)
            if sum(1 for _ in folder.iterdir()) < _QUARANTINED:
                write_atomically(folder / name, frame)
        except (OSError, OutputError) as error:
            log.error("Could not quarantine upload %s: %s", name, error)

    def drop_old_journal(self) -> None:
        """Delete records that no kept checkpoint needs."""
        kept = _checkpoints(self.folder)
        if len(kept) >= _KEPT:
            self.journal.drop_before(kept[-_KEPT][0])


def _run_id(folder: Path) -> str:
    """The run's identity, which distinguishes it from other runs of the same name."""
    path = folder / "run-id"
    try:
        found = read_word(path)
    except DataError as error:
        raise DataError(
            f"{error}: restore it from a copy, or delete it and start with `take_over`. All counted updates stay, and "
            "clients see a new run"
        ) from None
    if found is None:
        write_word(path, found := uuid.uuid4().hex)
    return found


def _epoch(folder: Path) -> int:
    try:
        return int(read_word(folder / "epoch") or 0)
    except (DataError, ValueError):
        log.warning("%s is damaged. Using the broker's epoch.", folder / "epoch")
        return 0


def _newest_sound(
    folder: Path, history: int, begin: Callable[[], Server], restore: Callable[[Checkpoint], Server]
) -> Ledger:
    """Restore the newest checkpoint whose journal can be replayed, or start from x⁰ if the whole journal is there."""
    failed: list[tuple[Path, Exception]] = []
    for _, path in reversed(_checkpoints(folder)):
        try:
            ledger = Ledger(folder, *_read(path, restore), history)
            break
        except (DamagedJournal, OutputError):
            raise
        except Exception as error:  # a flipped bit can cause any error
            log.warning("Cannot use %s, trying the previous one: %s", path, error)
            failed.append((path, error))
    else:
        if failed and not begins_at_start(folder):
            raise DataError(f"cannot use any checkpoint in {folder}; {failed[0][0]}: {failed[0][1]}") from None
        ledger = Ledger(folder, begin(), RowLog(folder, _KEPT), _NEW, history)
    for path, _ in failed:  # do not count it among the kept ones
        path.rename(path.with_suffix(".unused"))
    return ledger


def _read(path: Path, restore: Callable[[Checkpoint], Server]) -> tuple[Server, RowLog, _Values]:
    rows = RowLog(path.parent, _KEPT)
    saved = read_checkpoint(path, rows)
    try:
        values = _Values.model_validate(saved.values)
    except ValidationError as error:
        raise DataError(f"{path} is damaged ({fault_of(error)})") from None
    return restore(Checkpoint(saved.arrays, values.server, saved.rows)), rows, values


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    paths = folder.glob("checkpoint-*.qafel")
    return sorted((int(path.stem.removeprefix("checkpoint-")), path) for path in paths)
