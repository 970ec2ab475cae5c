"""A client's folder: its hidden state, the numbers of its uploads, and the memory of its client rule.

A client with a memory has one upload in flight. Before it sends the upload, it writes one file: the memory before the
upload, the upload, and the memory after it. After a kill it sends the same bytes again. A receipt for exactly these
bytes commits the memory after them. The commit needs no write: a killed client receives the receipt again.

Each upload names the counted upload that its memory follows. The server takes it only if that one is the client's last.
So a memory that was lost, copied or restored from an old copy is never used, and its client is refused. An exception: a
client gave up an upload, because the server rejected one copy of it, and another copy was counted. Then the client
adopts the memory after that upload.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Self, final

import numpy as np

from qafel.algorithm import Algorithm, Checkpoint, Held, HiddenState, Message, State
from qafel.algorithm.messages import HEADER_BYTES, checksum_of
from qafel.algorithm.state import Arrays, like, require_arrays
from qafel.errors import ConfigError, DataError, HiddenStateError, MessageError
from qafel.files import Lock, read_checked, read_word, sync_folder, write_checked, write_word
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint

_FILE: Final = "hidden-state"
_FILE_VERSION: Final = 3
_KINDS: Final = {(True, False): "exact", (False, False): "copy", (False, True): "link"}
_BLOCK: Final = 256  # numbers that one synced write reserves
_RESTORE: Final = "restore the client's folder from its newest copy, or take part under another number"

log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """What a client starts from."""

    hidden_state: HiddenState
    held: Held


@final
class ClientState:
    """A client's hidden state and upload numbers on disk. A context that locks the folder."""

    def __init__(self, folder: Path) -> None:
        busy = ConfigError(f"another client uses {folder}: stop it, or choose another `state`")
        self.folder = folder
        self._lock = Lock(folder / "lock", busy)
        self.next = self._reserved = 0
        """The number of the next upload, and the first number that is not reserved on disk."""

    def __enter__(self) -> Self:
        self._lock.__enter__()
        try:
            self.next = self._reserved = self._read_reserved()
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)

    def take_sequence(self) -> int:
        """Return an upload number that was never used, not even by a killed process."""
        if self.next >= self._reserved:
            self._reserve(self.next + _BLOCK)
        self.next += 1
        return self.next - 1

    def skip_to(self, sequence: int) -> None:
        """Use no number below this one, because the server has seen higher ones than this folder knows."""
        self.next = max(self.next, sequence)

    def give_back(self) -> None:
        """Return reserved numbers that were not used, at a clean end."""
        self._reserve(self.next)

    def load(self, run_id: str, dimension: int, algorithm: Algorithm) -> Kept | None:
        """Load what was saved; None if it belongs to another run or is damaged. Then the client takes a snapshot."""
        path = self.folder / _FILE
        if not path.exists():
            return None
        try:
            head, _, frame = read_checked(path, _FILE, _FILE_VERSION).partition(b"\n")
            saved_id, position, overpaid, kind = head.decode("ascii", "replace").split(" ")
            if saved_id != run_id:
                return None
            state = HiddenState.from_snapshot(Message.from_bytes(frame), dimension, algorithm)
            state = replace(state, exact=kind == _KINDS[True, False])
            return Kept(state, Held(int(position), state.exact, int(overpaid), kind == _KINDS[False, True]))
        except (DataError, MessageError, HiddenStateError, ValueError) as error:
            log.warning("%s; starting from the server's snapshot instead", error)
            return None

    def save(self, run_id: str, kept: Kept) -> None:
        """Replace the saved hidden state."""
        state, held = kept
        head = f"{run_id} {held.position or 0} {held.overpaid} {_KINDS[held.exact, held.linked]}\n".encode()
        write_checked(self.folder / _FILE, _FILE, _FILE_VERSION, head + state.to_snapshot())

    def _reserve(self, until: int) -> None:
        write_word(self.folder / "sequence", str(until))
        self._reserved = until

    def _read_reserved(self) -> int:
        try:
            return int(read_word(self.folder / "sequence") or 0)
        except (DataError, ValueError):
            raise ConfigError(
                f"{self.folder / 'sequence'} is damaged, so the used upload numbers are unknown: delete the client's "
                "folder, and the client asks the server"
            ) from None


