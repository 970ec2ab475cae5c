"""The broker's words and the clients' are told apart; objects of large broadcasts leave the broker in any case."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from qafel.deployment.connection import Broker
from qafel.deployment.names import Names, StreamLimits
from qafel.deployment.server import ServerSettings, pipeline
from qafel.deployment.server.pipeline import BackgroundWriter, MessageQueue
from qafel.errors import BrokerError, BrokerLost

REPLY = "$JS.ACK.qafel-live-upload.server.1.7.7.1700000000000000000.0"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for uploads expire soon."""
    monkeypatch.setattr(pipeline, "_EXPIRES_S", 0.1)


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
        pull = MessageQueue(cast(Broker, StubBroker(*messages)), Names("live").upload_stream, "server-1")
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
        pull = MessageQueue(cast(Broker, broker), Names("live").upload_stream, "server-1")
        await pull.start()
        await broker._receive(stray)
        assert await pull.group(10) == [upload]

    asyncio.run(check())


HISTORY = 10
NAMES = Names("demo")


class FakeBroker:
    """Holds objects; breaks when told to."""

    part_bytes = 1

    def __init__(self) -> None:
        self.objects: set[str] = set()
        self.breaks_at: str | None = None
        self.given_up: list[BrokerError] = []

    def give_up(self, failure: BrokerError) -> None:
        self.given_up.append(failure)

    async def delete_object(self, name: str) -> None:
        if name == self.breaks_at:
            self.breaks_at = None
            raise BrokerLost("as it happens")
        self.objects.discard(name)


class Run:
    """An upkeep with what it looks at."""

    def __init__(self) -> None:
        self.broker: Any = FakeBroker()
        self.snapshots_fail = False
        out = SimpleNamespace(hidden_state=SimpleNamespace(version=0))
        self.publisher = cast(Any, SimpleNamespace(names=NAMES, published=out, snapshot=self._snapshot))
        ledger: Any = SimpleNamespace(broadcasts=[(0, b"large")])
        settings = ServerSettings(snapshot_every=5, limits=StreamLimits(history=HISTORY))
        self.background = BackgroundWriter(ledger, self.publisher, settings)

    async def _snapshot(self, broker: object) -> None:
        if self.snapshots_fail:
            raise BrokerLost("no snapshot")

    def advance(self, version: int) -> None:
        """To this version, without a look at the broker."""
        for made in range(self.publisher.published.hidden_state.version, version):
            self.broker.objects.add(NAMES.broadcast_object(made))
        self.publisher.published.hidden_state.version = version

    def snapshot(self) -> None:
        asyncio.run(self.background._snapshot(self.broker))

    def kept(self) -> bool:
        """Exactly the broadcasts that the stream still points to are on the broker."""
        version = self.publisher.published.hidden_state.version
        expected = range(max(0, version - HISTORY), version)
        return bool(self.broker.objects == {NAMES.broadcast_object(number) for number in expected})


def test_versions_whose_snapshot_was_skipped_are_dropped_with_the_next() -> None:
    run = Run()
    for version in (5, 15, 60, 65):
        run.advance(version)
        run.snapshot()
        assert run.kept(), version


def test_a_broken_connection_or_a_failed_snapshot_leaves_no_object_behind() -> None:
    run = Run()
    run.advance(40)
    run.broker.breaks_at = NAMES.broadcast_object(7)
    run.snapshot()
    assert NAMES.broadcast_object(7) in run.broker.objects
    assert NAMES.broadcast_object(6) not in run.broker.objects
    run.advance(45)
    run.snapshots_fail = True
    run.snapshot()
    assert [str(failure) for failure in run.broker.given_up] == ["no snapshot"], "the session ends"
    run.snapshots_fail = False
    run.snapshot()
    assert run.kept()


def test_a_new_process_drops_what_the_one_before_left() -> None:
    before, after = Run(), Run()
    before.advance(80)
    after.broker, after.publisher.published = before.broker, before.publisher.published
    after.snapshot()
    assert after.kept()
