"""What a server does beside its uploads: checkpoints to its disk and snapshots to the broker, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, final

from qafel.deployment.connection import Broker, end
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.ledger import Truth
from qafel.errors import BrokerError

log = logging.getLogger(__name__)


@final
class Upkeep:
    """At most one checkpoint and one snapshot at a time."""

    def __init__(
        self, truth: Truth, publisher: Publisher, *, snapshot_every: int, history: int, keep_journal: bool
    ) -> None:
        self._truth = truth
        self._publisher = publisher
        # A snapshot and the broadcasts since must overlap.
        self._snapshot_every = min(snapshot_every, max(1, history // 2))
        self._history = history
        self._keep_journal = keep_journal
        self._works: set[asyncio.Task[None]] = set()
        self._checkpointing = asyncio.Lock()
        self._snapshotting = asyncio.Lock()
        self._dropping = asyncio.Lock()
        self._undropped = 0
        """The lowest version whose large broadcast may still be on the broker; a new process looks from the start."""

    async def end(self) -> None:
        """Leave nothing running, as the session ends."""
        await end(self._works)

    def start_checkpoint(self, write: Callable[[], None]) -> None:
        self._start(self.checkpoint(write))

    def start_snapshot(self, broker: Broker, versions: Iterable[int]) -> None:
        """Where one of these steps makes it due."""
        if any((version + 1) % self._snapshot_every == 0 for version in versions):
            self._start(self._snapshot(broker))

    async def checkpoint(self, write: Callable[[], None]) -> None:
        async with self._checkpointing:
            await asyncio.to_thread(write)
            if not self._keep_journal:
                await asyncio.to_thread(self._truth.drop_old_journal)

    async def _snapshot(self, broker: Broker) -> None:
        if self._snapshotting.locked():
            return
        async with self._snapshotting:
            try:
                await self._publisher.snapshot(broker)
            except BrokerError as error:
                log.warning("no snapshot of version %d: %s", self._publisher.out.version, error)
        await self._drop_large_broadcasts(broker)  # which may be many, and holds up no snapshot

    async def _drop_large_broadcasts(self, broker: Broker) -> None:
        """Objects do not leave with the messages that point to them."""
        broadcasts = self._truth.broadcasts
        if self._dropping.locked() or not broadcasts or len(broadcasts[-1][1]) <= broker.part_bytes:
            return
        async with self._dropping:
            try:
                while self._undropped < self._publisher.out.version - self._history:
                    await broker.delete_object(self._publisher.names.broadcast_object(self._undropped))
                    self._undropped += 1
            except BrokerError as error:
                log.warning("large broadcasts from version %d on are not dropped yet: %s", self._undropped, error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
