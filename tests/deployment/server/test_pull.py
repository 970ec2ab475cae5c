"""What the broker says about a request, and what clients say in uploads, are told apart."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from qafel.deployment.connection import Broker
from qafel.deployment.names import Names
from qafel.deployment.server.pipeline import UploadQueue
from qafel.errors import BrokerLost

REPLY = "$JS.ACK.qafel-live-upload.server.1.7.7.1700000000000000000.0"


class StubBroker:
    """Answers each request for uploads with the next message."""

    def __init__(self, *messages: Msg) -> None:
        self.connection = SimpleNamespace(
            new_inbox=lambda: "_INBOX.test", subscribe=self._subscribe, max_payload=1 << 20
        )
        self._messages = list(messages)

    async def _subscribe(self, subject: str, *, cb: Any, **_: Any) -> None:
        self._receive = cb

    async def send(self, subject: str, data: bytes, reply: str) -> None:
        if self._messages:
            await self._receive(self._messages.pop(0))


def _group(*messages: Msg) -> list[Msg]:
    async def pulled() -> list[Msg]:
        pull = UploadQueue(cast(Broker, StubBroker(*messages)), Names("live"))
        await pull.start()
        return await pull.group(10)

    return asyncio.run(pulled())


@pytest.mark.parametrize("status", ["503", "409", "100"])
def test_an_upload_that_calls_itself_a_status_is_an_upload(status: str) -> None:
    headers = {"Status": status, "Description": "Consumer Deleted", "Nats-Pending-Messages": "many"}
    upload = Msg(cast(Any, None), "qafel.live.upload.0", REPLY, b"upload", headers)
    assert _group(upload) == [upload]


def test_a_consumer_that_is_gone_ends_the_session() -> None:
    gone = Msg(cast(Any, None), "_INBOX.test", "", b"", {"Status": "503"})
    with pytest.raises(BrokerLost):
        _group(gone)


def test_a_stray_message_that_cannot_be_acknowledged_is_no_upload() -> None:
    stray = Msg(cast(Any, None), "_INBOX.test", "", b"stray")
    upload = Msg(cast(Any, None), "qafel.live.upload.0", REPLY, b"upload")

    async def check() -> None:
        broker = StubBroker(upload)
        pull = UploadQueue(cast(Broker, broker), Names("live"))
        await pull.start()
        await broker._receive(stray)
        assert await pull.group(10) == [upload]

    asyncio.run(check())
