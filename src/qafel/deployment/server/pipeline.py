"""From an upload to its receipt, in three concurrent stages:

    read a group from the work queue → check and receive each upload (Algorithm 1)
        → sync the journal once → broadcast
            → acknowledge → send receipts

The server receives the next group while it syncs one. docs/decisions/deployment.md
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

from nats.aio.msg import Msg

from qafel.deployment.connection import Broker
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.evaluation import Evaluator, ServerMetrics
from qafel.deployment.server.intake import Intake, UploadGroup
from qafel.deployment.server.ledger import Ledger
from qafel.deployment.transport import cancel_and_wait, wait_for_event
from qafel.errors import BrokerError, BrokerLost
from qafel.text import counted

_AHEAD: Final = 256  # messages requested ahead
_AHEAD_BYTES: Final = 16 << 20  # a broker drops a connection with 64 MB of unread messages
_EXPIRES_S: Final = 2.0
log = logging.getLogger(__name__)


@final
class MessageQueue:
    """Reads uploads or start requests: requests batches ahead, and returns groups."""

    def __init__(self, broker: Broker, stream: str, consumer: str, ahead: int = _AHEAD) -> None:
        """`ahead`: the most messages that the broker delivers before they are taken."""
        self._broker = broker
        self._stream = stream
        self._ahead = ahead
        self._request = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = broker.connection.new_inbox()
        self._came: deque[Msg] = deque()
        self._wake = asyncio.Event()
        self._asked = 0
        self._heard_at = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Make `group` return immediately, with an empty list if nothing arrived."""
        self._stopped = True
        self._wake.set()

    async def start(self) -> None:
        await self._broker.connection.subscribe(self._inbox, cb=self._receive, pending_bytes_limit=0)

    async def group(self, most: int) -> list[Msg]:
        """Return up to `most` messages, as soon as there is one. Raises `BrokerLost` if the consumer is gone."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while not self._came and not self._stopped:
            if loop.time() - self._heard_at > 2 * _EXPIRES_S:
                raise BrokerLost("the broker's consumer does not answer", self._stream)
            await self._ask()
            self._wake.clear()
            await wait_for_event(self._wake, _EXPIRES_S)
        group = [self._came.popleft() for _ in range(min(most, len(self._came)))]
        if not self._stopped:
            await self._ask()
        return group

    async def _ask(self) -> None:
        if self._asked + len(self._came) > self._ahead // 2:
            return
        batch = self._ahead - self._asked - len(self._came)
        self._asked += batch
        most_bytes = max(_AHEAD_BYTES, 2 * self._broker.connection.max_payload)
        request = {"batch": batch, "max_bytes": most_bytes, "expires": int(_EXPIRES_S * 1e9)}
        await self._broker.send(self._request, json.dumps(request).encode(), self._inbox)

    async def _receive(self, message: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if message.reply:
            # Only a client's message has a reply subject. The client wrote the headers, so they prove nothing.
            self._asked = max(0, self._asked - 1)
            self._came.append(message)
        else:
            headers = message.headers or {}
            status = headers.get("Status")
            if status is None or status == "100":
                return
            # The request expired or reached its byte limit (408, 409), or the consumer is gone (409, 503).
            undelivered = headers.get("Nats-Pending-Messages")
            self._asked = max(0, self._asked - int(undelivered)) if undelivered else 0
            if status == "503" or "deleted" in headers.get("Description", "").lower():
                self._heard_at = float("-inf")
        self._wake.set()


@final
@dataclass(slots=True)
class BackgroundWriter:
    """Writes checkpoints to disk and snapshots to the broker in the background, one of each at a time."""

    _ledger: Ledger
    _publisher: Publisher
    _settings: ServerSettings
    failed_checkpoints: int = 0
    problem: str = ""
    """Why the last checkpoint failed; empty if it succeeded."""
    _works: set[asyncio.Task[None]] = field(default_factory=set)
    _checkpointing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _snapshotting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _dropping: asyncio.Lock = field(default_factory=asyncio.Lock)
    _undropped: int = 0
    """The lowest version whose large broadcast may still be on the broker."""

    async def end(self) -> None:
        """Stop all background work, at the end of a session."""
        await cancel_and_wait(self._works)

    def start_checkpoint(self, write: Callable[[], None]) -> None:
        self._start(self.checkpoint(write))

    def start_snapshot(self, broker: Broker, versions: Iterable[int]) -> None:
        """Start a snapshot if one of these steps makes it due."""
        # The stream must hold all broadcasts since the snapshot.
        every = min(self._settings.snapshot_every, max(1, self._settings.limits.history // 2))
        if any((version + 1) % every == 0 for version in versions):
            self._start(self._snapshot(broker))

    async def checkpoint(self, write: Callable[[], None]) -> None:
        """Write a checkpoint. If that fails, the journal is kept: nothing is lost, but a restart takes longer."""
        async with self._checkpointing:
            try:
                await asyncio.to_thread(write)
                if not self._settings.keep_journal:
                    await asyncio.to_thread(self._ledger.drop_old_journal)
            except Exception as error:  # a full disk, a lack of memory, a fault of a custom part
                self.failed_checkpoints += 1
                why = str(error) or type(error).__name__
                self.problem = f"no checkpoint since {counted(self._ledger.saved_uploads, 'update')}: {why}"
                log.error("%s", self.problem)
            else:
                self.problem = ""

    async def _snapshot(self, broker: Broker) -> None:
        if self._snapshotting.locked():
            return
        async with self._snapshotting:
            try:
                await self._publisher.snapshot(broker)
            except BrokerError as error:  # late clients need it, so start a new session
                broker.give_up(error)
                return
        await self._drop_large_broadcasts(broker)

    async def _drop_large_broadcasts(self, broker: Broker) -> None:
        """Delete old broadcast objects. The stream drops only the messages that point to them."""
        broadcasts = self._ledger.broadcasts
        if self._dropping.locked() or not broadcasts or len(broadcasts[-1][1]) <= broker.part_bytes:
            return
        async with self._dropping:
            try:
                while self._undropped < self._publisher.published.hidden_state.version - self._settings.limits.history:
                    await broker.delete_object(self._publisher.names.broadcast_object(self._undropped))
                    self._undropped += 1
            except BrokerError as error:
                log.warning("Could not delete old broadcasts from version %d on: %s", self._undropped, error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)


@final
@dataclass(slots=True)
class Pipeline:
    """The three stages of a session. `acknowledge` ends last; the others wait for it."""

    _intake: Intake
    _evaluator: Evaluator
    _publisher: Publisher
    _background: BackgroundWriter
    _settings: ServerSettings
    _metrics: ServerMetrics
    _taken: asyncio.Queue[UploadGroup | None] = field(default_factory=lambda: asyncio.Queue(4))
    _safe: asyncio.Queue[list[UploadGroup] | None] = field(default_factory=lambda: asyncio.Queue(4))

    async def take(self, queue: MessageQueue) -> None:
        """Receive groups of uploads, until the run ends."""
        while self._evaluator.running:
            group = UploadGroup()
            for message in await queue.group(self._settings.group):
                self._intake.take(message, group, time.monotonic())
                self._evaluator.after_message(self._intake.diverged)
                if not self._evaluator.running:
                    break
            judged = partial(self._intake.checker.judged, time.monotonic())
            group.checkpoint = self._intake.ledger.begin_checkpoint(self._settings.checkpoint_every, judged)
            await self._taken.put(group)
        await self._taken.put(None)
        await asyncio.Event().wait()

    async def make_safe(self, broker: Broker) -> None:
        """Sync the journal once for all waiting groups, then broadcast their steps."""
        publisher, metrics = self._publisher, self._metrics
        while True:
            taken = [await self._taken.get()]
            while not self._taken.empty():
                taken.append(self._taken.get_nowait())
            with metrics.sync_s.time():
                await asyncio.to_thread(self._intake.ledger.journal.sync)
            groups = [group for group in taken if group is not None]
            metrics.group.observe(sum(group.accepted for group in groups))
            steps = [step for group in groups for step in group.broadcasts]
            await publisher.broadcasts(broker, steps)
            for group in groups:
                publisher.published = group.published or publisher.published
                if group.checkpoint is not None:
                    self._background.start_checkpoint(group.checkpoint)
            self._background.start_snapshot(broker, (version for version, _ in steps))
            await self._safe.put(groups)
            if taken[-1] is None:
                await self._safe.put(None)
                await asyncio.Event().wait()

    async def acknowledge(self, broker: Broker) -> None:
        """Acknowledge synced uploads to the broker, then send receipts to the clients."""
        while (groups := await self._safe.get()) is not None:
            await broker.acknowledge([message for group in groups for message in group.acknowledge])
            await self._publisher.receipts(broker, [group.receipts for group in groups])
