"""A client holds the server's x̂ whatever it missed, and believes only what the server signed; on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import Held, HiddenState
from qafel.config import Config
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client.state import ClientState, Kept
from qafel.deployment.connection import Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.names import EPOCH, KEY_VALUE_STREAM, StreamLimits
from qafel.deployment.server import ServerSettings
from qafel.runs.live import LiveState
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update

LARGE: dict[str, Any] = {
    **CONFIG,
    "task": {"name": "quadratic", "clients": 2, "dimension": 700_000},
    "algorithm": {"method": "fedbuff", "buffer_size": 1, "client_lr": 0.1, "server_lr": 0.1, "local_steps": 1},
}


def test_a_client_that_was_away_reads_what_it_missed(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as worker:
            async with taking_part(tmp_path, access, 1) as away:
                away._save(away._now_held())
            for _ in range(30):
                await update(worker)
            async with taking_part(tmp_path, access, 1) as back:
                assert back.core.hidden_state.version == 0
                await until(lambda: back.follower.version == 10)
                assert back.report.received_bytes == 10 * 125
                assert same(server, back.core.hidden_state)

    asyncio.run(check())


def test_a_client_that_was_away_too_long_takes_a_snapshot(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        settings = ServerSettings(heartbeat_s=0.2, limits=StreamLimits(history=6), snapshot_every=3)
        async with serving(tmp_path, access, None, settings) as server, taking_part(tmp_path, access, 0) as worker:
            async with taking_part(tmp_path, access, 1) as away:
                away._save(away._now_held())
            for _ in range(60):
                await update(worker)
            async with taking_part(tmp_path, access, 1) as back:
                await until(lambda: back.follower.version == 20)
                assert back.report.received_bytes < 7 * 125 + 600
                assert same(server, back.core.hidden_state)

    asyncio.run(check())


@pytest.mark.parametrize("version", [2, 50])
def test_a_client_with_another_history_starts_again(tmp_path: Path, access: Access, version: int) -> None:
    """Drifted at the server's version, or ahead of it."""

    async def check() -> None:
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as worker:
            for _ in range(6):
                await update(worker)
            with ClientState(tmp_path / "client-1") as state:
                state.save(server.ledger.run_id, Kept(HiddenState.of(np.ones(113, np.float32), version), Held(0)))
            async with taking_part(tmp_path, access, 1) as odd:
                odd.follower._moved_at -= 100  # it has been so for a while
                await until(lambda: same(server, odd.core.hidden_state))
                await update(odd)
                assert odd.outbox.counts["accepted"] == 1

    asyncio.run(check())


def test_one_heartbeat_that_was_on_its_way_for_long_makes_no_client_start_again(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with (
            serving(tmp_path, access, settings=ServerSettings(heartbeat_s=1000)),
            taking_part(tmp_path, access, 0) as client,
            session(access, "test") as broker,
        ):
            for _ in range(6):
                await update(client)
            follower = client.follower
            await until(lambda: follower.version == 2)
            stored = await broker.stored(KEY_VALUE_STREAM, client.names.state)
            assert stored is not None
            old, restarts = LiveState.from_bytes(stored.data), []
            assert old.version == 0
            for beat in (1, 2):
                follower._moved_at -= 100
                late = replace(old, beat=old.beat + beat)
                await follower._on_state(Stored(client.names.state, late.to_bytes(), {}))
                restarts.append(follower._restart)
                follower._restart = False
            assert restarts == [False, True]

    asyncio.run(check())


def test_a_model_larger_than_the_brokers_limit_goes_in_parts(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, access, Config.from_dict(LARGE)))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            other = await stack.enter_async_context(taking_part(tmp_path, access, 1))
            for _ in range(2):
                await update(client)
            await until(lambda: client.follower.version == other.follower.version == 2)
            assert client.outbox.sent_bytes > 2 * 2_800_000
            assert same(server, client.core.hidden_state)
            assert same(server, other.core.hidden_state)

    asyncio.run(check())


def test_clients_believe_only_what_the_servers_key_signed(tmp_path: Path) -> None:
    """As if the broker were compromised: whoever publishes may do all that the server's user may, but cannot sign."""

    async def check(folder: Path) -> None:
        owner, number = Access.of(None, folder / "server"), Access.of(None, folder / "clients" / "0")
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, owner))
            client = await stack.enter_async_context(taking_part(tmp_path, number, 0))
            for _ in range(3):
                await update(client)
            await until(lambda: client.follower.version == 1)
            broker = await stack.enter_async_context(session(owner, "server"))
            genuine = await broker.stored(client.names.broadcast_stream, client.names.broadcast(0))
            assert genuine is not None
            epoch = {EPOCH: genuine.headers[EPOCH]}
            signature = {"Qafel-Signature": genuine.headers["Qafel-Signature"], **epoch}
            held = client.core.hidden_state
            forged = held.to_snapshot()
            await broker.store(client.names.broadcast(1), forged, epoch)
            await broker.store(client.names.broadcast(1), forged, signature)
            await broker.store(client.names.broadcast(1), genuine.data, signature)
            await broker.store(client.names.state, b'{"state": "finished", "version": 99, "digest": 0}')
            await broker.put_object(client.names.snapshot, forged, signature["Qafel-Signature"])
            await until(lambda: client.follower.ignored["signature"] >= 4)
            assert client.core.hidden_state is held
            assert not client.follower.ended
            for _ in range(3):
                await update(client)
            await until(lambda: same(server, client.core.hidden_state) and client.follower.version == 2)

    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m").path
    with LocalBroker(folder, port=port):
        asyncio.run(check(folder))
