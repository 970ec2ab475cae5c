"""A client's uploads, until the server says what became of them; and what the client keeps on disk.

The broker's word is not enough, as it may lose what it acknowledged; so it is not even asked for, except for uploads in
parts. An upload without a receipt is sent again, and the server's replay window makes that harmless.
docs/decisions/deployment-broker-is-not-the-truth.md
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self, final

from qafel.algorithm import Algorithm, Held, HiddenState, Message
from qafel.algorithm.admission import WINDOW
from qafel.algorithm.messages import checksum_of
from qafel.deployment.connection import Broker, Stored, wait_for_event
from qafel.deployment.keys import Signer, signed_name
from qafel.deployment.messages import Receipt, split_upload
from qafel.deployment.names import FAILED, FOLLOWS, PART, RECEIVED
from qafel.errors import BrokerRefused, ConfigError, DataError, HiddenStateError, MessageError
from qafel.files import Lock, read_checked, read_word, write_checked, write_word

ANOTHER_PROCESS: Final = "another-process"
COUNTED: Final = ("accepted", "duplicate")
_RESEND_S: Final = 3.0
_RESEND_BYTES_PER_S: Final = 4 << 20  # a large upload needs its time before it counts as lost
_RESEND_MOST_S: Final = 60.0
_FAILURE_BYTES: Final = 300
_MOST_HIGHEST: Final = 2**31 - 1  # of the 2³² numbers that a header holds; no client gets as far
_FILE: Final = "hidden-state"
_FILE_VERSION: Final = 2
_BLOCK: Final = 16  # numbers reserved by one synced write
_MOST: Final = 1024  # the same, for a client that uses up a block within seconds
_SOON_S: Final = 5.0

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class _Pending:
    data: bytes
    due: float
    wait_s: float
    follows: int | None
    """The number that its client's memory follows, if it has one."""
    received_bytes: int
    """What the client received since the upload before, as the server is told."""
    sent_at: float = 0.0
    """When it was sent first."""


@final
@dataclass(slots=True)
class Outbox:
    """Delivers uploads: at most `window` on their way, of numbers that the server can tell from those it counted."""

    _subject: str
    run_id: str
    """What our signature is for, besides the subject."""
    _signer: Signer
    _window: int
    _heard: Callable[[int | None, str, str, int], None]
    """Called for each upload: its sequence; "accepted", "duplicate" or why not; a text; the version that took it.
    "another-process" says that the upload which counted under this number is not ours.
    """
    _news: asyncio.Event
    """Set when receipts came."""
    _counted: Callable[[int, int], None] = lambda sequence, checksum: None
    """Called with the number and the checksum of an upload that counts."""
    counts: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0
    """What the client received and the server was not told of."""
    highest: int = -1
    """The highest number that the server has seen, if it said so."""
    newest: int = -1
    """The highest number that this process, or one before it in the same folder, has used."""
    _usual_s: float = 0.0
    """How long receipts took lately."""
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: tuple[int, bytes] | None = None
    """How often in a row training failed, and why last, as long as the server was not sent it."""

    def has_room(self, sequence: int) -> bool:
        """Whether an upload of this number may begin. One that the server's replay window has moved past would be
        called a duplicate, though it was never counted; so the oldest that is on its way holds back the newest.
        """
        oldest = min(self._pending, default=sequence)
        return len(self._pending) < self._window and sequence - oldest < WINDOW

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, sequence: int, upload: bytes, follows: int | None = None) -> None:
        # Where receipts take long, all clients sending twice would make them take longer.
        wait_s = max(_RESEND_S, min(_RESEND_MOST_S, 4 * self._usual_s)) + len(upload) / _RESEND_BYTES_PER_S
        self._pending[sequence] = _Pending(upload, time.monotonic(), wait_s, follows, self.received_bytes)
        self.received_bytes = 0
        self.newest = max(self.newest, sequence)
        self._wake.set()

    def add_failure(self, times: int, why: str) -> None:
        """Have the server told that training failed, so often in a row."""
        self._failure = times, why.encode()[:_FAILURE_BYTES]
        self._wake.set()

    @property
    def told(self) -> bool:
        """Whether the server was sent the last failure."""
        return self._failure is None

    def clear(self) -> None:
        """Forget all that is on its way: it belongs to a run that is over."""
        self._pending.clear()
        self.highest = -1

    def send_again(self) -> None:
        """Send all at once that has no receipt: it may be lost."""
        for pending in self._pending.values():
            pending.due = 0.0
        self._wake.set()

    async def deliver(self, broker: Broker) -> None:
        """Send what is due, forever. A new session sends all at once that the last one heard nothing of."""
        self.send_again()
        while True:
            self._wake.clear()
            if self._failure is not None:
                times, why = self._failure
                headers = self._signer.headers(signed_name(f"{self._subject} {FAILED}", self.run_id, times), why)
                await broker.send(self._subject, why, headers={**headers, FAILED: str(times)})
                await broker.flush()
                self._failure = None
                self._news.set()
            now = time.monotonic()
            for sequence, pending in [each for each in self._pending.items() if each[1].due <= now]:
                await self._send(broker, sequence, pending)
            next_due = min((pending.due for pending in self._pending.values()), default=now + 60)
            await wait_for_event(self._wake, max(0.0, next_due - time.monotonic()))

    async def on_receipt(self, stored: Stored) -> None:
        try:
            receipt = Receipt.from_bytes(stored.data)
        except DataError:
            return
        for sequence, version, checksum in receipt.accepted:
            self._counted(sequence, checksum)
            self._accepted(sequence, version, checksum)
        if receipt.last is not None:
            self._counted(*receipt.last)
        for sequence in receipt.duplicate:
            self._settle(sequence, "duplicate", "counted before", -1)
        highest = -1 if receipt.last is None else receipt.last[0]
        if highest <= _MOST_HIGHEST:  # where nobody signs, a false one must not use up the numbers
            self.highest = max(self.highest, highest)
        elif receipt.duplicate:
            log.warning("the numbers of our uploads are used up: have a new key made (qafel broker add --client N)")
        for damaged, reason, text in receipt.rejected:
            self._settle(damaged, reason, text, -1)
        self._news.set()

    def _accepted(self, sequence: int, version: int, checksum: int) -> None:
        """An upload under our number counts. It is ours, or another process uses the number, too."""
        pending = self._pending.get(sequence)
        if pending is not None and checksum_of(pending.data) == checksum:
            self._settle(sequence, "accepted", "", version)
        elif pending is not None:
            self.highest = max(self.highest, sequence)
            self._settle(sequence, ANOTHER_PROCESS, "another process's update was counted under its number", version)
        elif sequence > self.newest:
            self.highest = max(self.highest, sequence)
            self._heard(sequence, ANOTHER_PROCESS, "", version)

    def _settle(self, sequence: int | None, outcome: str, text: str, version: int) -> None:
        pending = None if sequence is None else self._pending.pop(sequence, None)
        if sequence is not None and pending is None:
            return  # a receipt for one that was sent twice, or by an earlier process
        if pending is not None and outcome not in COUNTED:
            self.received_bytes += pending.received_bytes  # it was not counted either
        if pending is not None and pending.sent_at:
            self._usual_s += 0.25 * (time.monotonic() - pending.sent_at - self._usual_s)
        self.counts[outcome] += 1
        self._heard(sequence, outcome, text, version)

    async def _send(self, broker: Broker, sequence: int, pending: _Pending) -> None:
        pending.sent_at = pending.sent_at or time.monotonic()
        pending.due = time.monotonic() + pending.wait_s
        pending.wait_s = max(pending.wait_s, min(_RESEND_MOST_S, 2 * pending.wait_s))
        headers = self._signer.headers(signed_name(self._subject, self.run_id, pending.follows), pending.data)
        headers[RECEIVED] = str(pending.received_bytes)
        if pending.follows is not None:
            headers[FOLLOWS] = str(pending.follows)
        parts = split_upload(pending.data, broker.part_bytes)
        self.sent_bytes += len(pending.data)
        if len(parts) == 1:
            await broker.send(self._subject, pending.data, headers=headers)
            return
        try:
            for number, part in enumerate(parts):
                headers[PART] = f"{sequence}/{number}/{len(parts)}"
                await broker.store(self._subject, part, dict(headers))
        except BrokerRefused as error:
            log.info("%s; trying again", error)
            pending.due = time.monotonic() + 1.0


