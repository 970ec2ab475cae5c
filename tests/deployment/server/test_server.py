"""What a broker lost it is given again; the end is announced last. A server and clients on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import Checkpoint
from qafel.config import Config
from qafel.config.start import StartConfig
from qafel.deployment.broker import LocalBroker
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.names import Names
from qafel.deployment.server import ServerSettings, ledger
from qafel.deployment.server import server as server_module
from qafel.deployment.server.announcements import Publisher
from qafel.deployment.server.journal import read_journal
from qafel.deployment.server.server import DeploymentServer, open_server
from qafel.errors import BrokerUnreachable, ConfigError, OutputError
from qafel.runs.directory import RunDirectory, model_file
from qafel.runs.live import LiveState
from tests.deployment.live import CONFIG, replay, same, serving, taking_part, until, update


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
        state = LiveState.from_bytes(stored.data)
        told.append((state.status, state.version))

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


def test_checkpoints_that_fail_are_counted_logged_and_shown(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on, because its journal holds everything; the next checkpoint that succeeds ends the alarm."""
    full, attempts = True, list[Path]()
    write_bytes = ledger.write_checkpoint

    def write(path: Path, checkpoint: Checkpoint, *rows: Any) -> None:
        if full and not attempts:
            attempts.append(path)
            raise MemoryError
        if full:
            raise OutputError(f"cannot write {path}: No space left on device")
        write_bytes(path, checkpoint, *rows)

    monkeypatch.setattr(ledger, "write_checkpoint", write)
    told: list[LiveState] = []

    async def hear(stored: Stored) -> None:
        told.append(LiveState.from_bytes(stored.data))

    async def check() -> None:
        nonlocal full
        settings = ServerSettings(heartbeat_s=0.05, checkpoint_every=2)
        async with session(access, "test") as broker, serving(tmp_path, access, settings=settings) as server:
            await broker.subscribe(Names("live").state, hear)
            async with taking_part(tmp_path, access, 0) as client:
                for _ in range(4):
                    await update(client)
                await until(lambda: told and told[-1].failed_checkpoints == 2)
                assert told[-1].problem.startswith("no checkpoint since 0 updates: cannot write ")
                assert told[-1].problem.endswith("No space left on device")
                count = server.metrics.registry.get_sample_value("qafel_failed_checkpoints_total", {"run": "live"})
                assert count == 2
                full = False
                for _ in range(2):
                    await update(client)
                await until(lambda: told[-1].failed_checkpoints == 2 and not told[-1].problem)

    asyncio.run(check())
    assert "No space left on device" in caplog.text
    assert [path.name for path in (tmp_path / "state").glob("checkpoint-*")] == ["checkpoint-000000000008.qafel"]


