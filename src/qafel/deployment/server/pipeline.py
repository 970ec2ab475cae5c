"""From an upload to its receipt, in three stages that work side by side:

    pull a group → check and receive each (Algorithm 1)
        → sync the journal once → broadcast
            → acknowledge → send receipts

While one group is being synced the next is received.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from typing import Final, final

from nats.aio.msg import Msg

from qafel.deployment.connection import Broker
from qafel.deployment.messages import Receipt
from qafel.deployment.names import CONSUMER, Names
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.evaluation import Course, Metrics
from qafel.deployment.server.intake import Group, Intake
from qafel.deployment.server.upkeep import Upkeep
from qafel.deployment.settings import ServerSettings
from qafel.errors import BrokerLost

# Uploads out of the work queue: asked for in batches, a few hundred or some megabytes ahead, handed on in groups.


_AHEAD: Final = 256  # messages asked for before they are needed


_AHEAD_BYTES: Final = 16 << 20  # and at most so much at a time: a broker drops who lets 64 MB wait


_EXPIRES_S: Final = 2.0


@final
class Pull:
    """A standing request for uploads. `group` returns what has come, at least one message."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._request = f"$JS.API.CONSUMER.MSG.NEXT.{names.upload_stream}.{CONSUMER}"
        self._inbox = broker.connection.new_inbox()
        self._came: deque[Msg] = deque()
        self._wake = asyncio.Event()
        self._asked = 0
        self._heard_at = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Let `group` return, with nothing if nothing came."""
        self._stopped = True
        self._wake.set()

    async def start(self) -> None:
        await self._broker.connection.subscribe(self._inbox, cb=self._receive, pending_bytes_limit=0)

    async def group(self, most: int) -> list[Msg]:
        """Up to `most` messages, as soon as there is one. A consumer that is gone raises `BrokerLost`."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while not self._came and not self._stopped:
            if loop.time() - self._heard_at > 2 * _EXPIRES_S:
                raise BrokerLost("the broker's consumer fell silent")
            await self._ask()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXPIRES_S):
                    await self._wake.wait()
        group = [self._came.popleft() for _ in range(min(most, len(self._came)))]
        if not self._stopped:
            await self._ask()
        return group

    async def _ask(self) -> None:
        if self._asked + len(self._came) > _AHEAD // 2:
            return
        batch = _AHEAD - self._asked - len(self._came)
        self._asked += batch
        most_bytes = max(_AHEAD_BYTES, 2 * self._broker.connection.max_payload)
        request = {"batch": batch, "max_bytes": most_bytes, "expires": int(_EXPIRES_S * 1e9)}
        await self._broker.send(self._request, json.dumps(request).encode(), self._inbox)

    async def _receive(self, message: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        headers = message.headers or {}
        status = headers.get("Status")
        if message.reply:
            # It says where to acknowledge it, so it is an upload. Its headers are its client's, and prove nothing.
            self._asked = max(0, self._asked - 1)
            self._came.append(message)
        elif status is None or status == "100":
            return
        else:
            # A request has run out of time or bytes (408, 409), or the consumer is gone (409, 503): what it still had
            # to deliver is void.
            undelivered = headers.get("Nats-Pending-Messages")
            self._asked = max(0, self._asked - int(undelivered)) if undelivered else 0
            if status == "503" or "deleted" in headers.get("Description", "").lower():
                self._heard_at = float("-inf")
        self._wake.set()


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
