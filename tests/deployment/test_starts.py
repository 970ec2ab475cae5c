"""Linked starts over a real broker: limits, eviction, damaged and old files, and clients that mean harm."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nats.aio.msg import Msg

from qafel.algorithm import HiddenState
from qafel.algorithm.catch_up import Link, Links
from qafel.config import Config
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.client import ClientSettings, starts
from qafel.deployment.client import client as client_module
from qafel.deployment.client.client import DeploymentClient, open_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.client.training import train_task
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access, Signer, signed_name
from qafel.deployment.messages import StartReply, StartRequest
from qafel.deployment.names import Names
from qafel.deployment.server import ServerSettings, StartSettings
from qafel.deployment.server.defence import Allowance
from qafel.deployment.server.server import DeploymentServer
from qafel.deployment.server.starts import LinkFiles
from qafel.errors import BrokerError, MessageError
from qafel.params import Layout
from tests.deployment.live import CONFIG, serving, taking_part, until, update
from tests.deployment.raw import BAD_HEADERS, raw_line

NAMES = Names("live")
LINK = {"name": "link", "quantizer": "qsgd:4", "first": "qsgd:8"}
LINKED = Config.from_dict({**CONFIG, "algorithm": {**CONFIG["algorithm"], "buffer_size": 1, "catch_up": LINK}})
FIRST, LATER = 181, 125
"""Bytes of a first start and of a later one."""
SETTINGS = ServerSettings(heartbeat_s=0.05)
PATIENT = ClientSettings(patience_s=60)


@contextlib.asynccontextmanager
async def served(tmp_path: Path, access: Access, **limits: Any) -> AsyncIterator[DeploymentServer]:
    settings = replace(SETTINGS, starts=replace(StartSettings(), **limits))
    async with serving(tmp_path / "run", access, LINKED, settings) as server:
        yield server


async def start(client: DeploymentClient, most_s: float = 60.0) -> int:
    """Prepare a start and use it. Returns the bytes that were downloaded for it."""
    before = client.report.received_bytes
    client.follower.ready = False
    client.follower._wake.set()
    assert await client.until(lambda: client.follower.ready, most_s)
    received = client.report.received_bytes - before
    await update(client)
    return received


def memory(server: DeploymentServer) -> LinkFiles:
    assert server.starts is not None
    found = server.starts._links.memory
    assert isinstance(found, LinkFiles)
    return found


def test_a_client_receives_a_short_start_each_time_and_none_without_a_new_version(
    tmp_path: Path, access: Access
) -> None:
    async def check() -> None:
        async with served(tmp_path, access) as server, taking_part(tmp_path, access, 0, settings=PATIENT) as client:
            assert client.report.received_bytes == FIRST
            assert await start(client) == 0
            assert await start(client) == FIRST, "its start was x⁰"
            assert [await start(client) for _ in range(3)] == [LATER] * 3
            before = client.report.received_bytes - client.outbox.received_bytes
            assert server.ledger.traffic.received_bytes == before
            client.follower.ready = False
            client.follower._wake.set()
            await client.until(lambda: client.follower.ready)
            client._save(client._now_held())
        async with serving(tmp_path / "run", access, LINKED, SETTINGS) as server:
            async with taking_part(tmp_path, access, 0, settings=PATIENT) as client:  # both from their disks
                assert client.report.received_bytes in (0, LATER)
                assert [await start(client) for _ in range(2)][1] == LATER
            assert server.intake.counts["starts"] >= 2

    asyncio.run(check())


def test_lost_replies_and_repeated_requests_cost_their_bytes_only(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "_ANSWER_S", 0.2)

    async def check() -> None:
        async with served(tmp_path, access), taking_part(tmp_path, access, 0, settings=PATIENT) as client:
            for _ in range(3):
                await start(client)
            add, lost = client.follower.starts.add, 0

            def lose(*part: Any) -> None:
                nonlocal lost
                lost += 1
                if lost > 2:
                    add(*part)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(starts.StartRequests, "add", lambda _, *part: lose(*part))
                assert await start(client) == LATER
                assert lost >= 3
            assert await start(client) == LATER

    asyncio.run(check())


@pytest.mark.parametrize("fault", ["lost", "damaged", "cut off", "of another client", "old", "not a file", "foreign"])
def test_faults_of_the_servers_files_cost_one_longer_start(fault: str, tmp_path: Path, access: Access) -> None:
    folder, old = tmp_path / "run" / "links", tmp_path / "old"

    async def check() -> None:
        async with (
            served(tmp_path, access) as server,
            taking_part(tmp_path, access, 0, settings=PATIENT) as client,
            taking_part(tmp_path, access, 1, settings=PATIENT) as other,
        ):
            for _ in range(3):
                await start(client)
            await start(other)
            shutil.copytree(folder, old)
            for _ in range(3):
                assert await start(client) == LATER
            path, data = folder / "0", bytearray((folder / "0").read_bytes())
            match fault:
                case "lost":
                    path.unlink()
                case "damaged":
                    data[len(data) // 3] ^= 4
                    path.write_bytes(data)
                case "cut off":
                    path.write_bytes(data[: len(data) // 2])
                case "of another client":
                    shutil.copy(folder / "1", path)
                case "old":
                    shutil.copy(old / "0", path)
                case "not a file":
                    path.unlink()
                    path.mkdir()
                case _:
                    path.write_bytes(random.Random(1).randbytes(100_000))
            assert await start(client) == FIRST
            if fault != "not a file":
                assert await start(client) == LATER
            assert client.outbox.counts["accepted"] == sum(client.outbox.counts.values())
            assert not {"drifted", "wrong-codec"} & client.follower.ignored.keys()
            assert server.sessions == 1

    asyncio.run(check())


def test_the_least_recently_used_points_are_dropped_first_also_after_a_restart(tmp_path: Path) -> None:
    size, vector = 100, np.ones(100, np.float32)
    entry, digest = 8 + 4 * size, HiddenState.of(np.ones(100, np.float32)).digest
    files = LinkFiles(tmp_path, size, 3 * entry)
    for client in (5, 6, 7, 5, 8):
        files[client] = Link(vector, digest)
    assert list(files) == [7, 5, 8]
    assert files.total_bytes == 3 * entry == sum(path.stat().st_size for path in tmp_path.iterdir())
    (tmp_path / "5").touch()
    again = LinkFiles(tmp_path, size, 2 * entry)
    assert list(again) == [8, 5]
    assert np.array_equal(again[5].base, vector)
    assert list(LinkFiles(tmp_path, size, 0)) == []
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("size", [1, 5, 2000])
def test_a_point_and_its_message_are_read_as_they_were_written(size: int, tmp_path: Path) -> None:
    catch_up = LINKED.algorithm.compose(Layout.flat(size)).catch_up
    initial, target = (HiddenState.of(np.full(size, value, np.float32)) for value in (0, 1.5))
    links = Links(catch_up, 3, initial, LinkFiles(tmp_path, size, 10**6))
    message, _ = links.reply(4, 0, 0, target)
    again = LinkFiles(tmp_path, size, 10**6)[4]
    assert (again.message, again.digest) == (message, initial.digest)
    assert np.array_equal(again.base, initial.vector)


def test_a_full_disk_costs_longer_starts_and_stops_nobody(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with served(tmp_path, access) as server, taking_part(tmp_path, access, 0, settings=PATIENT) as client:
            await start(client)
            (tmp_path / "full").touch()
            memory(server)._folder = tmp_path / "full"
            assert [await start(client) for _ in range(3)] == [FIRST] * 3

    asyncio.run(check())


def test_a_limit_gives_a_token_when_it_said() -> None:
    allowance = Allowance(0.25, 1.0)
    assert [allowance.spend(0, now) for now in (10.0, 10.0, 12.0, 14.0, 15.0)] == [0, 4, 2, 0, 3]
    assert allowance.spend(1, 15.0) == 0, "another client's"


def test_a_client_over_its_limit_is_told_when_to_ask_again_and_waits(
    tmp_path: Path, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with (
            served(tmp_path, access, per_hour=3600.0) as server,
            taking_part(tmp_path, access, 0, settings=PATIENT) as client,
            taking_part(tmp_path, access, 1, settings=PATIENT) as other,
        ):
            assert server.starts is not None
            hear, frozen = server.starts.hear, time.monotonic()
            server.starts._allowance._left[0] = (0.0, frozen)
            # The first request is heard in time, however slow this machine is.
            server.starts.hear = lambda message, now: hear(message, now if refused() else frozen)  # type: ignore[method-assign]

            def refused() -> int:
                return server.intake.counts["refused_starts"]

            work = asyncio.create_task(start(client))
            await until(refused)
            await start(other)
            await work
            assert time.monotonic() >= client.follower.starts._not_before > frozen + 1, "a token every second"
            assert refused() == 1
            client.follower.ready, client.follower.starts._not_before = False, time.monotonic() + 1e6
            assert "limits" in client._waits_for()
        assert "Asking again in 1 s" in caplog.text

    asyncio.run(check())


def test_more_clients_than_may_wait_are_told_to_ask_later(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with served(tmp_path, access, at_once=1) as server, contextlib.AsyncExitStack() as stack:
            assert server.starts is not None
            clients = [
                await stack.enter_async_context(taking_part(tmp_path, access, number, settings=PATIENT))
                for number in range(3)
            ]
            reply, goes_on = server.starts._reply, threading.Event()

            def reply_later(client: int, request: StartRequest) -> StartReply:
                assert goes_on.wait(60)
                return reply(client, request)

            server.starts._reply = reply_later  # type: ignore[method-assign]
            works = [asyncio.create_task(start(client)) for client in clients]
            await until(lambda: server.intake.counts["refused_starts"])
            goes_on.set()
            await asyncio.gather(*works)

    asyncio.run(check())


def test_two_processes_with_one_number_both_go_on(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with (
            served(tmp_path, access),
            taking_part(tmp_path, access, 0, settings=PATIENT) as one,
            taking_part(tmp_path / "other", access, 0, settings=PATIENT) as other,
        ):
            for _ in range(4):
                await asyncio.gather(start(one), start(other))
            for client in (one, other):
                assert not {"drifted", "wrong-codec"} & client.follower.ignored.keys()
                assert client.outbox.counts["accepted"]

    asyncio.run(check())


def test_a_request_that_another_process_replaced_is_sent_again(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "_ANSWER_S", 1000.0)

    async def check() -> None:
        async with (
            served(tmp_path, access) as server,
            taking_part(tmp_path, access, 0, settings=PATIENT) as one,
            taking_part(tmp_path / "other", access, 0, settings=PATIENT) as other,
            taking_part(tmp_path, access, 1, settings=PATIENT) as busy,
        ):
            assert server.starts is not None
            assert [await start(each) for each in (one, other, busy)]
            hear, reply = server.starts.hear, server.starts._reply
            heard, all_heard = Counter[str](), threading.Event()

            def hear_all(message: Msg, now: float) -> None:
                hear(message, now)
                heard[message.subject] += 1
                if heard[NAMES.start(0)] == 2:
                    all_heard.set()

            def reply_to_all(client: int, request: StartRequest) -> StartReply:
                assert all_heard.wait(60)
                return reply(client, request)

            server.starts.hear, server.starts._reply = hear_all, reply_to_all  # type: ignore[method-assign]
            work = asyncio.create_task(start(busy))
            await until(lambda: heard)
            await asyncio.gather(start(one), start(other), work)

    asyncio.run(check())


@pytest.mark.parametrize("catch_up", ["exact", LINK])
def test_a_client_that_waits_for_a_lost_server_finds_a_new_run_of_the_same_name(
    catch_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a secured broker, where nobody answers requests that are signed for the lost run."""
    monkeypatch.setattr(starts, "_ANSWER_S", 1000.0)
    config = Config.from_dict({**CONFIG, "algorithm": {**CONFIG["algorithm"], "catch_up": catch_up}})

    async def check(keys: Path) -> None:
        access = Access.of(None, keys / "server")
        async with contextlib.AsyncExitStack() as stack:
            async with serving(tmp_path / "old", access, config, SETTINGS):
                own = Access.of(None, keys / "clients" / "0")
                client = await stack.enter_async_context(taking_part(tmp_path, own, 0, settings=PATIENT))
            follower = client.follower
            follower.ready, follower._head = False, 1  # it needs something from the lost server
            follower._wake.set()
            await until(lambda: not follower._wake.is_set())
            settings = replace(SETTINGS, take_over=True)
            server = await stack.enter_async_context(serving(tmp_path / "new", access, config, settings))
            run_id = server.ledger.run_id
            assert await client.until(lambda: follower.ready and follower.held_run_id == run_id, 60)

    port = free_port()
    keys = BrokerFolder.init(tmp_path / "broker", 1, port=port, sync="2m").path
    with LocalBroker(keys, port=port):
        asyncio.run(check(keys))


