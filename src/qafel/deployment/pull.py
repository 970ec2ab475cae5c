"""Uploads out of the work queue: asked for in batches, a few hundred or some megabytes ahead, handed on in groups."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from typing import Final, final

from nats.aio.msg import Msg

from qafel.deployment.broker import Broker
from qafel.deployment.layout import CONSUMER, Names
from qafel.errors import BrokerLost

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
