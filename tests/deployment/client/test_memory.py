"""The memory of a client rule is right whatever is killed: it is what the counted uploads make of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qafel.config import Config
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import DeploymentClient, open_client
from qafel.deployment.client.state import ClientState, Memory, Sent
from qafel.deployment.client.training import train_task
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.names import Names
from qafel.deployment.server import DefenceSettings, ServerSettings
from qafel.deployment.server.server import DeploymentServer
from qafel.errors import BrokerUnreachable, ConfigError, OverShare
from tests.deployment.live import CONFIG, serving, taking_part, until, update
from tests.deployment.recorded import check_recorded

MEMORY = Config.from_dict(
    {
        **CONFIG,
        "algorithm": {
            "method": "error-feedback", "client_quantizer": "top_k:0.1", "buffer_size": 2, "local_steps": 2,
        },
    }
)  # fmt: skip
SETTINGS = ServerSettings(
    heartbeat_s=0.2, keep_journal=True, snapshot_every=1, defence=DefenceSettings(max_norm_ratio=None)
)
Kill = Callable[[DeploymentServer, DeploymentClient], Awaitable[None]]


async def _before_the_write(server: DeploymentServer, client: DeploymentClient) -> None:
    start = client.begin()
    client.finish(start, client._train)


async def _after_the_write(server: DeploymentServer, client: DeploymentClient) -> None:
    start = client.begin()
    assert client._memory is not None
    client._memory.keep(Sent(start.sequence, *client.finish(start, client._train)))()


async def _in_the_write(server: DeploymentServer, client: DeploymentClient) -> None:
    """A file half written beside the one before."""
    (client._state.folder / ".memory.part").write_bytes(b"half")


async def _before_the_receipt(server: DeploymentServer, client: DeploymentClient) -> None:
    async def deaf(stored: object) -> None: ...

    counted, start = server.ledger.traffic.uploads, client.begin()
    await client.send(start, client.finish(start, client._train))
    client.outbox = SimpleNamespace(on_receipt=deaf)  # type: ignore[assignment]
    await until(lambda: server.ledger.traffic.uploads > counted)


async def _after_the_receipt(server: DeploymentServer, client: DeploymentClient) -> None:
    await update(client)


STAGES: list[Kill] = [_before_the_write, _in_the_write, _after_the_write, _before_the_receipt, _after_the_receipt]


@pytest.mark.parametrize("kill", STAGES, ids=lambda kill: kill.__name__.strip("_"))
def test_a_client_killed_at_any_moment_resumes_with_the_memory_of_its_counted_uploads(
    kill: Kill, tmp_path: Path, access: Access
) -> None:
    async def check() -> None:
        async with (
            serving(tmp_path / "run", access, MEMORY, SETTINGS) as server,
            taking_part(tmp_path, access, 1) as other,
        ):
            for _ in range(4):
                async with taking_part(tmp_path, access, 0) as client:
                    await client.until(lambda c=client: not len(c.outbox))
                    await update(client)
                    await update(other)
                    await kill(server, client)
            async with taking_part(tmp_path, access, 0) as client:
                assert await client.until(lambda: not len(client.outbox))
                await update(client)
                assert not client._refused

    asyncio.run(check())
    folders = {number: tmp_path / f"client-{number}" for number in range(2)}
    assert check_recorded(tmp_path / "run" / "state", MEMORY, folders) >= 9


def test_a_rejected_upload_leaves_the_memory_as_it_was_and_its_client_trains_again(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with (
            serving(tmp_path / "run", access, MEMORY, SETTINGS) as server,
            taking_part(tmp_path, access, 0) as client,
        ):
            await update(client)
            _reject_next(server, monkeypatch)
            await update(client)
            await update(client)
            assert (client.outbox.counts["share"], client.outbox.counts["accepted"]) == (1, 2)

    asyncio.run(check())
    assert check_recorded(tmp_path / "run" / "state", MEMORY, {0: tmp_path / "client-0"}) == 2


def _reject_next(server: DeploymentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = server.intake.checker.shares

    class Once:
        def check(self, client: int, now: float) -> None:
            monkeypatch.setattr(server.intake.checker, "shares", shares)
            raise OverShare("wait")

    monkeypatch.setattr(server.intake.checker, "shares", Once())


@pytest.mark.parametrize("killed", [False, True])
def test_an_upload_that_was_rejected_once_and_counted_then_is_what_the_memory_follows(
    killed: bool, tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client hears of the rejection alone, gives the upload up, and begins another one."""

    async def check() -> None:
        async with (
            serving(tmp_path / "run", access, MEMORY, SETTINGS) as server,
            taking_part(tmp_path, access, 0) as client,
        ):
            await update(client)
            _reject_next(server, monkeypatch)
            start = client.begin()
            made = client.finish(start, client._train)
            await client.send(start, made)
            assert await client.until(lambda: not len(client.outbox))
            assert client._memory is not None
            accept = client.outbox._on_counted
            client.outbox._on_counted = lambda sequence, checksum: None
            client.outbox.add(start.sequence, made.upload, start.follows)  # as a copy that was sent before
            client.outbox._pending[start.sequence].due = 0.0
            await until(lambda: server.ledger.traffic.uploads == 2)
            assert await client.until(lambda: not len(client.outbox))
            client.outbox._on_counted = accept
            start = client.begin()
            await client.send(start, client.finish(start, client._train))
            if killed:
                return
            assert await client.until(lambda: not len(client.outbox))
            assert client.outbox.counts["memory"] == 1
            await update(client)
            assert client.outbox.counts["accepted"] == 3

    async def go_on() -> None:
        async with serving(tmp_path / "run", access, MEMORY, SETTINGS), taking_part(tmp_path, access, 0) as client:
            assert await client.until(lambda: not len(client.outbox))
            await update(client)

    asyncio.run(check())
    asyncio.run(go_on())
    assert check_recorded(tmp_path / "run" / "state", MEMORY, {0: tmp_path / "client-0"}) == (3 if killed else 4)


