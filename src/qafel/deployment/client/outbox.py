"""A client's uploads, until the server says what became of them.

The broker's word is not enough, as it may lose what it acknowledged; so it is not even asked for, but for uploads in
parts. An upload without a receipt is sent again, and the server's replay window makes that harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from qafel.algorithm.replay import WINDOW
from qafel.deployment.connection import Broker, Stored
from qafel.deployment.keys import Signer
from qafel.deployment.messages import Receipt, split
from qafel.deployment.names import PART, SIGNATURE
from qafel.errors import BrokerRefused, DataError

_RESEND_S: Final = 3.0


_RESEND_BYTES_PER_S: Final = 4 << 20  # a large upload needs its time before it counts as lost


_RESEND_MOST_S: Final = 60.0


_MOST_HIGHEST: Final = 2**31 - 1  # of the 2³² numbers that a header holds; no client gets as far


log = logging.getLogger(__name__)


Heard = Callable[[int | None, str, str, int], None]
"""(sequence, "accepted", "duplicate" or the reason of a rejection, explanation, the version that took it)"""


@final
@dataclass(slots=True)
class _Pending:
    sequence: int
    data: bytes
    due: float
    wait_s: float


@final
class Outbox:
    """At most `window` uploads on their way, all of numbers that the server can still tell from those it counted."""

    def __init__(self, subject: str, signer: Signer | None, window: int, heard: Heard, news: asyncio.Event) -> None:
        """`news` is set when receipts came."""
        self._news = news
        self._subject = subject
        self._signer = signer
        self._window = window
        self._heard = heard
        self._pending: dict[int, _Pending] = {}
        self._wake = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.sent_bytes = 0
        self.highest = -1
        """The highest number that the server has seen, where it said so."""

    def has_room(self, sequence: int) -> bool:
        """Whether an upload of this number may begin. One that the server's replay window has moved past would be
        called a duplicate, though it was never counted; so the oldest that is on its way holds back the newest.
        """
        oldest = min(self._pending, default=sequence)
        return len(self._pending) < self._window and sequence - oldest < WINDOW

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, sequence: int, upload: bytes) -> None:
        wait_s = _RESEND_S + len(upload) / _RESEND_BYTES_PER_S
        self._pending[sequence] = _Pending(sequence, upload, time.monotonic(), wait_s)
        self._wake.set()

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
            now = time.monotonic()
            for pending in [pending for pending in self._pending.values() if pending.due <= now]:
                await self._send(broker, pending)
            next_due = min((pending.due for pending in self._pending.values()), default=now + 60)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_due - time.monotonic())):
                    await self._wake.wait()

    async def on_receipt(self, stored: Stored) -> None:
        try:
            receipt = Receipt.from_bytes(stored.data)
        except DataError:
            return
        for sequence, version in receipt.accepted:
            self._settle(sequence, "accepted", "", version)
        for sequence in receipt.duplicate:
            self._settle(sequence, "duplicate", "counted before", -1)
        if receipt.highest <= _MOST_HIGHEST:  # nobody signs receipts, and a false one must not use up the numbers
            self.highest = max(self.highest, receipt.highest)
        for damaged, reason, text in receipt.rejected:
            self._settle(damaged, reason, text, -1)
        self._news.set()

    def _settle(self, sequence: int | None, outcome: str, text: str, version: int) -> None:
        if sequence is not None and self._pending.pop(sequence, None) is None:
            return  # a receipt for one that was sent twice, or by an earlier process
        self.counts[outcome] += 1
        self._heard(sequence, outcome, text, version)

    async def _send(self, broker: Broker, pending: _Pending) -> None:
        pending.due = time.monotonic() + pending.wait_s
        pending.wait_s = max(pending.wait_s, min(_RESEND_MOST_S, 2 * pending.wait_s))
        headers = {SIGNATURE: self._signer.sign(self._subject, pending.data)} if self._signer else {}
        parts = split(pending.data, broker.part_bytes)
        self.sent_bytes += len(pending.data)
        if len(parts) == 1:
            await broker.send(self._subject, pending.data, headers=headers)
            return
        try:
            for number, part in enumerate(parts):
                headers[PART] = f"{pending.sequence}/{number}/{len(parts)}"
                await broker.store(self._subject, part, dict(headers))
        except BrokerRefused as error:
            log.info("%s; trying again", error)
            pending.due = time.monotonic() + 1.0