class Kept(NamedTuple):
    """What a client starts from."""

    hidden_state: HiddenState
    held: Held
    copy: bytes = b""
    """The message, if it is a quantized copy."""


@final
class ClientState:
    """What a client keeps on disk: its hidden state, and how far its upload numbers are used up. A context."""

    def __init__(self, folder: Path) -> None:
        busy = ConfigError(f"another client uses {folder}: stop it, or choose another `state`")
        self.folder = folder
        self._lock = Lock(folder / "lock", busy)
        self._block = _BLOCK
        self._reserved_at = time.monotonic()
        self.next = self._reserved = 0
        """The number of the next upload, and the first that is not used up on disk."""

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
        """A number that no upload of this client has had, even if it was killed: it is used up on disk first."""
        if self.next >= self._reserved:
            now = time.monotonic()
            self._block = min(_MOST, 2 * self._block) if now - self._reserved_at < _SOON_S else _BLOCK
            self._reserved_at = now
            self._reserve(self.next + self._block)
        self.next += 1
        return self.next - 1

    def skip_to(self, sequence: int) -> None:
        """Never use a number below this one: the server has seen higher ones than this folder remembers."""
        self.next = max(self.next, sequence)

    def give_back(self) -> None:
        """At a clean end, the numbers that were reserved and not used."""
        self._reserve(self.next)

    def load(self, run_id: str, dimension: int, algorithm: Algorithm) -> Kept | None:
        """What was saved, if it is sound and of this run. What is of another version of the format, or damaged, is not
        used: a log line says so, and the client takes the server's snapshot instead.
        """
        path = self.folder / _FILE
        if not path.exists():
            return None
        try:
            head, _, frame = read_checked(path, _FILE, _FILE_VERSION).partition(b"\n")
            saved_id, position, overpaid = head.decode("ascii", "replace").split(" ")
            if saved_id != run_id:
                return None
            state = HiddenState.from_snapshot(Message.from_bytes(frame), dimension, algorithm)
            held = Held(int(position), state.exact, int(overpaid))
            return Kept(state, held, b"" if state.exact else frame)
        except (DataError, MessageError, HiddenStateError, ValueError) as error:
            log.warning("%s; starting from the server's snapshot instead", error)
            return None

    def save(self, run_id: str, kept: Kept) -> None:
        """Replace what was saved by this, of the run with that id."""
        state, held, copy = kept
        head = f"{run_id} {held.position or 0} {held.overpaid}\n".encode()
        write_checked(self.folder / _FILE, _FILE, _FILE_VERSION, head + (copy or state.to_snapshot()))

    def _reserve(self, until: int) -> None:
        write_word(self.folder / "sequence", str(until))
        self._reserved = until

    def _read_reserved(self) -> int:
        try:
            return int(read_word(self.folder / "sequence") or 0)
        except (DataError, ValueError):
            raise ConfigError(
                f"{self.folder / 'sequence'} is damaged, and which numbers are used up is not known: delete the "
                "client's folder, the server will tell"
            ) from None
