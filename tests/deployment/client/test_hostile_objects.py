"""Snapshots and quantized copies that are lost, damaged, stale, oversized or forged: clients go on with the right x̂."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from qafel.config import Config
from qafel.deployment.client.client import DeploymentClient
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.names import BUCKET, OBJECT_STREAM
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.server import DeploymentServer
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update

COPIES = Config.from_dict(
    {
        **CONFIG,
        "task": {"name": "mushrooms", "clients": 8},
        "algorithm": {
            **CONFIG["algorithm"], "buffer_size": 1, "server_quantizer": "sign",
            "catch_up": {"name": "snapshot", "quantizer": "qsgd:8"},
        },
    }
)  # fmt: skip
COPY = "live/copy"
Copy = tuple[bytes, str]
SETTINGS = ServerSettings(heartbeat_s=0.05, snapshot_every=6)


async def _forge(broker: Broker, name: str, **changed: Any) -> None:
    """Change what the broker says of an object."""
    encoded = base64.urlsafe_b64encode(name.encode()).decode()
    subject = f"$O.{BUCKET}.M.{encoded}"
    stored = await broker.stored(OBJECT_STREAM, subject)
    assert stored is not None
    said = json.loads(stored.data) | changed
    await broker.store(subject, json.dumps(said).encode(), {"Nats-Rollup": "sub"})


async def _lose(broker: Broker, stale: Copy) -> None:
    await broker.delete_object(COPY)


async def _damage(broker: Broker, stale: Copy) -> None:
    frame, description = await broker.object(COPY, 10**6) or stale
    await broker.put_object(COPY, frame[:-1] + bytes([frame[-1] ^ 1]), description)


async def _empty(broker: Broker, stale: Copy) -> None:
    await broker.put_object(COPY, b"", "1 0")


async def _oversize(broker: Broker, stale: Copy) -> None:
    await broker.put_object(COPY, bytes(10**6), "1 0")


async def _claim_huge(broker: Broker, stale: Copy) -> None:
    await _forge(broker, COPY, size=10**15)


async def _describe_by_list(broker: Broker, stale: Copy) -> None:
    await _forge(broker, COPY, description=[5])


async def _roll_back(broker: Broker, stale: Copy) -> None:
    await broker.put_object(COPY, *stale)


@asynccontextmanager
async def _fleet(folder: Path, access: Access) -> AsyncIterator[tuple[DeploymentServer, DeploymentClient, Broker]]:
    """A server that offers copies, a client that holds x̂ itself and follows, and a connection for the attacker."""
    async with (
        serving(folder / "run", access, COPIES, SETTINGS) as server,
        taking_part(folder, access, 0) as worker,
        session(access, "test") as broker,
    ):
        worker.follower.restart()
        await until(lambda: worker.core.hidden_state.exact and worker.follower.ready)
        yield server, worker, broker


async def _step(server: DeploymentServer, worker: DeploymentClient, steps: int = 6) -> None:
    """Step until the next snapshot and copy are on the broker."""
    for _ in range(steps):
        await update(worker)
    publisher, version = server._publisher, server.ledger.server.version
    await until(lambda: publisher.published.hidden_state.version == version and not server._background._works)


def test_a_client_that_finds_no_sound_copy_takes_the_snapshot(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with _fleet(tmp_path, access) as (server, worker, broker):
            stale = await broker.object(COPY, 10**6)
            assert stale is not None
            attacks = (_lose, _damage, _empty, _oversize, _claim_huge, _describe_by_list, _roll_back)
            for number, attack in enumerate(attacks, 1):
                await _step(server, worker)
                await attack(broker, stale)
                async with taking_part(tmp_path, access, number) as late:
                    await until(lambda c=late: same(server, c.core.hidden_state))  # type: ignore[misc]
                    await update(late)
                    assert late.outbox.counts["accepted"] == 1, attack

    asyncio.run(check())


def test_a_copy_under_the_snapshots_name_is_not_taken_for_x(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with _fleet(tmp_path, access) as (server, worker, broker):
            await _step(server, worker)
            copy, snapshot = await broker.object(COPY, 10**6), await broker.object("live/snapshot", 10**6)
            assert copy is not None
            assert snapshot is not None
            await broker.put_object("live/snapshot", *copy)
            held = worker.core.hidden_state
            worker.follower.restart()
            await asyncio.sleep(0.3)
            assert worker.core.hidden_state is held
            await broker.put_object("live/snapshot", *snapshot)
            await until(lambda: not worker.follower._restart and same(server, worker.core.hidden_state))

    asyncio.run(check())


def test_a_copy_newer_than_the_last_heartbeat_is_not_fetched_again(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with _fleet(tmp_path, access) as (server, worker, _), taking_part(tmp_path, access, 1) as late:
            await until(lambda: late.follower.ready)
            first = late.follower.state
            assert first is not None
            await _step(server, worker)
            await until(lambda: late.follower.state.snapshot_position > 0)  # type: ignore[union-attr]
            late.follower.prepare()
            await until(lambda: late.follower.ready)
            received, held = late.report.received_bytes, late.follower.held
            late.follower.state = replace(first, beat=10**9)
            late.follower.prepare()
            await until(lambda: late.follower.ready)
            assert (late.report.received_bytes, late.follower.held) == (received, held)
            late.follower.state = replace(first, beat=10**9, snapshot_bytes=0, quantized_bytes=0)
            late.follower.prepare()  # a server on an empty broker, which has no snapshot yet
            await until(lambda: late.follower.ready)
            assert (late.report.received_bytes, late.follower.held) == (received, held)

    asyncio.run(check())


def test_a_copy_of_a_server_that_lost_the_run_is_given_up(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with _fleet(tmp_path, access) as (server, worker, _):
            await _step(server, worker)
            async with taking_part(tmp_path, access, 1) as late:
                await until(lambda: late.follower.ready)
                state = late.follower.state
                assert state is not None
                assert not late.core.hidden_state.exact
                later = replace(state, epoch=state.epoch + 1, since=late.follower.version - 1)
                await late.follower._on_state(Stored(late.names.state, later.to_bytes(), {}))
                assert late.follower._restart
                unaffected = replace(later, epoch=state.epoch + 2, since=late.follower.version)
                late.follower._restart = False
                await late.follower._on_state(Stored(late.names.state, unaffected.to_bytes(), {}))
                assert not late.follower._restart

    asyncio.run(check())


def test_clients_with_copies_go_on_after_a_server_restart(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with AsyncExitStack() as clients:
            async with _fleet(tmp_path, access) as (server, worker, _):
                await _step(server, worker)
                late = await clients.enter_async_context(taking_part(tmp_path, access, 1))
                await until(lambda: late.follower.ready)
            late.follower.prepare()
            async with serving(tmp_path / "run", access, COPIES, SETTINGS) as server:
                await until(lambda: late.follower.ready)
                await update(late)
                assert late.outbox.counts["accepted"] == 1
                assert server.ledger.server.version == 7

    asyncio.run(check())
