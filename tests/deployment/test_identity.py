"""What was said in one run, or by a server that has lost it, counts for nothing in another; on a real, secured broker.

A hostile broker may publish all that it has ever carried, under any subject, but sign nothing: here the server's user
publishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qafel.config import Config
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.messages import Receipt
from qafel.deployment.names import EPOCH, KEY_VALUE_STREAM, OBJECT, SIGNATURE
from qafel.deployment.server import ServerSettings, announcements
from qafel.deployment.server.server import DeploymentServer
from qafel.deployment.status import remove_run
from qafel.errors import ConfigError
from qafel.runs.live import LiveState
from tests.deployment.client.test_follower import LARGE
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update

ANEW = ServerSettings(heartbeat_s=0.2, take_over=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    port = free_port()
    folder = BrokerFolder.init(tmp_path_factory.mktemp("secured") / "broker", 3, port=port, sync="2m").path
    with LocalBroker(folder, port=port):
        yield folder


def _server(keys: Path) -> Access:
    return Access.of(None, keys / "server")


def _client(keys: Path, number: int = 0) -> Access:
    return Access.of(None, keys / "clients" / str(number))


@contextlib.asynccontextmanager
async def _served(folder: Path, keys: Path, run: str, **changed: Any) -> AsyncIterator[DeploymentServer]:
    settings = replace(ANEW, run=run, **changed)
    async with serving(folder, _server(keys), Config.from_dict(CONFIG), settings) as server:
        await until(lambda: server._session_id)
        yield server


async def _recorded(broker: Broker, *subjects: str) -> list[Stored]:
    heard: list[Stored] = []

    async def hear(stored: Stored) -> None:
        heard.append(stored)

    for subject in subjects:
        await broker.subscribe(subject, hear)
    await broker.flush()
    return heard


async def _play(broker: Broker, recorded: list[Stored], epoch: str | None = None) -> None:
    """Once more as it was, or as if it came from a server of another epoch."""
    for stored in recorded:
        kept = {name: value for name, value in stored.headers.items() if name in (SIGNATURE, EPOCH, OBJECT)}
        await broker.send(stored.subject, stored.data, headers=kept if epoch is None else {**kept, EPOCH: epoch})
    await broker.flush()


def test_nothing_of_an_old_run_counts_in_a_new_one_of_the_same_name(tmp_path: Path, keys: Path) -> None:
    async def check() -> None:
        number = _client(keys)
        # The broker's own key may listen to all: here the client's does, to what it hears and sends.
        async with session(number, "0") as ear:
            names = "qafel.anew"
            heard = await _recorded(ear, f"{names}.broadcast.*", f"{names}.receipt.0", "$KV.qafel.anew.state")
            async with (
                _served(tmp_path / "one", keys, "anew") as one,
                taking_part(tmp_path, number, 0, "anew") as client,
            ):
                start = client.begin()
                old_upload = client.finish(start, client._train).upload
                signed = client.outbox._signer.headers("qafel.anew.upload.0\n" + one.ledger.run_id + "\n", old_upload)
                client.outbox.add(start.sequence, old_upload)
                for _ in range(5):
                    await update(client)
                one.evaluator.end("diverged")  # which it says as its last word
                one.stop()
                await until(lambda: client.follower.ended)
            await until(lambda: any(b'"diverged"' in stored.data for stored in heard))
            old = list(heard)
        async with contextlib.AsyncExitStack() as stack:
            two = await stack.enter_async_context(_served(tmp_path / "two", keys, "anew"))
            client = await stack.enter_async_context(taking_part(tmp_path / "new", number, 0, "anew"))
            other = await stack.enter_async_context(taking_part(tmp_path / "new", _client(keys, 1), 1, "anew"))
            await until(lambda: client.follower.state is not None)
            assert two.ledger.run_id != one.ledger.run_id
            held = client.core.hidden_state
            broker = await stack.enter_async_context(session(_server(keys), "server"))
            begin = client.begin()
            client.outbox._pending.clear()
            await broker.send(client.names.upload(0), old_upload, headers=signed)
            await until(lambda: two.ledger.server.rejected["signature"] == 1)
            assert two.ledger.traffic.uploads == 0
            words = [stored for stored in old if ".state" not in stored.subject]
            await _play(broker, words)
            await _play(broker, words, "9999999999")
            states = [stored for stored in old if ".state" in stored.subject]
            for stored in states:  # live only: in the bucket, they would take the lease from its holder
                await client.follower._on_state(stored)
            await until(lambda: client.follower.ignored["signature"] >= len(words))
            assert client.follower.ignored["another-run"] == len(states)
            assert client.core.hidden_state is held
            assert not client.follower.ended
            assert client.outbox.counts.total() == 0
            assert begin.sequence == 0
            for _ in range(3):
                await update(other)
            await until(lambda: same(two, client.core.hidden_state) and client.follower.version == 1)

    asyncio.run(check())


@pytest.mark.parametrize("case", ["plain", "a clock in the future", "the broker forgot"])
def test_clients_follow_a_run_that_its_server_begins_anew_with_the_same_settings(
    tmp_path: Path, keys: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"again-{case.replace(' ', '-')}"  # the cases share a broker, which remembers epochs

    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            if case == "a clock in the future":
                monkeypatch.setattr(announcements, "time", SimpleNamespace(time=lambda: time.time() + 1e9))
            async with _served(tmp_path / "one", keys, run) as one:
                client = await stack.enter_async_context(taking_part(tmp_path, _client(keys), 0, run))
                for _ in range(4):
                    await update(client)
            monkeypatch.undo()
            if case == "the broker forgot":
                await asyncio.sleep(1.1)  # the epoch is a time in seconds
                await remove_run(_server(keys), run)
            begun = client.begin()
            client.outbox.add(begun.sequence, b"of the run that is over")
            two = await stack.enter_async_context(_served(tmp_path / "two", keys, run))
            assert two.ledger.run_id != one.ledger.run_id
            await until(lambda: client.outbox.run_id == two.ledger.run_id and same(two, client.core.hidden_state))
            assert len(client.outbox) == 0
            assert begun.run_id == one.ledger.run_id, "which is not sent, if it is finished now"
            assert client.begin().run_id == two.ledger.run_id
            await update(client)
            assert two.ledger.traffic.uploads == 1

    asyncio.run(check())


def test_a_run_begun_anew_with_other_settings_ends_its_clients_with_a_sentence(tmp_path: Path, keys: Path) -> None:
    async def check() -> None:
        changed = Config.from_dict({**CONFIG, "algorithm": {**CONFIG["algorithm"], "client_quantizer": "qsgd:2"}})
        async with taking_part_of(tmp_path, keys, "other") as (client, connected):
            async with serving(tmp_path / "two", _server(keys), changed, replace(ANEW, run="other")):
                with pytest.raises(ConfigError, match="other settings"):
                    await asyncio.wait_for(connected, 120)
            assert client.outbox.counts["accepted"] == 1

    asyncio.run(check())


@contextlib.asynccontextmanager
async def taking_part_of(folder: Path, keys: Path, run: str) -> AsyncIterator[Any]:
    """A client of a run whose server was stopped, and its work."""
    async with contextlib.AsyncExitStack() as stack:
        async with _served(folder / "one", keys, run):
            client = await stack.enter_async_context(taking_part(folder, _client(keys), 0, run))
            await update(client)
        yield client, asyncio.create_task(client.stay_connected())


def test_forged_receipts_are_not_believed_and_a_client_says_that_nobody_speaks(tmp_path: Path, keys: Path) -> None:
    """The server is stopped; the broker forges receipts and repeats the server's words."""

    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with _served(tmp_path / "one", keys, "forged"):
                client = await stack.enter_async_context(taking_part(tmp_path, _client(keys), 0, "forged"))
                await update(client)
                broker = await stack.enter_async_context(session(_server(keys), "server"))
                genuine = await broker.stored(KEY_VALUE_STREAM, client.names.state)
                assert genuine is not None
            await until(lambda: client.follower.state is not None and client.follower.state.status == "stopped")
            start = client.begin()
            client.outbox.add(start.sequence, client.finish(start, client._train).upload)
            receipt = Receipt(accepted=[(start.sequence, 0, 0)]).to_bytes()
            epoch = str(client.follower.state.epoch)
            for headers in ({}, {EPOCH: epoch}, {EPOCH: epoch, SIGNATURE: genuine.headers[SIGNATURE]}):
                await broker.send(client.names.receipt(0), receipt, headers=headers)
            await until(lambda: client.follower.ignored["signature"] + client.follower.ignored["epoch"] >= 3)
            assert len(client.outbox) == 1, "the update is still on its way"
            # A running server that fell silent an hour ago, whose last word the broker repeats.
            follower = client.follower
            follower.state = replace(follower.state, status="running")
            follower.heard_at = time.monotonic() - 3600
            for _ in range(3):
                await follower._on_state(genuine)
            assert "silent for 1 h 0 min" in client._waits_for()

    asyncio.run(check())


