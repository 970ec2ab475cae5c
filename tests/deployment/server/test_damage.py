"""The broker's files are damaged, or its streams deleted: the run goes on, and other runs on the broker stay."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from qafel.config import Config
from qafel.deployment import connection
from qafel.deployment.broker import LocalBroker
from qafel.deployment.connection import Broker, session
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement
from qafel.deployment.names import KEY_VALUE_STREAM, OBJECT_STREAM, Names, StreamLimits
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.journal import read_journal
from qafel.deployment.server.server import DeploymentServer
from qafel.errors import BrokerLost, BrokerRefused
from qafel.runs.live import LiveState
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update

NAMES, OTHER = Names("live"), Names("other")
SETTINGS = ServerSettings(heartbeat_s=0.1, snapshot_every=1, keep_journal=True, limits=StreamLimits(history=4))


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _flip_key_value(streams: Path, server: DeploymentServer) -> None:
    _flip(streams / KEY_VALUE_STREAM / "msgs" / "1.blk", -200)  # in the run's state, which is renewed all the time


def _flip_snapshot(streams: Path, server: DeploymentServer) -> None:
    path = streams / OBJECT_STREAM / "msgs" / "1.blk"
    _flip(path, path.read_bytes().rindex(b'"live/snapshot"'))


def _flip_oldest_broadcast(streams: Path, server: DeploymentServer) -> None:
    (path,) = (streams / NAMES.broadcast_stream / "msgs").glob("*.blk")
    _, frame = list(server.ledger.broadcasts)[-4]  # the next that has to make room
    _flip(path, path.read_bytes().rindex(frame))


def _flip_consumer(streams: Path, server: DeploymentServer) -> None:
    (path,) = (streams / NAMES.upload_stream / "obs").glob("*/meta.inf")
    _flip(path, path.read_bytes().index(b"durable_name"))


def _sessions(server: DeploymentServer) -> float:
    return server.metrics.registry.get_sample_value("qafel_broker_sessions_total", {"run": "live"}) or 0


_LONG = [pytest.param(flip, marks=pytest.mark.faults) for flip in (_flip_snapshot, _flip_oldest_broadcast)]


@pytest.mark.parametrize("damage", [_flip_key_value, pytest.param(_flip_consumer, marks=pytest.mark.slow), *_LONG])
def test_a_flipped_bit_in_the_brokers_store_does_not_stop_a_run(
    tmp_path: Path,
    local_broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path, DeploymentServer], None],
) -> None:
    """nats-server trusts its index: it confirms no more, cannot give what it confirmed, or takes the stream offline."""
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    access = Access((local_broker.url,))

    async def check() -> None:
        other = Config.from_dict({**CONFIG, "name": "other"})
        async with serving(tmp_path / "other", access, other), taking_part(tmp_path, access, 1, "other") as client:
            await update(client)
        async with serving(tmp_path / "run", access, settings=SETTINGS) as server:
            async with taking_part(tmp_path, access, 0) as client:
                for _ in range(30):
                    await update(client)
                await asyncio.to_thread(local_broker.stop)
                damage(local_broker.folder / "store" / "jetstream" / "$G" / "streams", server)
                await asyncio.to_thread(local_broker.start)
                for _ in range(15):
                    await update(client, most_s=120)
                monkeypatch.setattr(connection, "ANSWER_S", 60.0)  # from now on no session may end
                sessions = _sessions(server)
                for _ in range(6):
                    await update(client, most_s=120)
                assert _sessions(server) == sessions
                await until(lambda: same(server, client.core.hidden_state))
            async with taking_part(tmp_path, access, 2) as late, session(access, "test") as broker:
                await until(lambda: same(server, late.core.hidden_state))
                await update(late)
                state = await broker.stored(KEY_VALUE_STREAM, OTHER.state)
                assert state is not None
                assert LiveState.from_bytes(state.data).status == "stopped"
                agreed = await broker.stored(KEY_VALUE_STREAM, OTHER.config)
                assert agreed is not None
                assert Agreement.from_bytes(agreed.data).run_id
        assert len(list(read_journal(tmp_path / "run" / "state"))) == 52
        async with serving(tmp_path / "other", access, other), taking_part(tmp_path, access, 1, "other") as client:
            await update(client)

    asyncio.run(check())


def test_streams_that_someone_deletes_are_made_again(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 2.0)

    async def check() -> None:
        async with serving(tmp_path / "run", access, settings=SETTINGS) as server:
            async with taking_part(tmp_path, access, 0) as client:
                for stream in (KEY_VALUE_STREAM, OBJECT_STREAM, NAMES.broadcast_stream, NAMES.upload_stream):
                    await update(client)
                    async with session(access, "test") as broker:
                        assert await broker.delete(stream)
                    for _ in range(6):
                        await update(client)
            async with taking_part(tmp_path, access, 1) as late:
                await until(lambda: same(server, late.core.hidden_state))

    asyncio.run(check())


def test_a_bucket_that_is_made_again_keeps_what_can_be_read_and_its_numbers_go_on(access: Access) -> None:
    """A server that slept meanwhile does not replace a state that it has not seen."""

    async def check() -> None:
        async with session(access, "test") as broker:
            await broker.ensure_buckets(1)
            first = await broker.store(NAMES.state, b"first", {"Qafel-Signature": "mine"}, after=0)
            await broker.store(OTHER.state, b"other", after=0)
            for name in ("a", "b"):
                await broker.put_object(name, name.encode() * 1_000_000, f"about {name}")
            for stream in (KEY_VALUE_STREAM, OBJECT_STREAM):
                await broker.make_again(stream)
            for name in ("a", "b"):
                assert await broker.object(name, 1 << 20) == (name.encode() * 1_000_000, f"about {name}")
            stored = await broker.stored(KEY_VALUE_STREAM, NAMES.state)
            assert stored is not None
            assert (stored.data, stored.headers["Qafel-Signature"]) == (b"first", "mine")
            assert stored.sequence > first + 1
            with pytest.raises(BrokerRefused, match="wrong last sequence"):
                await broker.store(NAMES.state, b"second", after=first)
            await broker.store(NAMES.state, b"second", after=stored.sequence)

    asyncio.run(check())


def test_a_claim_whose_answer_was_lost_is_a_claim(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has the state, and its epoch with it: to serve in epoch 0 would be to be ignored by clients."""
    store, lost = Broker.store, list[str]()

    async def without_answer(
        self: Broker, subject: str, data: bytes, headers: dict[str, str] | None = None, *, after: int | None = None
    ) -> int:
        sequence = await store(self, subject, data, headers, after=after)
        if subject == NAMES.state and not lost:
            lost.append(subject)
            raise BrokerLost("the broker did not answer")
        return sequence

    monkeypatch.setattr(Broker, "store", without_answer)

    async def check() -> None:
        async with (
            serving(tmp_path / "run", access, settings=SETTINGS) as server,
            taking_part(tmp_path, access, 0) as client,
        ):
            await update(client)
            assert client.follower.state is not None
            assert client.follower.state.epoch == server._lease.epoch == server.ledger.epoch > 0

    asyncio.run(check())


def test_a_store_that_was_rolled_back_is_brought_up_to_date(tmp_path: Path, local_broker: LocalBroker) -> None:
    """Though it speaks of a server in another folder: ours has served in a later epoch."""
    access, store = Access((local_broker.url,)), local_broker.folder / "store"

    async def roll_back(copy: Path) -> None:
        await asyncio.to_thread(local_broker.stop, signal.SIGKILL)
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        await asyncio.to_thread(local_broker.start)

    async def check() -> None:
        copy = tmp_path / "copy"
        async with serving(tmp_path / "one", access, settings=SETTINGS), taking_part(tmp_path, access, 0) as client:
            for _ in range(4):
                await update(client)
            await asyncio.to_thread(local_broker.stop, signal.SIGKILL)
            shutil.copytree(store, copy)
            await asyncio.to_thread(local_broker.start)
            await update(client)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        for _ in range(2):
            async with (
                serving(tmp_path / "two", access, settings=SETTINGS) as server,
                taking_part(tmp_path, access, 0) as client,
            ):
                await update(client)
                await roll_back(copy)
                await update(client)
                await until(lambda: same(server, client.core.hidden_state))
            await roll_back(copy)
        assert server.ledger.traffic.uploads == 9

    asyncio.run(check())
