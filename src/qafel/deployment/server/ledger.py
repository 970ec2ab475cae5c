"""The server's state and its proof: the pure `Server`, a checkpoint of it, and the journal of uploads since.

x and x̂ are a function of the journal. A start restores the newest sound checkpoint and receives the records after it
again; the broadcasts that this makes again are bit-identical, because their randomness is named by the version.
"""

from __future__ import annotations

import fcntl
import json
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

import safetensors
import safetensors.numpy

from qafel.algorithm import Accepted, Algorithm, Checkpoint, Message, Server, restore_server, save_server
from qafel.deployment.server.journal import Journal, read
from qafel.errors import ConfigError, DataError
from qafel.files import sync_folder, write_atomically
from qafel.params import Vector

_JOURNAL_BYTES: Final = 1 << 30  # received again at most, besides what comes while a checkpoint is written


_KEPT: Final = 2  # checkpoints: the one before the last survives a damaged disk block


log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class Totals:
    """What was taken and sent since the run began."""

    uploads: int = 0
    upload_bytes: int = 0
    broadcasts: int = 0
    broadcast_bytes: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    norms: dict[str, float] = field(default_factory=dict)
    """Each client's last norm, so that a restarted server judges as before."""


@final
class Truth:
    """The one place where uploads count. `take` changes the state, `sync` makes it last."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        totals: Totals,
        journal: Journal,
        run_id: str,
        broadcasts: deque[tuple[int, bytes]],
        lock: Any,
    ) -> None:
        self.folder = folder
        self.server = server
        self.totals = totals
        self.journal = journal
        self.run_id = run_id
        self.broadcasts = broadcasts
        """The last broadcasts with their versions: what a broker that lost them is given again."""
        self._lock = lock
        self._unsaved = self._unsaved_bytes = 0

    @staticmethod
    def open(
        folder: Path,
        initial_model: Callable[[], Vector],
        algorithm: Algorithm,
        seed: int,
        *,
        history: int = 1000,
    ) -> Truth:
        """Begin a run, or go on where its folder ends."""
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        run_id = _run_id(folder)
        server, totals = _newest_checkpoint(folder, algorithm, seed)
        if server is None:
            server, totals = Server(initial_model(), algorithm, seed, log_capacity=0), Totals()
        broadcasts: deque[tuple[int, bytes]] = deque(maxlen=history)
        saved = totals.uploads
        for frame in read(folder, saved):
            _count(totals, server.version, frame, server.receive(Message.from_bytes(frame)), broadcasts)
        if totals.uploads > saved:
            log.info("received %d journalled uploads again, now at version %d", totals.uploads - saved, server.version)
        return Truth(folder, server, totals, Journal(folder, totals.uploads), run_id, broadcasts, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        self._lock.close()

    def take(self, frame: bytes, message: Message) -> Accepted:
        """Receive an upload and journal its frame. A rejected upload raises, and leaves no record but its count."""
        version = self.server.version
        accepted = self.server.receive(message)
        self.journal.append(frame)
        _count(self.totals, version, frame, accepted, self.broadcasts)
        self._unsaved += 1
        self._unsaved_bytes += len(frame)
        return accepted

    def begin_checkpoint(self, every: int, norms: Mapping[int, float]) -> Callable[[], None] | None:
        """Every so many uploads, fewer if large: what writes the state of this moment, to be called in a thread."""
        if self._unsaved < every and self._unsaved_bytes < _JOURNAL_BYTES:
            return None
        self._unsaved = self._unsaved_bytes = 0
        self.totals.norms = {str(client): norm for client, norm in norms.items()}
        checkpoint = save_server(self.server)
        values = {**checkpoint.values, "totals": asdict(self.totals)}
        count = self.totals.uploads
        self.journal.rotate()
        return lambda: _write_checkpoint(self.folder, count, Checkpoint(checkpoint.arrays, values))

    def drop_old_journal(self) -> None:
        """Delete what no kept checkpoint needs."""
        kept = _checkpoints(self.folder)
        if len(kept) >= _KEPT:
            self.journal.drop_before(kept[-_KEPT][0])


def replay(folder: Path, initial_model: Vector, algorithm: Algorithm, seed: int) -> Server:
    """The server that the whole journal makes of the initial model: what x and x̂ must be."""
    server = Server(initial_model, algorithm, seed)
    for frame in read(folder):
        server.receive(Message.from_bytes(frame))
    return server


def _count(
    totals: Totals,
    version: int,
    frame: bytes,
    accepted: Accepted,
    broadcasts: deque[tuple[int, bytes]],
) -> None:
    totals.uploads += 1
    totals.upload_bytes += len(frame)
    totals.staleness_sum += accepted.staleness
    totals.staleness_max = max(totals.staleness_max, accepted.staleness)
    if accepted.broadcast is not None:
        totals.broadcasts += 1
        totals.broadcast_bytes += len(accepted.broadcast)
        broadcasts.append((version, accepted.broadcast))


def _write_checkpoint(folder: Path, count: int, checkpoint: Checkpoint) -> None:
    metadata = {"qafel": json.dumps(checkpoint.values)}
    data = safetensors.numpy.save(checkpoint.arrays, metadata)
    write_atomically(folder / f"checkpoint-{count:012}.safetensors", data)
    sync_folder(folder)
    for _, path in _checkpoints(folder)[:-_KEPT]:
        path.unlink(missing_ok=True)


def _newest_checkpoint(folder: Path, algorithm: Algorithm, seed: int) -> tuple[Server | None, Totals]:
    for _, path in reversed(_checkpoints(folder)):
        try:
            with safetensors.safe_open(str(path), "numpy") as file:
                values = json.loads(file.metadata()["qafel"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a mapping
            totals = Totals(**values.pop("totals"))
            return restore_server(Checkpoint(arrays, values), algorithm, seed, log_capacity=0), totals
        except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError, DataError) as error:
            log.warning("%s cannot be used, trying the one before: %s", path, error)
    return None, Totals()


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    paths = folder.glob("checkpoint-*.safetensors")
    return sorted((int(path.stem.removeprefix("checkpoint-")), path) for path in paths)


def _run_id(folder: Path) -> str:
    """Tells a run from another of the same name: a client's saved hidden state belongs to one of them."""
    path = folder / "run-id"
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex.encode())
        sync_folder(folder)
    return path.read_text(encoding="ascii")


def _lock(folder: Path) -> Any:
    file = (folder / "lock").open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"another server uses {folder}: stop it, or choose another --out") from None
    return file