def test_a_client_never_starts_from_a_point_that_the_server_did_not_make(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server, or someone on a broker without keys, answers with nonsense."""
    monkeypatch.setattr(starts, "_ANSWER_S", 0.5)  # a longer answer than there can be is none

    async def check() -> None:
        async with served(tmp_path, access) as server:
            assert server.starts is not None
            starts, reply, made, asked = server.starts, server.starts._reply, set[int](), iter(range(1000))

            def lie(client: int, request: StartRequest) -> StartReply:
                true = reply(client, request)
                made.add(starts._given[client][0])
                whole = server.ledger.server.hidden_state.to_snapshot()
                flipped = bytearray(true.frame)
                flipped[-1:] = bytes([flipped[-1] ^ 1]) if flipped else b""
                lies = [b"", b"x", true.frame[:-1], bytes(flipped), whole[:-4]]
                number = next(asked)
                return true._replace(frame=lies[number]) if number < len(lies) else true

            starts._reply = lie  # type: ignore[method-assign]
            started: list[int] = []
            begin = DeploymentClient.begin

            def watched(client: DeploymentClient) -> Any:
                started.append(client.core.hidden_state.digest)
                return begin(client)

            monkeypatch.setattr(DeploymentClient, "begin", watched)
            settings = ClientSettings(patience_s=60, max_updates=2)
            with ClientState(tmp_path / "client") as state:
                client = await open_client(train_task, NAMES, 0, state, access, settings)
                assert (await client.run()).outcomes == {"accepted": 2}
            assert set(started) <= made, "it started from another point"

    asyncio.run(check())


@pytest.mark.parametrize("head", ["", "1 2 3", "1 2 3 4 5 6 7", "-1 2 3 4 5 6", "1 2 3 4 5 x", "1" * 30 + " 2 3 4 5 6"])
def test_a_reply_with_another_head_is_refused(head: str) -> None:
    with pytest.raises(MessageError):
        StartReply.from_head(head)


def test_long_starts_come_in_parts(tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qafel.deployment.connection.Broker.part_bytes", 50)

    async def check() -> None:
        async with served(tmp_path, access) as server, taking_part(tmp_path, access, 0, settings=PATIENT) as client:
            assert client.report.received_bytes == FIRST
            assert server.intake.counts["starts"] == 1

    asyncio.run(check())


@pytest.mark.timeout(240)
def test_clients_that_mean_harm_stop_neither_the_server_nor_others(tmp_path: Path) -> None:
    """On a secured broker: floods, huge and malformed requests, those of others, and repeated ones."""

    async def check(keys: Path) -> None:
        async with contextlib.AsyncExitStack() as stack:
            access = [Access.of(None, keys / "clients" / str(number)) for number in range(3)]
            server = await stack.enter_async_context(
                served(tmp_path, Access.of(None, keys / "server"), per_hour=1200.0, at_once=2)
            )
            good = await stack.enter_async_context(taking_part(tmp_path, access[0], 0, settings=PATIENT))
            begun, run_id = server._session_id, server.ledger.run_id
            assert await start(good) == 0
            assert await start(good) == FIRST
            broker = await stack.enter_async_context(session(access[1], "1", patience_s=20))
            heard: list[Stored] = []

            async def hear(stored: Stored) -> None:
                heard.append(stored)

            await broker.subscribe(NAMES.started(0), hear)
            chooser, own, signer = random.Random(1), NAMES.start(1), access[1].signer()

            def signed(request: StartRequest, subject: str = own) -> dict[str, Any]:
                data = request.to_bytes()
                return {"subject": subject, "data": data, "headers": signer.headers(signed_name(subject, run_id), data)}

            of_another = signed(StartRequest(0, good.core.hidden_state.digest, 0), NAMES.start(0))
            floods: list[list[dict[str, Any]]] = [
                [signed(StartRequest(chooser.randrange(1 << 32), chooser.randrange(1 << 64), 0)) for _ in range(50)],
                [signed(StartRequest(0, 0, 0))],
                [{"subject": own, "data": chooser.randbytes(chooser.randrange(900))} for _ in range(50)],
                [{"subject": own, "data": bytes(900_000)}],
                [{"subject": own, "data": StartRequest(0, 0, 0).to_bytes(), "headers": {"Nats-Rollup": "all"}}],
                [of_another],
                [{**of_another, "reply": NAMES.broadcast(7)}],
                [{"subject": "qafel.live.start.x", "data": b""}],
            ]
            for flood in floods:
                stop = asyncio.Event()

                async def send(
                    broker: Broker = broker, flood: list[dict[str, Any]] = flood, stop: asyncio.Event = stop
                ) -> None:
                    with contextlib.suppress(BrokerError):
                        while not stop.is_set():
                            for _ in range(20):
                                await broker.send(**chooser.choice(flood))
                            await broker.flush()

                work = asyncio.create_task(send())
                await asyncio.sleep(0.2)
                for _ in range(3):
                    assert await start(good) == LATER
                stop.set()
                await work
                if broker.connection.is_closed:  # the broker shut it out
                    broker = await stack.enter_async_context(session(access[1], "1", patience_s=20))
            line = await stack.enter_async_context(raw_line(access[1]))
            for block in BAD_HEADERS:
                line.publish(own, block)
            with contextlib.suppress(AssertionError):  # the broker may refuse one
                await line.flush()
            assert await start(good) == LATER
            assert good.outbox.counts["accepted"] == 3 * len(floods) + 3
            assert server.intake.counts["refused_starts"]
            assert not heard, "of another client's starts"
            assert len(memory(server)) <= 2
            assert server._session_id == begun, "a session ended"

    port = free_port()
    keys = BrokerFolder.init(tmp_path / "broker", 3, port=port, sync="2m").path
    with LocalBroker(keys, port=port):
        asyncio.run(check(keys))


def test_a_client_without_the_runs_task_starts_from_zero(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with served(tmp_path, access), taking_part(tmp_path, access, 0, settings=PATIENT) as client:
            assert client.core.initial is not None
            client.core.initial = None
            client.follower.held, client.core.hidden_state = (
                client.follower.held._replace(linked=False, position=None),
                HiddenState.of(np.zeros(client.core.hidden_state.vector.size, np.float32), -1),
            )
            assert await start(client) == FIRST
            await start(client)
            assert await start(client) == LATER

    asyncio.run(check())


@pytest.mark.parametrize("catch_up", ["exact", LINK])
def test_a_client_that_follows_only_for_its_starts_sleeps_without_a_connection(
    catch_up: Any, tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, open_now = Counter[str](), Counter[str]()
    config = Config.from_dict({**CONFIG, "algorithm": {**CONFIG["algorithm"], "catch_up": catch_up}})
    connect, wait = client_module.session, DeploymentClient.until

    @contextlib.asynccontextmanager
    async def counted(access: Access, name: str, **options: Any) -> AsyncIterator[Broker]:
        async with connect(access, name, **options) as broker:
            sessions[name] += 1
            open_now[name] += 1
            yield broker
        open_now[name] -= 1

    async def rest(client: DeploymentClient, condition: Callable[[], bool], most_s: float | None = None) -> bool:
        """A pause of an hour is over as soon as the client has no connection."""
        if (most_s or 0.0) < 1000:
            return await wait(client, condition, most_s)
        await until(lambda: not open_now["1"])
        return condition()

    monkeypatch.setattr(client_module, "session", counted)
    monkeypatch.setattr(DeploymentClient, "until", rest)

    async def check() -> None:
        settings = ClientSettings(patience_s=60, follow="start", min_interval_s=3600, max_updates=3)
        async with serving(tmp_path / "run", access, config, SETTINGS), taking_part(tmp_path, access, 0) as worker:
            with ClientState(tmp_path / "sleeper") as state:
                sleeper = await open_client(train_task, NAMES, 1, state, access, settings)
                work = asyncio.create_task(sleeper.run())
                while not work.done():
                    worker.follower.prepare()
                    await worker.until(lambda: worker.follower.ready)
                    await update(worker)
                    assert not sleeper.follower._listening
                    await asyncio.sleep(0.01)
                assert (await work).outcomes == {"accepted": 3}
            assert sessions["1"] == 1 + 3, "one to find the run, and one for each start"

    asyncio.run(check())


def test_a_folder_of_points_that_cannot_be_used_costs_longer_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "links").write_bytes(b"")
    files = LinkFiles(tmp_path / "links", 3, 1000)
    assert "next starts are longer" in caplog.text
    files[0] = Link(np.zeros(3, np.float32), 5)
    assert list(files) == []


def test_what_a_killed_server_left_of_a_point_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "7").write_bytes(b"whole")
    (tmp_path / ".8.part").write_bytes(b"half")
    assert list(LinkFiles(tmp_path, 3, 1000)) == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_an_answer_that_still_arrives_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, asked, waits = starts.StartRequests("subject", Signer(None), 100), [], iter(range(3))

    class Line:
        async def send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
            asked.append(data)

    async def time_passes(event: asyncio.Event, seconds: float) -> None:
        requests.add(StartReply(1, 5, 7), next(waits), 3, b"part")

    monkeypatch.setattr(starts, "wait_for_event", time_passes)
    answer = asyncio.run(requests.ask(Line(), "run", StartRequest(1, 5, 0)))  # type: ignore[arg-type]
    assert answer is not None
    assert answer.frame == b"part" * 3
    assert len(asked) == 1


def test_a_request_has_one_size() -> None:
    request = StartRequest(7, 1 << 63, 5)
    assert StartRequest.from_bytes(request.to_bytes()) == request
    for data in (b"", bytes(19), bytes(21), bytes(10**6)):
        with pytest.raises(MessageError):
            StartRequest.from_bytes(data)
    assert len(request.to_bytes()) == struct.calcsize("<IQQ")
