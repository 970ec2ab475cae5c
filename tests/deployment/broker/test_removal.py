"""A run that is over leaves the broker when someone says so, with all that is reserved for it; a live one does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qafel.cli.deploy import broker as commands
from qafel.config import Config
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.names import KEY_VALUE_STREAM, OBJECT_STREAM, Names, StreamLimits
from qafel.deployment.server import ServerSettings
from qafel.deployment.status import remove_run
from qafel.errors import BrokerRefused, ConfigError
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update

NAMES = Names("live")


def test_a_stopped_run_is_removed_whole_and_a_running_one_refused(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with session(access, "test") as broker:
            async with serving(tmp_path / "other", access, settings=ServerSettings(run="other")) as other:
                await until(lambda: other._session_id)
                async with serving(tmp_path / "run", access), taking_part(tmp_path, access, 0) as client:
                    for _ in range(3):
                        await update(client)
                    with pytest.raises(ConfigError, match="force"):
                        await remove_run(access, "live")
                    await update(client)
                assert await remove_run(access, "live") == "stopped"
                for stream in (NAMES.upload_stream, NAMES.broadcast_stream):
                    assert await broker.waiting(stream) is None
                for subject in (NAMES.config, NAMES.state):
                    assert await broker.stored(KEY_VALUE_STREAM, subject) is None
                assert await broker.object(NAMES.snapshot, 1 << 30) is None
                assert await broker.object("other/snapshot", 1 << 30) is not None
                assert len(await broker.subjects(OBJECT_STREAM, "$O.qafel.M.*")) == 1
                assert await broker.waiting("qafel-other-upload") == 0
            with pytest.raises(ConfigError, match="no run 'live' here"):
                await remove_run(access, "live")
            async with serving(tmp_path / "run", access) as again, taking_part(tmp_path, access, 0) as client:
                await update(client)
                assert again.ledger.traffic.uploads == 5, "its folder has it all"

    asyncio.run(check())


def test_a_run_whose_state_cannot_be_read_may_be_running(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with session(access, "test") as broker:
            async with serving(tmp_path, access) as server:
                await until(lambda: server._session_id)
            await broker.store(NAMES.state, b"of a later qafel")
            with pytest.raises(ConfigError, match="force"):
                await remove_run(access, "live")
            assert await remove_run(access, "live", force=True) == "not genuine"
            assert await broker.waiting(NAMES.upload_stream) is None

    asyncio.run(check())


def test_a_finished_run_reserves_no_queue(tmp_path: Path, access: Access) -> None:
    config = Config.from_dict({**CONFIG, "stop": {"server_steps": 1}})

    async def check() -> None:
        async with session(access, "test") as broker, serving(tmp_path, access, config):
            async with taking_part(tmp_path, access, 0) as client:
                for _ in range(2):
                    await update(client)
                assert await broker.waiting(NAMES.upload_stream) is not None
                start = client.begin()
                client.outbox.add(start.sequence, client.finish(start, client._train).upload)
                await until(lambda: client.follower.ended)
            assert await broker.waiting(NAMES.upload_stream) is None
            assert await broker.object(NAMES.model, 1 << 30) is not None, "which late clients may ask for"

    asyncio.run(check())


def test_the_command_says_what_it_did(tmp_path: Path, access: Access) -> None:
    async def serve() -> None:
        async with serving(tmp_path, access) as server:
            await until(lambda: server._session_id)

    asyncio.run(serve())
    done = CliRunner().invoke(commands, ["remove-run", "live", "--broker", access.servers[0]])
    assert "'live' (stopped)" in done.output


def test_a_clients_messages_take_no_more_than_its_part_of_the_queue(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with session(access, "test") as broker, serving(tmp_path, access) as server:
            await until(lambda: server._session_id)
            config: Any = (await broker._js.stream_info(NAMES.upload_stream)).config
            assert config.max_msg_size < 1000, "an upload is of some 120 bytes"
            assert config.max_bytes == 5 * config.max_msgs_per_subject * config.max_msg_size
            with pytest.raises(BrokerRefused, match="message size exceeds"):
                await broker.store(NAMES.upload(0), bytes(1000))
            with pytest.raises(BrokerRefused, match="message size exceeds"):
                await broker.store(NAMES.upload(0), b"x", {"Nats-Msg-Id": "x" * 1000})

    asyncio.run(check())


def test_the_broker_remembers_no_message_id_for_longer_than_it_must(tmp_path: Path, access: Access) -> None:
    """It holds them in memory, and one key may send as many as its line takes: two minutes of that are gigabytes."""

    async def check() -> None:
        async with session(access, "test") as broker:
            await broker.ensure(NAMES, StreamLimits())
            for stream in (NAMES.upload_stream, NAMES.broadcast_stream):
                found: Any = (await broker._js.stream_info(stream)).config
                await broker._js.update_stream(replace(found, duplicate_window=120))
            async with serving(tmp_path, access) as server:
                await until(lambda: server._session_id)
                for stream in (NAMES.upload_stream, NAMES.broadcast_stream):
                    assert (await broker._js.stream_info(stream)).config.duplicate_window == 0.1
                for subject in (NAMES.upload(0), NAMES.broadcast(7)):
                    first = await broker.store(subject, b"x", {"Nats-Msg-Id": "same"})
                    await asyncio.sleep(0.5)
                    assert await broker.store(subject, b"x", {"Nats-Msg-Id": "same"}) > first, "it was remembered"

    asyncio.run(check())


def test_a_step_that_is_sent_again_takes_no_second_place_in_the_history(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with (
            session(access, "test") as broker,
            serving(tmp_path, access) as server,
            taking_part(tmp_path, access, 0) as client,
        ):
            for _ in range(6):
                await update(client)
            steps = list(server.ledger.broadcasts)
            assert [version for version, _ in steps] == [0, 1]
            for _ in range(2):
                await asyncio.sleep(0.2)
                await server._publisher.broadcasts(broker, steps)
            assert await broker.waiting(NAMES.broadcast_stream) == 2
            for _ in range(3):
                await update(client)
            await until(lambda: client.core.hidden_state.version == 3)
            assert same(server, client.core.hidden_state)

    asyncio.run(check())


def test_limits_leave_each_client_its_part_and_reserve_no_more_than_is_needed() -> None:
    few = StreamLimits().fitted(5, 15_000, 1 << 20)
    assert (few.queue_per_client, few.queue_bytes) == (128, 5 * 128 * (15_000 + 512))
    many = StreamLimits().fitted(10_000, 100_000, 1 << 20)
    assert many.queue_per_client == 4
    assert many.queue_bytes == 10_000 * 4 * 100_512 <= 4 << 30
    large = StreamLimits().fitted(3, 100_000_000, 1 << 20)
    assert large.queue_per_client == 4 * 96
    assert large.queue_bytes <= 4 << 30
