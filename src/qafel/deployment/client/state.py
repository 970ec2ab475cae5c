"""What a client keeps on disk: its hidden state, and how far its upload numbers are used up."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import Final, Self, final

from qafel.algorithm import Algorithm, HiddenState, Message
from qafel.errors import ConfigError, HiddenStateError, MessageError, OutputError
from qafel.files import sync_folder, write_atomically

_BLOCK: Final = 16  # numbers reserved by one synced write


_MOST: Final = 1024  # the same, for a client that uses up a block within seconds


_SOON_S: Final = 5.0


@final
class ClientState:
    """A folder, used by one process at a time."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("w", encoding="ascii")
        except OSError as error:
            raise OutputError(
                f"cannot keep a client's state in {folder}: {error.strerror}; choose another --state"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(f"another client uses {folder}: stop it, or choose another --state") from None
        self._folder = folder
        self._block = _BLOCK
        self._reserved_at = time.monotonic()
        self._next = self._reserved = self._read_reserved()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def take_sequence(self) -> int:
        """A number that no upload of this client has had, even if it was killed: it is used up on disk first."""
        if self._next >= self._reserved:
            now = time.monotonic()
            self._block = min(_MOST, 2 * self._block) if now - self._reserved_at < _SOON_S else _BLOCK
            self._reserved_at = now
            self._reserve(self._next + self._block)
        self._next += 1
        return self._next - 1

    def skip_to(self, sequence: int) -> None:
        """Never use a number below this one: the server has seen higher ones than this folder remembers."""
        self._next = max(self._next, sequence)

    def give_back(self) -> None:
        """At a clean end, the numbers that were reserved and not used."""
        self._reserve(self._next)

    def load(self, run_id: str, dimension: int, algorithm: Algorithm) -> HiddenState | None:
        """The hidden state that was saved, if it is sound and of this run."""
        try:
            saved_id, _, frame = (self._folder / "hidden-state").read_bytes().partition(b"\n")
            if saved_id.decode("ascii", "replace") != run_id:
                return None
            return HiddenState.from_snapshot(Message.from_bytes(frame), dimension, algorithm)
        except (OSError, MessageError, HiddenStateError):
            return None

    def save(self, run_id: str, hidden_state: HiddenState) -> None:
        write_atomically(self._folder / "hidden-state", run_id.encode() + b"\n" + hidden_state.to_snapshot())

    def _reserve(self, until: int) -> None:
        write_atomically(self._folder / "sequence", str(until).encode())
        sync_folder(self._folder)
        self._reserved = until

    def _read_reserved(self) -> int:
        try:
            return int((self._folder / "sequence").read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise ConfigError(f"{self._folder / 'sequence'} is damaged ({error}): delete the folder") from None
