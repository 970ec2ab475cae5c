"""One server a run: a second one is refused, a loser is fenced, and nobody's history is purged unasked."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from qafel.algorithm import Message
from qafel.config import Config
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement, Receipt
from qafel.deployment.names import EPOCH, KEY_VALUE_STREAM, Names
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.journal import read_journal
from qafel.deployment.server.server import DeploymentServer, open_server
from qafel.errors import AnotherServer, BrokerRefused, UserError
from qafel.runs.directory import RunDirectory
from qafel.runs.live import LiveState
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update

SETTINGS = ServerSettings(heartbeat_s=0.1)
NAMES = Names("live")


async def _refused(folder: Path, access: Access) -> str:
    """The sentence with which a server in that folder ends."""
    config = Config.from_dict(CONFIG)
    with (
        RunDirectory(folder) as directory,
        open_server(config, directory, access, SETTINGS, config.task.make()) as server,
        pytest.raises(UserError) as refused,
    ):
        await asyncio.wait_for(server.run(), 120)
    return str(refused.value)


@contextlib.asynccontextmanager
async def _served(folder: Path, access: Access, take_over: bool = False) -> AsyncIterator[DeploymentServer]:
    async with serving(folder, access, settings=replace(SETTINGS, take_over=take_over)) as server:
        await until(lambda: server._session_id)
        yield server


def _copy(source: Path, target: Path) -> Path:
    """As a person does who moves a server to another machine: all of it, even while it runs."""
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns("broker", "client-*")))


def _journalled(folder: Path) -> set[tuple[int, int]]:
    return {(m.sender, m.sequence) for m in map(Message.from_bytes, read_journal(folder / "state"))}


@pytest.mark.parametrize("copied", [False, True])
def test_a_second_live_server_is_refused_and_disturbs_nothing(tmp_path: Path, access: Access, copied: bool) -> None:
    async def check() -> None:
        async with _served(tmp_path / "one", access) as server, taking_part(tmp_path, access, 0) as client:
            for _ in range(4):
                await update(client)
            if copied:
                _copy(tmp_path / "one", tmp_path / "two")
            said = await _refused(tmp_path / "two", access)
            if copied:
                assert said.startswith("another server serves run 'live' from another folder")
                assert "take_over" in said
            else:
                assert said.startswith("run 'live' on the broker is a different run (running at version ")
                assert "take_over" in said
            for _ in range(2):
                await update(client)
            await until(lambda: same(server, client.core.hidden_state))
            assert server.ledger.traffic.uploads == 6
            async with session(access, "test") as broker:
                assert len(await broker.subjects(NAMES.broadcast_stream, NAMES.broadcasts)) == 2

    asyncio.run(check())


def test_a_server_that_was_killed_goes_on_at_once_in_its_own_folder(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        epochs = []
        for _ in range(3):
            async with _served(tmp_path / "one", access) as server, taking_part(tmp_path, access, 0) as client:
                epochs.append(server._lease.epoch)
                assert epochs[-1] == epochs[0] + len(epochs) - 1
                await update(client)
                async with session(access, "test") as broker:
                    running = await broker.stored(KEY_VALUE_STREAM, NAMES.state)
                assert running is not None
                assert LiveState.from_bytes(running.data).status == "running"
            async with session(access, "test") as broker:
                await broker.store(NAMES.state, running.data)  # as if it had said nothing at its end

    asyncio.run(check())


def test_a_server_that_was_killed_before_its_heartbeat_never_says_an_older_version_than_clients_hold(
    tmp_path: Path, access: Access
) -> None:
    said: list[int] = []

    async def hear(stored: Stored) -> None:
        said.append(LiveState.from_bytes(stored.data).version)

    async def check() -> None:
        async with session(access, "test") as broker:
            async with _served(tmp_path / "one", access), taking_part(tmp_path, access, 0) as client:
                first = await broker.stored(KEY_VALUE_STREAM, NAMES.state)
                assert first is not None
                assert LiveState.from_bytes(first.data).version == 0
                for _ in range(6):
                    await update(client)
            await broker.store(NAMES.state, first.data)  # its last words, had it been killed
            await broker.subscribe(NAMES.state, hear)
            async with _served(tmp_path / "one", access):
                await until(lambda: len(said) > 1)
        assert min(said) == 2

    asyncio.run(check())


def test_who_takes_over_has_the_run_and_the_one_before_ends(tmp_path: Path, access: Access) -> None:
    """Every update that a client was told of is in the journal that goes on, and none counts twice."""

    accepted: set[tuple[int, int]] = set()

    async def two_servers() -> None:
        async with (
            taking_part_later(tmp_path, access, accepted) as train,
            _served(tmp_path / "one", access) as one,
        ):
            (work,) = (task for task in asyncio.all_tasks() if "DeploymentServer.run" in repr(task.get_coro()))
            await train(4)
            await asyncio.to_thread(_copy, tmp_path / "one", tmp_path / "two")
            async with _served(tmp_path / "two", access, take_over=True) as two:
                assert two._lease.epoch == one._lease.epoch + 1
                await train(8)
                await until(work.done)  # it connects again, and sees why it was refused

    async def check() -> None:
        with pytest.raises(AnotherServer, match="took over run 'live'"):
            await two_servers()
        assert accepted <= _journalled(tmp_path / "two")
        assert len(accepted) == 12
        frames = [(m.sender, m.sequence) for m in map(Message.from_bytes, read_journal(tmp_path / "two" / "state"))]
        assert len(frames) == len(set(frames))
        # The loser may not come back, not even now that nobody serves.
        said = await _refused(tmp_path / "one", access)
        assert "without this folder" in said
        async with _served(tmp_path / "two", access) as two:
            assert two.ledger.traffic.uploads == 12

    asyncio.run(check())


@contextlib.asynccontextmanager
async def taking_part_later(folder: Path, access: Access, accepted: set[tuple[int, int]]) -> AsyncIterator:  # type: ignore[type-arg]
    """A function that makes so many updates with one client, which begins when it is first called."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []

        async def train(count: int) -> None:
            if not clients:
                client = await stack.enter_async_context(taking_part(folder, access, 0))
                hear = client.outbox._on_outcome

                def heard(sequence: int | None, outcome: str, text: str, version: int) -> None:
                    assert outcome == "accepted", (outcome, text)
                    assert sequence is not None
                    accepted.add((0, sequence))
                    hear(sequence, outcome, text, version)

                client.outbox._on_outcome = heard
                clients.append(client)
            for _ in range(count):
                await update(clients[0])

        yield train