async def _run(folder: Path, access: Access, number: int, run: str = "live") -> None:
    """One update, as `run_client` makes it."""
    with ClientState(folder) as state:
        settings = ClientSettings(patience_s=120, max_updates=1)
        client = await open_client(train_task, Names(run), number, state, access, settings)
        await client.run()


def test_a_client_that_lost_its_memory_is_refused_with_a_sentence(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path / "run", access, MEMORY, SETTINGS) as server:
            await _run(tmp_path / "client-2", access, 2)
            for _ in range(3):
                await _run(tmp_path / "client-0", access, 0)
            with pytest.raises(ConfigError, match="restore the client's folder"):
                await _run(tmp_path / "empty-2", access, 2)  # its number is that of the last that counted
            shutil.copytree(tmp_path / "client-0", tmp_path / "old")
            await _run(tmp_path / "client-0", access, 0)
            await _run(tmp_path / "client-0", access, 0)
            for folder in ("empty", "old"):
                with pytest.raises(ConfigError, match="restore the client's folder"):
                    await _run(tmp_path / folder, access, 0)
            await _run(tmp_path / "client-0", access, 0)
            await _run(tmp_path / "empty-1", access, 1)
            await _run(tmp_path / "client-2", access, 2)
            assert server.ledger.traffic.uploads == 9

    asyncio.run(check())
    folders = {0: tmp_path / "client-0", 1: tmp_path / "empty-1", 2: tmp_path / "client-2"}
    assert check_recorded(tmp_path / "run" / "state", MEMORY, folders) == 9


def test_a_client_that_lost_its_memory_is_refused_even_with_a_new_key(tmp_path: Path) -> None:
    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m")

    async def check() -> None:
        owner = Access.of(None, folder.path / "server")
        async with serving(tmp_path / "run", owner, MEMORY, SETTINGS) as server:
            for _ in range(2):
                await _run(tmp_path / "client-0", Access.of(None, folder.path / "clients" / "0"), 0)
            folder.add([0])
            folder.reload()
            await until(lambda: server.intake.checker._keys == owner.registry())
            new = Access.of(None, folder.path / "clients" / "0")
            while True:  # the broker reloads when it gets to it
                with suppress(BrokerUnreachable):
                    async with session(new, "0", patience_s=120):
                        break
                await asyncio.sleep(0.05)
            with pytest.raises(ConfigError, match="restore the client's folder"):
                await _run(tmp_path / "lost", new, 0)
            await _run(tmp_path / "client-0", new, 0)
            assert server.ledger.traffic.uploads == 3

    with LocalBroker(folder.path, port=port):
        asyncio.run(check())


def test_a_flipped_bit_in_the_memory_is_damage_and_not_another_memory(tmp_path: Path) -> None:
    new: dict[str, Any] = MEMORY.algorithm.compose().client_rule.new_memory(8)  # type: ignore[assignment]
    memory = Memory(tmp_path, "run", new)
    memory.keep(Sent(0, bytes(100), {"error": new["error"] + 1}))()
    path = tmp_path / "memory"
    whole = path.read_bytes()
    for byte in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[byte] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="memory is lost"):
            Memory.load(tmp_path, "run", new)
    path.write_bytes(whole)
    assert Memory.load(tmp_path, "another run", new).sent is None
