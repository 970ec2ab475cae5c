"""A client's uploads in flight, until the server's receipts arrive.

The broker may lose messages that it acknowledged, so the client asks for acknowledgements only for uploads in parts. An
upload without a receipt is sent again. The server's replay window makes that harmless.
docs/decisions/deployment.md
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from qafel.algorithm.admission import WINDOW
from qafel.algorithm.messages import checksum_of
from qafel.deployment.connection import Broker, Stored
from qafel.deployment.keys import Signer, signed_name
from qafel.deployment.messages import Receipt, split
from qafel.deployment.names import FAILED, FOLLOWS, PART, RECEIVED
from qafel.deployment.transport import wait_for_event
from qafel.errors import BrokerRefused, DataError

ANOTHER_PROCESS: Final = "another-process"
COUNTED: Final = ("accepted", "duplicate")
_RESEND_S: Final = 3.0
_RESEND_BYTES_PER_S: Final = 4 << 20  # large uploads take longer
_RESEND_MOST_S: Final = 60.0
_FAILURE_BYTES: Final = 300
_MOST_HIGHEST: Final = 2**31 - 1  # half of the numbers that a header holds; no client uses that many

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class _Pending:
    data: bytes
    due: float
    wait_s: float
    follows: int | None
    """The upload that the client's memory follows, if it has one."""
    received_bytes: int
    """Bytes that the client received since the upload before, for the server's statistics."""
    sent_at: float = 0.0
    """When it was first sent."""


@final
@dataclass(slots=True)
class Outbox:
    """Delivers uploads. At most `window` are in flight, with numbers that fit the server's replay window."""

    _subject: str
    run_id: str
    """The run's identity, which signatures cover."""
    _signer: Signer
    _window: int
    _on_outcome: Callable[[int | None, str, str, int], None]
    """Called for each upload with its sequence, its outcome, a text, and the version whose buffer took it.

    The outcome is "accepted", "duplicate" or the reason of a rejection. "another-process" means that another process's
    upload counted under this number.
    """
    _news: asyncio.Event
    """Set when receipts arrive."""
    _on_counted: Callable[[int, int], None] = lambda sequence, checksum: None
    """Called with the number and checksum of each counted upload."""
    counts: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0
    """Bytes that the client received and has not reported."""
    highest: int = -1
    """The highest number that the server reported as seen."""
    newest: int = -1
    """The highest number used by this process or an earlier one in the same folder."""
    _usual_s: float = 0.0
    """A running mean of how long receipts take."""
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: tuple[int, bytes] | None = None
    """A failure of training to report: how many in a row, and the last reason."""

    def has_room(self, sequence: int) -> bool:
        """Whether an upload with this number may begin.

        The server would treat an upload below its replay window as a duplicate. So the oldest upload in flight limits
        the newest.
        """
        oldest = min(self._pending, default=sequence)
        return len(self._pending) < self._window and sequence - oldest < WINDOW

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, sequence: int, upload: bytes, follows: int | None = None) -> None:
        # If receipts are slow, resending early would make them slower.
        wait_s = max(_RESEND_S, min(_RESEND_MOST_S, 4 * self._usual_s)) + len(upload) / _RESEND_BYTES_PER_S
        self._pending[sequence] = _Pending(upload, time.monotonic(), wait_s, follows, self.received_bytes)
        self.received_bytes = 0
        self.newest = max(self.newest, sequence)
        self._wake.set()

    def add_failure(self, times: int, why: str) -> None:
        """Report a failure of training to the server; `times` counts failures in a row."""
        self._failure = times, why.encode()[:_FAILURE_BYTES]
        self._wake.set()

    @property
    def failure_sent(self) -> bool:
        """Whether the last failure was sent to the server."""
        return self._failure is None

    def clear(self) -> None:
        """Drop all uploads in flight, because their run is over."""
        self._pending.clear()
        self.highest = -1

    def send_again(self) -> None:
        """Send every upload without a receipt again, immediately."""
        for pending in self._pending.values():
            pending.due = 0.0
        self._wake.set()

    async def deliver(self, broker: Broker) -> None:
        """Send uploads when they are due, forever. Each session starts by sending all without a receipt."""
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
            self._on_counted(sequence, checksum)
            self._accepted(sequence, version, checksum)
        if receipt.last is not None:
            self._on_counted(*receipt.last)
        for sequence in receipt.duplicate:
            self._settle(sequence, "duplicate", "counted before", -1)
        if receipt.last is not None and not self._has_seen(receipt.last[0]) and receipt.duplicate:
            log.warning("All upload numbers of this client are used. Make a new key: qafel broker add --client N.")
        for damaged, reason, text in receipt.rejected:
            self._settle(damaged, reason, text, -1)
        self._news.set()

    def _has_seen(self, sequence: int) -> bool:
        """Record a number that the server has seen. Return False if it leaves too few numbers.

        Without signatures, a forged receipt must not use up the numbers.
        """
        if sequence > _MOST_HIGHEST:
            return False
        self.highest = max(self.highest, sequence)
        return True

    def _accepted(self, sequence: int, version: int, checksum: int) -> None:
        """Settle an upload that counts. Its checksum shows whether this process sent it."""
        pending = self._pending.get(sequence)
        if pending is not None and checksum_of(pending.data) == checksum:
            self._settle(sequence, "accepted", "", version)
        elif pending is not None:
            self._has_seen(sequence)
            self._settle(sequence, ANOTHER_PROCESS, "another process's update was counted under its number", version)
        elif sequence > self.newest and self._has_seen(sequence):
            self._on_outcome(sequence, ANOTHER_PROCESS, "", version)

    def _settle(self, sequence: int | None, outcome: str, text: str, version: int) -> None:
        pending = None if sequence is None else self._pending.pop(sequence, None)
        if sequence is not None and pending is None:
            return  # sent twice, or by an earlier process
        if pending is not None and outcome not in COUNTED:
            self.received_bytes += pending.received_bytes  # report them with the next upload
        if pending is not None and pending.sent_at:
            self._usual_s += 0.25 * (time.monotonic() - pending.sent_at - self._usual_s)
        self.counts[outcome] += 1
        self._on_outcome(sequence, outcome, text, version)

    async def _send(self, broker: Broker, sequence: int, pending: _Pending) -> None:
        pending.sent_at = pending.sent_at or time.monotonic()
        pending.due = time.monotonic() + pending.wait_s
        pending.wait_s = max(pending.wait_s, min(_RESEND_MOST_S, 2 * pending.wait_s))
        headers = self._signer.headers(signed_name(self._subject, self.run_id, pending.follows), pending.data)
        headers[RECEIVED] = str(pending.received_bytes)
        if pending.follows is not None:
            headers[FOLLOWS] = str(pending.follows)
        parts = split(pending.data, broker.part_bytes)
        self.sent_bytes += len(pending.data)
        if len(parts) == 1:
            await broker.send(self._subject, pending.data, headers=headers)
            return
        try:
            for number, part in enumerate(parts):
                headers[PART] = f"{sequence}/{number}/{len(parts)}"
                await broker.store(self._subject, part, dict(headers))
        except BrokerRefused as error:
            log.info("%s. Trying again.", error)
            pending.due = time.monotonic() + 1.0