class Sent(NamedTuple):
    """An upload, and the memory once it counts."""

    sequence: int
    frame: bytes
    """The upload. Only the header if the upload was given up."""
    memory: State


@final
class Memory:
    """The memory that a client starts its next update with."""

    def __init__(self, folder: Path, run_id: str, new: State) -> None:
        """`new`: the memory of a client that never uploaded."""
        self._path = folder / "memory"
        self._run_id = run_id
        self.now = new
        self.follows = -1
        """The number of the counted upload that the memory follows; -1: none."""
        self.next = 0
        """The number of the next upload."""
        self.sent: Sent | None = None
        """The upload in flight."""
        self._given_up: Sent | None = None
        """The last rejected upload. The server may still count a copy of it."""

    @classmethod
    def load(cls, folder: Path, run_id: str, new: State) -> Self:
        """Load the memory of this run, or return a new one. A damaged file raises `ConfigError`."""
        memory = cls(folder, run_id, new)
        if not memory._path.exists():
            return memory
        try:
            arrays, values, _ = read_checkpoint(memory._path)
            if values["run_id"] == run_id:
                memory.now, memory.follows = _unpack("now", new, arrays), int(values["follows"])
                memory.sent = _unpack_sent("sent", new, arrays, values["sent"])
                memory.next = memory.sent.sequence + 1
                if values["given_up"] is not None:
                    memory._given_up = _unpack_sent("given_up", new, arrays, values["given_up"])
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the client's memory is lost, because {error}: {_RESTORE}") from None
        return memory

    def keep(self, sent: Sent) -> Callable[[], None]:
        """Record an upload. The returned function writes it, in any thread. Send the upload only after that."""
        self.sent, self.next = sent, sent.sequence + 1
        arrays = _packed("now", self.now)
        values = {"run_id": self._run_id, "follows": self.follows, "sent": sent.sequence, "given_up": None}
        for name, update in (("sent", sent), ("given_up", self._given_up)):
            if update is not None:
                arrays |= _packed(name, update.memory) | {f"frame.{name}": np.frombuffer(update.frame, np.uint8)}
                values[name] = update.sequence

        def write() -> None:
            write_checkpoint(self._path, Checkpoint(arrays, values))
            sync_folder(self._path.parent)

        return write

    def count(self, sequence: int, checksum: int) -> None:
        """Adopt the memory after a counted upload, if the upload is from this client."""
        for update in (self.sent, self._given_up):
            if update is not None and (update.sequence, checksum_of(update.frame)) == (sequence, checksum):
                self.now, self.follows = update.memory, sequence
                self.sent = self._given_up = None

    def give_up(self) -> None:
        """Keep the memory unchanged, because the upload in flight was rejected."""
        self._given_up = self.sent and self.sent._replace(frame=self.sent.frame[:HEADER_BYTES])
        self.sent = None

    def refusal(self, client: int) -> str:
        """The error text for a client whose memory does not follow its last counted upload."""
        return (
            f"the server's last counted update of client {client} is not update {self.follows}, which the memory in "
            f"{self._path.parent} follows: {_RESTORE}"
        )


def _packed(prefix: str, memory: State) -> Arrays:
    return {f"{prefix}.{name}": np.array(value) for name, value in memory.items()}


def _unpack(prefix: str, new: State, arrays: Arrays) -> State:
    expected = {f"{prefix}.{name}": like(name, value) for name, value in new.items()}
    found = {name: array for name, array in arrays.items() if name.partition(".")[0] == prefix}
    require_arrays(found, expected)
    return {name: found[f"{prefix}.{name}"] for name in new}


def _unpack_sent(name: str, new: State, arrays: Arrays, sequence: int) -> Sent:
    return Sent(int(sequence), arrays[f"frame.{name}"].tobytes(), _unpack(name, new, arrays))
