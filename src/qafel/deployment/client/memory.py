"""The memory of a client rule, correct under crashes.

A client with a memory has one upload on its way. Before it sends the upload, it writes one file: the memory before the
upload, the upload, and the memory after it. After a kill it sends the same bytes again. The server's word that exactly
these bytes count commits the memory after them. That needs no write: a client that is killed then hears it again.

Each upload says which counted upload its memory follows. The server takes it only if that is the client's last one.
So a memory that was lost, copied or restored from an old copy is never used, and its client is refused. If the last one
is an upload that the client gave up, because the server rejected another copy of it, the client takes up the memory
after it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Self, final

import numpy as np

from qafel.algorithm import Checkpoint, State
from qafel.algorithm.messages import HEADER_BYTES, checksum_of
from qafel.algorithm.state import Arrays, like, require_arrays
from qafel.errors import ConfigError, DataError
from qafel.files import sync_folder
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint

_FILE: Final = "memory"
_TO_DO: Final = "restore the client's folder from its newest copy, or take part under another number"


class Sent(NamedTuple):
    """An upload, and the memory once it counts."""

    sequence: int
    frame: bytes
    """Of an upload that was given up, the header alone."""
    memory: State


@final
class Memory:
    """The memory that a client begins its next update with, and what becomes of it."""

    def __init__(self, folder: Path, run_id: str, new: State) -> None:
        """`new`: the memory of a client that never uploaded."""
        self._path = folder / _FILE
        self._run_id = run_id
        self.now = new
        self.follows = -1
        """The number of the counted upload that it follows; -1: none."""
        self.next = 0
        """The number of the next upload."""
        self.sent: Sent | None = None
        """The upload on its way."""
        self._given_up: Sent | None = None
        """The last that was rejected: a copy of it may still count."""

    @classmethod
    def load(cls, folder: Path, run_id: str, new: State) -> Self:
        """What the folder holds of this run, or a new memory. A damaged file raises `ConfigError`."""
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
            raise ConfigError(f"the client's memory is lost, because {error}: {_TO_DO}") from None
        return memory

    def keep(self, sent: Sent) -> Callable[[], None]:
        """Note an upload. What this returns makes it last, in any thread; only then it may be sent."""
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
        """Take up the memory after an upload that counts, if it is one of ours."""
        for update in (self.sent, self._given_up):
            if update is not None and (update.sequence, checksum_of(update.frame)) == (sequence, checksum):
                self.now, self.follows = update.memory, sequence
                self.sent = self._given_up = None

    def give_up(self) -> None:
        """The upload on its way was rejected: the memory stays as it was."""
        self._given_up = self.sent and self.sent._replace(frame=self.sent.frame[:HEADER_BYTES])
        self.sent = None

    def refusal(self, client: int) -> str:
        """What the user of a client is told whose memory does not follow its last counted upload."""
        return (
            f"the server's last counted update of client {client} is not update {self.follows}, which the memory in "
            f"{self._path.parent} follows: {_TO_DO}"
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