def test_a_folder_that_lacks_what_was_acknowledged_is_refused_and_one_that_has_it_all_goes_on(
    tmp_path: Path, access: Access
) -> None:
    async def check() -> None:
        async with _served(tmp_path / "one", access) as one, taking_part(tmp_path, access, 0) as client:
            await update(client)
            await asyncio.to_thread(one.ledger.journal.sync)
            _copy(tmp_path / "one", tmp_path / "early")
            await update(client)
        _copy(tmp_path / "one", tmp_path / "late")
        said = await _refused(tmp_path / "early", access)
        assert "version 0 with 2 updates, this folder at version 0 with 1" in said
        async with _served(tmp_path / "late", access) as late:
            assert late.ledger.traffic.uploads == 2
        assert "without this folder" in await _refused(tmp_path / "one", access)

    asyncio.run(check())


def test_another_run_of_the_name_is_replaced_only_if_the_user_says_so(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with _served(tmp_path / "one", access), taking_part(tmp_path, access, 0) as client:
            for _ in range(3):
                await update(client)
        assert "is a different run (stopped at version 1)" in await _refused(tmp_path / "two", access)
        async with session(access, "test") as broker:
            assert len(await broker.subjects(NAMES.broadcast_stream, NAMES.broadcasts)) == 1
            async with _served(tmp_path / "two", access, take_over=True) as server:
                assert not await broker.subjects(NAMES.broadcast_stream, NAMES.broadcasts)
                async with taking_part(tmp_path, access, 1) as client:
                    await update(client)
                    assert server.ledger.traffic.uploads == 1

    asyncio.run(check())


def test_a_state_is_stored_only_behind_the_one_that_was_read(access: Access) -> None:
    async def check() -> None:
        async with session(access, "test") as broker:
            await broker.ensure_buckets(1)
            first = await broker.store(NAMES.state, b"first", after=0)
            second = await broker.store(NAMES.state, b"second", after=first)
            for late in (0, first, second + 1):
                with pytest.raises(BrokerRefused, match="wrong last sequence"):
                    await broker.store(NAMES.state, b"late", after=late)
            stored = await broker.stored(KEY_VALUE_STREAM, NAMES.state)
            assert stored is not None
            assert stored.data == b"second"

    asyncio.run(check())


def test_clients_ignore_the_words_of_a_server_that_has_lost_the_run(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with _served(tmp_path / "one", access):
            pass
        async with _served(tmp_path / "one", access), taking_part(tmp_path, access, 0) as client:
            follower, outbox = client.follower, client.outbox
            await until(lambda: follower.state is not None and follower.state.epoch > 1)
            async with session(access, "test") as broker:
                await _say(broker, client.names, "1")
                await until(lambda: follower.ignored["epoch"] == 2)
                assert outbox.counts.total() == 0
                await update(client)
                assert outbox.counts == {"accepted": 1}

    asyncio.run(check())


async def _say(broker: Broker, names: Names, epoch: str) -> None:
    receipt = Receipt(accepted=[(sequence, 0, 0) for sequence in range(64)])
    await broker.send(names.receipt(0), receipt.to_bytes(), headers={EPOCH: epoch})
    await broker.send(names.broadcast(0), b"a step of a lost history", headers={EPOCH: epoch})


def test_an_agreement_of_an_older_format_is_no_other_run_and_a_newer_one_is_refused(
    tmp_path: Path, access: Access
) -> None:
    """An upgraded server's agreement may be other bytes: its broadcasts stay, and the agreement is renewed."""

    async def config(broker: Broker) -> Stored:
        stored = await broker.stored(KEY_VALUE_STREAM, NAMES.config)
        assert stored is not None
        return stored

    async def check() -> None:
        async with _served(tmp_path / "one", access), taking_part(tmp_path, access, 0) as client:
            for _ in range(3):
                await update(client)
        async with session(access, "test") as broker:
            now = (await config(broker)).data
            await broker.store(NAMES.config, now.replace(b'"layout"', b'"older": 1, "layout"'))
            async with _served(tmp_path / "one", access):
                assert len(await broker.subjects(NAMES.broadcast_stream, NAMES.broadcasts)) == 1
                assert (await config(broker)).data == now
            newer = now.replace(b'"format": 2', b'"format": 9')
            assert newer != now
            await broker.store(NAMES.config, newer)
            said = await _refused(tmp_path / "one", access)
            assert said == "the run's agreement has format 9, this qafel reads 2: upgrade the older end"
            assert (await config(broker)).data == newer
            assert len(await broker.subjects(NAMES.broadcast_stream, NAMES.broadcasts)) == 1

    asyncio.run(check())


def test_run_id_of_what_is_not_an_agreement() -> None:
    assert Agreement.run_id_of(b"{}") == Agreement.run_id_of(b"no") == ""


def test_a_renewal_whose_answer_was_not_waited_for_is_our_own(tmp_path: Path, access: Access) -> None:
    """A stop cancels the heartbeat that is under way; the last state must still be said."""

    async def check() -> None:
        async with _served(tmp_path, access) as server:
            server._lease._sequence -= 1  # as if the last answer had been lost
        async with session(access, "operator") as broker:
            stored = await broker.stored(KEY_VALUE_STREAM, NAMES.state)
            assert stored is not None
            assert LiveState.from_bytes(stored.data).status == "stopped"

    asyncio.run(check())
