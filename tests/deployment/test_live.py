"""Catching up, large models, forged messages, status: a server and clients in this process, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from qafel.algorithm import HiddenState
from qafel.config import Config
from qafel.deployment.broker.folder import BrokerFolder
from qafel.deployment.broker.local import LocalBroker, free_port
from qafel.deployment.client.outbox import ClientState
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.messages import RunState, read_status
from qafel.deployment.names import Names, StreamLimits
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.server import DeploymentServer
from qafel.deployment.settings import ServerSettings
from tests.deployment.live import CONFIG, serving, taking_part, until, update

LARGE: dict[str, Any] = {
    **CONFIG,
    "task": {"name": "quadratic", "clients": 2, "dimension": 700_000},
    "algorithm": {"preset": "fedbuff", "buffer_size": 1, "client_lr": 0.1, "server_lr": 0.1, "local_steps": 1},
}


def _same(server: DeploymentServer, hidden_state: HiddenState) -> bool:
    held = server.ledger.server.hidden_state
    return held.version == hidden_state.version and np.array_equal(held.vector, hidden_state.vector)


def test_a_client_that_was_away_reads_what_it_missed(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as worker:
            async with taking_part(tmp_path, access, 1) as away:
                away._save()
            for _ in range(30):
                await update(worker)
            async with taking_part(tmp_path, access, 1) as back:
                assert back.core.hidden_state.version == 0
                await until(lambda: back.follower.version == 10)
                assert back.report.received_bytes == 10 * 125
                assert _same(server, back.core.hidden_state)

    asyncio.run(check())


def test_a_client_that_was_away_too_long_takes_a_snapshot(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        settings = ServerSettings(heartbeat_s=0.2, limits=StreamLimits(history=6), snapshot_every=3)
        async with serving(tmp_path, access, None, settings) as server, taking_part(tmp_path, access, 0) as worker:
            async with taking_part(tmp_path, access, 1) as away:
                away._save()
            for _ in range(60):
                await update(worker)
            async with taking_part(tmp_path, access, 1) as back:
                await until(lambda: back.follower.version == 20)
                assert back.report.received_bytes < 7 * 125 + 600
                assert _same(server, back.core.hidden_state)

    asyncio.run(check())


@pytest.mark.parametrize("version", [2, 50])
def test_a_client_with_another_history_starts_again(tmp_path: Path, access: Access, version: int) -> None:
    """Drifted at the server's version, or ahead of it."""

    async def check() -> None:
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as worker:
            for _ in range(6):
                await update(worker)
            with ClientState(tmp_path / "client-1") as state:
                state.save(server.ledger.run_id, HiddenState.of(np.ones(113, np.float32), version))
            async with taking_part(tmp_path, access, 1) as odd:
                odd.follower._moved_at -= 100  # it has been so for a while
                await until(lambda: _same(server, odd.core.hidden_state))
                await update(odd)
                assert odd.outbox.counts["accepted"] == 1

    asyncio.run(check())


def test_a_wiped_broker_is_refilled_while_all_else_runs(tmp_path: Path, local_broker: LocalBroker) -> None:
    async def check() -> None:
        access = Access((local_broker.url,))
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as client:
            for _ in range(6):
                await update(client)
            await asyncio.to_thread(local_broker.stop, signal.SIGKILL)
            local_broker.wipe()
            await asyncio.to_thread(local_broker.start)
            for _ in range(3):
                await update(client)
            await until(lambda: client.follower.version == 3)
            assert _same(server, client.core.hidden_state)
            async with taking_part(tmp_path, access, 1) as fresh, session(access, "test") as broker:
                await until(lambda: _same(server, fresh.core.hidden_state))
                for version in range(3):
                    stored = await broker.stored(client.names.broadcast_stream, client.names.broadcast(version))
                    assert stored is not None
                    assert (version, stored.data) in server.ledger.broadcasts

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
            assert _same(server, client.core.hidden_state)
            assert _same(server, other.core.hidden_state)

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
            signature = {"Qafel-Signature": genuine.headers["Qafel-Signature"]}
            held = client.core.hidden_state
            forged = held.to_snapshot()
            await broker.store(client.names.broadcast(1), forged)
            await broker.store(client.names.broadcast(1), forged, signature)
            await broker.store(client.names.broadcast(1), genuine.data, signature)
            await broker.store(client.names.state, b'{"state": "finished", "version": 99, "digest": 0}')
            await broker.put_object(client.names.snapshot, forged, signature["Qafel-Signature"])
            await until(lambda: client.follower.ignored["signature"] >= 4)
            assert client.core.hidden_state is held
            assert not client.follower.ended
            for _ in range(3):
                await update(client)
            await until(lambda: _same(server, client.core.hidden_state) and client.follower.version == 2)

    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m").path
    with LocalBroker(folder, port=port):
        asyncio.run(check(folder))


def test_the_server_takes_only_what_the_clients_key_signed(tmp_path: Path) -> None:
    async def check(folder: Path) -> None:
        owner, number = Access.of(None, folder / "server"), Access.of(None, folder / "clients" / "0")
        async with serving(tmp_path, owner) as server, taking_part(tmp_path, number, 0) as client:
            await update(client)
            start = client.begin()
            upload = client.finish(start, client._train)
            async with session(number, "0") as broker:
                await broker.store(client.names.upload(0), upload)
                await until(lambda: server.ledger.server.rejected["signature"] == 1)
            client.outbox.add(start.sequence, upload)
            await until(lambda: server.ledger.traffic.uploads == 2)
            BrokerFolder(folder).revoke(0)  # without telling the broker: the server's own registry suffices
            await asyncio.sleep(0.5)
            await update(client)
            assert client.outbox.counts["unknown-client"] == 1

    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m").path
    with LocalBroker(folder, port=port):
        asyncio.run(check(folder))


def test_status_and_metrics_tell_how_a_run_fares(tmp_path: Path, access: Access) -> None:
    from qafel.cli.broker import status

    async def check() -> None:
        port = free_port()
        settings = ServerSettings(heartbeat_s=0.1, metrics_port=port)
        async with serving(tmp_path, access, settings=settings), taking_part(tmp_path, access, 2) as client:
            for _ in range(4):
                await update(client)
            await asyncio.sleep(0.3)
            (run,) = await read_status(access)
            assert (run.run, run.word, run.state.version, run.state.uploads) == ("live", "running", 1, 4)
            assert run.state.clients == {"2": 0}
            assert await read_status(access, "nothing") == []
            text = await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics")
            assert 'qafel_accepted_updates_total{run="live"} 4.0' in text
            assert 'qafel_version{run="live"} 1.0' in text

    asyncio.run(check())
    (stopped,) = asyncio.run(read_status(access))
    assert stopped.word == "stopped"
    import typer

    app = typer.Typer()
    app.command()(status)
    shown = CliRunner().invoke(app, ["--broker", access.servers[0], "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)[0]["run"] == "live"
    assert CliRunner().invoke(app, ["--broker", access.servers[0]]).exit_code == 0
    assert CliRunner().invoke(app, ["nothing", "--broker", access.servers[0]]).exit_code == 1


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def test_a_runs_name_must_fit_the_broker() -> None:
    from qafel.errors import ConfigError

    with pytest.raises(ConfigError, match="letters, digits"):
        Names("a.b")


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