def test_a_word_that_was_held_back_does_not_count_as_fresh(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path, access), taking_part(tmp_path, access, 0) as client:
            follower = client.follower
            await until(lambda: follower.state is not None)
            assert client._waits_for() == ""
            old = replace(follower.state, beat=10**6, at=time.time() - 7200)  # type: ignore[arg-type,type-var]
            await follower._on_state(Stored(client.names.state, old.to_bytes(), {}))
            assert "silent for 2 h 0 min" in client._waits_for()

    asyncio.run(check())


def test_a_state_that_was_said_before_is_no_news(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as client:
            follower, run_id = client.follower, server.ledger.run_id
            await until(lambda: follower.state is not None and follower.state.beat > 2)
            epoch = follower.state.epoch  # type: ignore[union-attr]
            finished = LiveState(status="finished", at=0.0, version=0, run_id=run_id, epoch=epoch, beat=1)
            await follower._on_state(Stored(client.names.state, finished.to_bytes(), {}))
            assert follower.ignored["old"] == 1
            assert not follower.ended

    asyncio.run(check())


def test_an_unsigned_pointer_raises_nobodys_idea_of_the_newest_version(tmp_path: Path, keys: Path) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            settings = replace(ANEW, run="pointers")
            server = await stack.enter_async_context(
                serving(tmp_path, _server(keys), Config.from_dict(LARGE), settings)
            )
            client = await stack.enter_async_context(taking_part(tmp_path, _client(keys), 0, "pointers"))
            heard = await _recorded(
                ear := await stack.enter_async_context(session(_client(keys, 1), "1")), client.names.broadcasts
            )
            del ear
            await update(client)
            await until(lambda: client.follower.version == 1 and heard)
            assert len(heard[0].data) == 32, "a pointer is small"
            broker = await stack.enter_async_context(session(_server(keys), "server"))
            genuine = {name: heard[0].headers[name] for name in (EPOCH, SIGNATURE, OBJECT)}
            for version in (1, 20):
                for headers in ({OBJECT: "x", EPOCH: genuine[EPOCH]}, genuine):
                    await broker.send(client.names.broadcast(version), heard[0].data, headers=headers)
            await until(lambda: client.follower.ignored["signature"] == 4)
            assert client.follower._head == 1
            await update(client)
            await until(lambda: client.follower.version == 2 and same(server, client.core.hidden_state))

    asyncio.run(check())


def test_a_genuine_heartbeat_heals_a_raised_idea_of_the_newest_version(tmp_path: Path, access: Access) -> None:
    """Where nobody signs, anyone can raise it."""

    async def check() -> None:
        async with serving(tmp_path, access) as server, taking_part(tmp_path, access, 0) as client:
            await until(lambda: client.follower.state is not None)
            async with session(access, "test") as broker:
                headers = {OBJECT: "x", EPOCH: str(client.follower.state.epoch)}  # type: ignore[union-attr]
                await broker.send(client.names.broadcast(10**9), b"", headers=headers)
                await until(lambda: client.follower._head == 10**9 + 1)
            await until(lambda: client.follower._head == 0)
            for _ in range(3):
                await update(client)
            await until(lambda: client.follower.version == 1 and same(server, client.core.hidden_state))

    asyncio.run(check())


def test_two_processes_under_one_number_are_noticed_and_said(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(_served(tmp_path / "run", keys, "twins"))
            one = await stack.enter_async_context(taking_part(tmp_path / "a", _client(keys), 0, "twins"))
            two = await stack.enter_async_context(taking_part(tmp_path / "b", _client(keys), 0, "twins"))
            one._on_event = told.append
            await until(lambda: one.follower.state is not None and two.follower.state is not None)
            # Both use number 0: one of them loses its update, and is told.
            two.core.seed += 1  # other data
            starts = [(each, each.begin()) for each in (one, two)]
            for each, start in starts:
                each.outbox.add(start.sequence, each.finish(start, each._train).upload)
            await until(lambda: not len(one.outbox) and not len(two.outbox))
            lost = [each for each in (one, two) if each.outbox.counts["another-process"]]
            assert len(lost) == 1
            assert server.ledger.traffic.uploads == 1
            # The loser goes on under higher numbers: the other hears of updates that it never sent.
            for _ in range(3):
                await update(lost[0])
            await until(lambda: caplog.text.count("another process uploads as client 0") == 2)

    told: list[dict[str, Any]] = []
    asyncio.run(check())
    assert next(event["text"] for event in told if event["event"] == "warning").startswith("another process uploads")
