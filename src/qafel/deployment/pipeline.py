"""From an upload to its receipt, in three stages that work side by side:

    pull a group → check and receive each (Algorithm 1)
        → sync the journal once → broadcast
            → acknowledge → send receipts

While one group is being synced the next is received.
"""

from __future__ import annotations

import asyncio
import time
from typing import final

from qafel.deployment.broker import Broker
from qafel.deployment.course import Course
from qafel.deployment.intake import Group, Intake
from qafel.deployment.observe import Metrics
from qafel.deployment.pull import Pull
from qafel.deployment.receipts import Receipt
from qafel.deployment.refill import Publisher
from qafel.deployment.settings import ServerSettings
from qafel.deployment.upkeep import Upkeep


@final
class Pipeline:
    """One session's. The last stage ends when all that was taken is acknowledged; the others wait for that."""

    def __init__(
        self,
        intake: Intake,
        course: Course,
        publisher: Publisher,
        upkeep: Upkeep,
        metrics: Metrics,
        settings: ServerSettings,
    ) -> None:
        self._intake = intake
        self._truth = intake.truth
        self._course = course
        self._publisher = publisher
        self._upkeep = upkeep
        self._metrics = metrics
        self._settings = settings
        self._taken: asyncio.Queue[Group | None] = asyncio.Queue(4)
        self._safe: asyncio.Queue[list[Group] | None] = asyncio.Queue(4)

    async def take(self, pull: Pull) -> None:
        """Groups of uploads into the truth, until the run ends."""
        while self._course.goes_on:
            group = Group()
            for message in await pull.group(self._settings.group):
                before = self._truth.server.version
                self._intake.take(message, group, time.monotonic())
                self._course.after_upload(before, self._intake.diverged)
                if not self._course.goes_on:
                    break
            group.checkpoint = self._truth.begin_checkpoint(
                self._settings.checkpoint_every, self._intake.guard.median.norms()
            )
            await self._taken.put(group)
        await self._taken.put(None)
        await asyncio.Event().wait()

    async def make_safe(self, broker: Broker) -> None:
        """Sync once for all groups that wait; only then let anyone know."""
        while True:
            groups = [await self._taken.get()]
            while not self._taken.empty():
                groups.append(self._taken.get_nowait())
            began = time.perf_counter()
            await asyncio.to_thread(self._truth.journal.sync)
            self._metrics.sync_s.observe(time.perf_counter() - began)
            whole = [group for group in groups if group is not None]
            self._count(whole)
            await self._send_out(broker, whole)
            await self._safe.put(whole)
            if groups[-1] is None:
                await self._safe.put(None)
                await asyncio.Event().wait()

    async def acknowledge(self, broker: Broker) -> None:
        """Let the broker forget what is safe, then tell the clients: so they cannot outrun the broker."""
        while (groups := await self._safe.get()) is not None:
            await broker.acknowledge([message for group in groups for message in group.acknowledge])
            receipts: dict[int, Receipt] = {}
            for group in groups:
                for client, receipt in group.receipts.items():
                    receipts.setdefault(client, Receipt()).extend(receipt)
            for client, receipt in receipts.items():
                await broker.send(self._publisher.names.receipt(client), receipt.to_bytes())

    async def _send_out(self, broker: Broker, groups: list[Group]) -> None:
        steps = [step for group in groups for step in group.broadcasts]
        await self._publisher.broadcasts(broker, steps)
        for group in groups:
            self._publisher.out = group.hidden_state or self._publisher.out
            if group.checkpoint is not None:
                self._upkeep.start_checkpoint(group.checkpoint)
        self._metrics.broadcast_bytes.inc(sum(len(frame) for _, frame in steps))
        self._metrics.version.set(self._publisher.out.version)
        self._upkeep.start_snapshot(broker, (version for version, _ in steps))

    def _count(self, groups: list[Group]) -> None:
        accepted = sum(group.accepted for group in groups)
        self._metrics.group.observe(accepted)
        self._metrics.accepted.inc(accepted)
        self._metrics.upload_bytes.inc(sum(group.accepted_bytes for group in groups))
        self._metrics.buffer.set(self._truth.server.buffer.count)