def test_a_run_that_diverged_saves_no_model_that_is_not_finite_and_starts_again(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        settings = ServerSettings(heartbeat_s=0.05)
        async with serving(tmp_path, access, settings=settings) as server, taking_part(tmp_path, access, 0) as client:
            for _ in range(5):
                await update(client)
            server.ledger.server.server_rule.lr = np.inf
            start = client.begin()
            client.outbox.add(start.sequence, client.finish(start, client._train).upload)
            await until(lambda: client.follower.ended)
            assert client.follower.state is not None
            assert client.follower.state.status == "diverged"
        async with serving(tmp_path, access, settings=settings) as server, taking_part(tmp_path, access, 1) as client:
            assert server.ledger.traffic.uploads == 5
            assert np.isfinite(server.ledger.server.model).all()
            await update(client)
            assert server.ledger.server.version == 2

    asyncio.run(check())


def test_a_run_that_reached_its_limit_goes_on_with_a_larger_one_and_no_update_is_lost(
    tmp_path: Path, access: Access
) -> None:
    """Client and all: it holds its x̂ and its count, and every accepted update is in the journal."""
    settings = ServerSettings(heartbeat_s=0.2, keep_journal=True)

    async def take_part(steps: int, updates: int) -> None:
        config = Config.from_dict({**CONFIG, "stop": {"server_steps": steps}})
        async with serving(tmp_path, access, config, settings) as server, taking_part(tmp_path, access, 0) as client:
            for _ in range(updates):
                await update(client)
            await until(lambda: client.follower.ended)
            await until(lambda: same(server, client.core.hidden_state))
            assert server.evaluator.status == "finished"
            assert (server.ledger.server.version, server.ledger.traffic.uploads) == (steps, 3 * steps)
            task = config.task.make()
            initial = config.initial_model(task)
            whole = replay(tmp_path / "state", initial, config.algorithm.compose(task.layout), config.seed)
            assert np.array_equal(whole.model, server.ledger.server.model)

    async def check() -> None:
        await take_part(2, 6)
        await take_part(4, 6)

    asyncio.run(check())


def test_a_server_starts_from_a_model_and_refuses_to_go_on_from_another(tmp_path: Path, access: Access) -> None:
    config = Config.from_dict(CONFIG)
    layout = config.task.make().layout
    start = np.linspace(-1, 1, layout.size, dtype=np.float32)
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, model in zip(paths, (start, 2 * start), strict=True):
        path.write_bytes(model_file(model, layout))
    begun, other = (config.model_copy(update={"start": StartConfig(model=str(path))}) for path in paths)

    async def check() -> None:
        async with serving(tmp_path / "run", access, begun) as server, taking_part(tmp_path, access, 0) as client:
            assert np.array_equal(server.ledger.server.model, start)
            await until(lambda: same(server, client.core.hidden_state))
            await update(client)
        for changed in (config, other):
            with pytest.raises(ConfigError, match="another configuration"):
                async with serving(tmp_path / "run", access, changed):
                    pass
        (tmp_path / "run" / "config.toml").unlink()
        with pytest.raises(ConfigError, match=r"config\.toml is missing"):
            async with serving(tmp_path / "run", access, begun):
                pass

    asyncio.run(check())


_MOMENTS = ["before a session", "at its beginning", "in it", "as it is concluded", "after it", "while the broker hangs"]


@pytest.mark.parametrize("moment", _MOMENTS)
def test_a_server_that_is_stopped_as_its_broker_goes_ends_with_its_state(
    tmp_path: Path, local_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A stop is not for one session: none is begun after it, and nobody waits for the broker to come back."""
    access, seen = Access((local_broker.url,)), list[str]()
    monkeypatch.setattr(server_module, "_CONCLUDE_S", 1.0)

    async def end_both(server: DeploymentServer) -> None:
        number = signal.SIGSTOP if moment == "while the broker hangs" else signal.SIGKILL
        os.kill(local_broker.pid, number)
        server.stop()
        seen.append(moment)

    def at(name: str) -> None:
        """Have both end when the server's session gets there."""
        method = getattr(DeploymentServer, name)

        async def there(self: DeploymentServer, broker: Broker) -> None:
            await end_both(self)
            await method(self, broker)

        monkeypatch.setattr(DeploymentServer, name, there)

    async def check() -> None:
        config = Config.from_dict(CONFIG)
        if moment == "before a session":
            local_broker.stop()
        with (
            RunDirectory(tmp_path / "run") as directory,
            open_server(config, directory, access, ServerSettings(heartbeat_s=0.1), config.task.make()) as server,
        ):
            if moment == "at its beginning":
                at("_begin")
            work = asyncio.create_task(server.run())
            if moment == "before a session":
                await asyncio.sleep(0.3)
                server.stop()
            elif moment != "at its beginning":
                async with taking_part(tmp_path, access, 0) as client:
                    for _ in range(4):
                        await update(client)
                if moment == "as it is concluded":
                    at("_conclude")
                    server.stop()
                elif moment == "after it":
                    os.kill(local_broker.pid, signal.SIGKILL)
                    await until(lambda: not server._connected)
                    server.stop()
                else:
                    await end_both(server)
            await asyncio.wait_for(work, 120)
            assert server.evaluator.status == "stopped"
            counted = server.ledger.traffic.uploads
        assert counted == (4 if moment not in _MOMENTS[:2] else 0)
        assert len(list(read_journal(tmp_path / "run" / "state"))) == counted

    try:
        asyncio.run(check())
    finally:
        with contextlib.suppress(BrokerUnreachable):
            os.kill(local_broker.pid, signal.SIGCONT)
