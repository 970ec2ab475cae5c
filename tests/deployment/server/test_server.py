"""What a broker lost it is given again; the end is announced last. A server and clients on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from qafel.config import Config
from qafel.deployment.broker.local import LocalBroker
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.messages import RunState
from qafel.deployment.names import Names
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.announcements import Publisher
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update


def test_a_wiped_broker_is_refilled_while_all_else_runs(tmp_path: Path, local_broker: LocalBroker) -> None:
    async def check() -> None:
        access = Access((local_broker.url,))
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as client:
            for _ in range(6):
                await update(client)
            await asyncio.to_thread(local_broker.stop, signal.SIGKILL)
            shutil.rmtree(local_broker.folder / "store")
            await asyncio.to_thread(local_broker.start)
            for _ in range(3):
                await update(client)
            await until(lambda: client.follower.version == 3)
            assert same(server, client.core.hidden_state)
            async with taking_part(tmp_path, access, 1) as fresh, session(access, "test") as broker:
                await until(lambda: same(server, fresh.core.hidden_state))
                for version in range(3):
                    stored = await broker.stored(client.names.broadcast_stream, client.names.broadcast(version))
                    assert stored is not None
                    assert (version, stored.data) in server.ledger.broadcasts

    asyncio.run(check())


def test_a_run_says_that_it_has_ended_only_once_its_last_broadcast_is_out(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client leaves when it hears so: it must hold the last version by then."""
    broadcasts = Publisher.broadcasts

    async def late(self: Publisher, broker: Broker, steps: Any) -> None:
        await asyncio.sleep(0.5)
        await broadcasts(self, broker, steps)

    monkeypatch.setattr(Publisher, "broadcasts", late)
    told: list[tuple[str, int]] = []

    async def hear(stored: Stored) -> None:
        state = RunState.from_bytes(stored.data)
        told.append((state.state, state.version))

    async def check() -> None:
        config = Config.from_dict({**CONFIG, "stop": {"server_steps": 1}})
        async with contextlib.AsyncExitStack() as stack:
            broker = await stack.enter_async_context(session(access, "test"))
            await broker.subscribe(Names("live").state, hear)
            settings = ServerSettings(heartbeat_s=0.05)
            await stack.enter_async_context(serving(tmp_path, access, config, settings))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            for _ in range(3):
                await update(client)
            await until(lambda: told[-1][0] == "finished")

    asyncio.run(check())
    assert {version for state, version in told if state == "finished"} == {1}
    assert ("running", 0) in told
