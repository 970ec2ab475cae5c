"""A connection ends with everything that belongs to it, however it ends; a client's last words are its report."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client as Connection

from qafel.config import Config
from qafel.deployment import transport
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.names import Names
from qafel.deployment.transport import cancel_and_wait, run_until_one_ends
from qafel.errors import BrokerError, BrokerLost, BrokerUnreachable
from tests.deployment.live import CONFIG, serving, taking_part, until, update
from tests.deployment.processes import Command, Line, listening, wait_for


async def _hear(stored: Stored) -> None:
    pass


def _break_writes(broker: Broker) -> None:
    async def drain() -> None:
        raise ConnectionResetError("reset")

    broker.connection._transport.drain = drain  # type: ignore[union-attr,method-assign,unused-ignore]


def _others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[return-value,arg-type,unused-ignore]


def test_a_connection_whose_last_write_fails_leaves_no_task(access: Access, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with session(access, "test") as broker:
            await broker.subscribe("anything", _hear)
            await broker.flush()
            _break_writes(broker)
            await broker.send("anything", b"x" * 10_000)
        del broker
        assert not _others()

    asyncio.run(check())
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_the_private_attributes_of_nats_py_that_we_use_are_there(access: Access) -> None:
    """`transport.py` is the one file that uses them; if this fails after an upgrade, look there."""

    async def check() -> None:
        async with session(access, "test") as broker:
            await broker.subscribe("anything", _hear)
            await broker.flush()
            names = {task.get_coro().__qualname__.rpartition(".")[2] for task in broker.connection._own_tasks()}
            assert names == {"_read_loop", "_ping_interval", "_flusher", "_wait_for_msgs"}
            assert names >= {task.get_coro().__qualname__.rpartition(".")[2] for task in _others()}
            assert min(broker.connection.wire_bytes().values()) > 0  # through `_transport._io_writer`
            parameters = inspect.signature(Connection._process_info).parameters
            assert list(parameters) == ["self", "info", "initial_connection"]

    asyncio.run(check())


def test_a_session_cancelled_at_any_moment_leaves_no_task(access: Access) -> None:
    """While it connects, subscribes, or waits."""

    async def use() -> None:
        async with session(access, "test") as broker:
            await broker.subscribe("anything", _hear)
            await asyncio.sleep(60)

    async def check(turns: int) -> None:
        work = asyncio.create_task(use())
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        await cancel_and_wait([work])
        assert not _others()

    for turns in range(0, 20, 2):
        asyncio.run(check(turns))


def test_a_connection_that_broke_without_a_word_is_noticed(access: Access) -> None:
    async def check() -> None:
        async with session(access, "test") as broker:
            _break_writes(broker)
            await broker.connection.publish("anything", b"x")
            with pytest.raises(ConnectionResetError):
                await broker.connection.close()
            with pytest.raises(BrokerLost):
                await asyncio.wait_for(broker.until_lost(), 120)

    asyncio.run(check())


def test_a_connection_to_a_broker_that_reads_nothing_more_closes_at_once() -> None:
    """Unsent bytes would keep the socket open until the broker reads them."""

    async def say_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_INFO + b"PONG\r\n")
        await reader.readuntil(b"PING\r\n")
        await asyncio.sleep(600)

    async def check() -> None:
        async with listening(say_little) as port:
            connection = await transport.connect_patiently(Access((f"nats://127.0.0.1:{port}",)), "0", 120.0)
            for _ in range(32):
                await connection.publish("anything", bytes(1 << 20))
            line: Any = connection._transport._io_writer.transport
            await until(line.get_write_buffer_size)
            await connection.drop()
            await asyncio.sleep(0)
            assert line.get_extra_info("socket").fileno() == -1

    asyncio.run(check())


def test_a_connection_that_is_accepted_last_closes_with_its_server() -> None:
    """Its task may be cancelled before the first step; the fixture looks for its socket."""

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(600)

    async def check(rounds: int) -> None:
        with socket.socket() as line:
            async with listening(never) as port:
                line.connect(("127.0.0.1", port))
                for _ in range(rounds):
                    await asyncio.sleep(0)

    for rounds in range(3):
        asyncio.run(check(rounds))


def test_connections_cut_while_uploads_are_on_their_way_leave_no_task(
    tmp_path: Path, local_broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line(local_broker.port)

    async def check() -> None:
        direct, through = Access((local_broker.url,)), Access((f"nats://127.0.0.1:{line.port}",))
        async with serving(tmp_path, direct), taking_part(tmp_path, through, 0) as client:
            for _ in range(5):
                work = asyncio.create_task(update(client))
                await asyncio.sleep(0.005)
                line.cut()
                await work
                gc.collect()

    try:
        asyncio.run(check())
    finally:
        line.close()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.slow
def test_lines_cut_between_the_parts_of_an_upload_cost_no_update_and_leave_no_part(
    tmp_path: Path, local_broker: LocalBroker
) -> None:
    lines = [Line(local_broker.port) for _ in range(2)]
    accesses = [Access((f"nats://127.0.0.1:{line.port}",)) for line in lines]
    task = {"name": "quadratic", "clients": 2, "dimension": 1_500_000}  # six parts
    config = Config.from_dict({**CONFIG, "task": task, "algorithm": {"method": "fedbuff", "buffer_size": 3}})

    async def check() -> None:
        names = Names("live")
        async with (
            session(Access((local_broker.url,)), "test") as broker,
            serving(tmp_path, accesses[0], config) as server,
            taking_part(tmp_path, accesses[1], 0) as client,
        ):
            for cuts in range(6):
                work = asyncio.create_task(update(client))
                for _ in range(1 + cuts % 2):
                    before = server.intake._assembler.held
                    while server.intake._assembler.held == before and not work.done():
                        await asyncio.sleep(0.001)
                    lines[cuts // 3].cut()
                await work
            counts = client.outbox.counts  # a receipt may be cut off; then its update is a duplicate
            assert (server.ledger.traffic.uploads, counts["accepted"] + counts["duplicate"]) == (6, 6)
            async with asyncio.timeout(120):
                while await broker.waiting(names.upload_stream):
                    await asyncio.sleep(0.05)

    try:
        asyncio.run(check())
    finally:
        for line in lines:
            line.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stopped_client_says_its_report_and_nothing_else(
    tmp_path: Path, local_broker: LocalBroker, number: signal.Signals
) -> None:
    line = Line(local_broker.port)
    serving = Command(
        "server", tmp_path / "server.out", "mushrooms-qafel-4bit", "--broker", local_broker.url, "--out",
        str(tmp_path / "run"), "--quiet",
    )  # fmt: skip
    client = Command(
        "client", tmp_path / "client.out", "--run", "mushrooms-qafel-4bit", "--client-id", "3", "--broker",
        f"nats://127.0.0.1:{line.port}", "--state", str(tmp_path / "state"), "--json",
    )  # fmt: skip
    try:
        for accepted in (5, 30):
            wait_for(lambda n=accepted: _accepted(client) > n, "accepted updates")  # type: ignore[misc]
            line.cut()
        client.process.send_signal(number)
        assert client.process.wait(30) == 0
        assert client.output.with_suffix(".err").read_text(encoding="utf-8") == ""
        assert client.events()[-1]["event"] == "report"
        assert serving.end() == 0
        assert serving.output.with_suffix(".err").read_text(encoding="utf-8") == ""
    finally:
        for command in (client, serving):
            if command.alive:
                command.kill()
        line.close()


def _accepted(client: Command) -> int:
    return sum(event["event"] == "accepted" for event in client.events())


def test_a_work_that_loses_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_CANCEL_AGAIN_S", 0.1)

    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise BrokerLost("as it happens")

    async def check() -> None:
        with pytest.raises(BrokerLost):
            await run_until_one_ends(deaf(), fails())
        assert not _others()

    asyncio.run(check())


def test_works_that_are_ended_twice_are_all_waited_for() -> None:
    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)

    async def check() -> None:
        work = asyncio.create_task(run_until_one_ends(slow_to_end(), slow_to_end()))
        await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not _others()

    asyncio.run(check())


@pytest.mark.parametrize(
    "said",
    [
        "nats: 'Authentication Timeout'",
        "nats: 'maximum account active connections exceeded'",
        "nats: 'maximum connections exceeded'",
    ],
)
def test_a_slow_or_full_broker_is_tried_again(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    tries: list[str] = []

    async def connect(access: Access, url: str, name: str) -> str:
        tries.append(url)
        if len(tries) < 2:
            raise nats.errors.Error(said)
        return "in"

    monkeypatch.setattr(transport, "_connect", connect)
    assert asyncio.run(transport.connect_patiently(Access(), "0", None)) == "in"  # type: ignore[comparison-overlap]
    assert len(tries) == 2


@pytest.mark.parametrize("code", [9, 10])
def test_a_broker_whose_certificate_is_not_valid_now_is_a_mistake_at_the_start_and_waited_for_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    tries: list[str] = []

    async def connect(access: Access, url: str, name: str) -> str:
        tries.append(url)
        if len(tries) < 4:
            error = ssl.SSLCertVerificationError(1, "certificate verify failed")
            error.verify_code, error.verify_message = code, "certificate is not valid"
            raise error
        return "in"

    monkeypatch.setattr(transport, "_connect", connect)
    with pytest.raises(BrokerUnreachable, match=r"at \d{4}-.* set the clock"):
        asyncio.run(transport.connect_patiently(Access(), "0", 10.0))
    assert asyncio.run(transport.connect_patiently(Access(), "0", None)) == "in"  # type: ignore[comparison-overlap]
    assert len([record for record in caplog.records if "set the clock" in record.getMessage()]) == 1


@pytest.mark.parametrize(
    "error", [nats.errors.Error("nats: 'Authorization Violation'"), nats.errors.AuthorizationError()]
)
def test_a_broker_that_knows_our_key_no_longer_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def connect(access: Access, url: str, name: str) -> None:
        raise error

    monkeypatch.setattr(transport, "_connect", connect)
    with pytest.raises(BrokerUnreachable, match="refused our key"):
        asyncio.run(asyncio.wait_for(transport.connect_patiently(Access(), "0", None), 120))


_INFO = b'INFO {"server_id": "x", "headers": true, "max_payload": 1048576}\r\n'
_READ = b"NATS/1.0\r\nNats-Sequence: 1\r\n\r\n"


@contextlib.asynccontextmanager
async def _nonsense(info: bytes, headers: bytes = b"", body: bytes = b"") -> AsyncIterator[Access]:
    """A broker that says this first, and gives this answer to every request."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while line := await reader.readline():
                verb, *words = line.split()
                if verb == b"PING":
                    writer.write(b"PONG\r\n")
                elif verb in (b"PUB", b"HPUB"):
                    await reader.readexactly(int(words[-1]) + 2)
                    lengths = b"%d %d" % (len(headers), len(headers + body))
                    writer.write(b"HMSG %s 1 %s\r\n%s%s\r\n" % (words[1], lengths, headers, body))

    async with listening(speak) as port:
        yield Access((f"nats://127.0.0.1:{port}",))


@pytest.mark.parametrize(
    "info", [b"INFO [1]\r\n", b'INFO {"max_payload": "x"}\r\n', b'INFO {"max_payload": 7}\r\n', b"A" * 100_000]
)
def test_a_broker_whose_first_line_makes_no_sense_is_told_in_a_sentence(info: bytes) -> None:
    async def check() -> None:
        async with _nonsense(info) as access:
            with pytest.raises(BrokerUnreachable, match="no broker at"):
                async with session(access, "0", patience_s=0.1):
                    pass

    asyncio.run(check())


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[]", b"null", b"5", b'{"error": "x"}', b'{"error": [1]}', b'{"seq": "x"}', b'{"state": 7}',
     b"[" * 99_999, b'{"size": "x", "digest": "", "nuid": ""}', b'{"size": 1e999, "digest": "", "nuid": ""}'],
)  # fmt: skip
@pytest.mark.parametrize("headers", [_READ, _READ.replace(b"1\r", b"x\r"), b"nonsense"])
def test_answers_that_make_no_sense_end_a_session_and_nothing_else(headers: bytes, body: bytes) -> None:
    async def check() -> None:
        async with _nonsense(_INFO, headers, body) as access, session(access, "0") as broker:
            for ask in (
                broker.store("a", b""),
                broker.stored("a", "a"),
                broker.object("a", 100),
                broker.waiting("a"),
                broker.subjects("a", "a"),
                broker.ensure_buckets(1),
            ):
                with contextlib.suppress(BrokerError):
                    await ask

    asyncio.run(check())


def test_an_object_is_not_read_beyond_what_it_may_have(access: Access) -> None:
    async def check() -> None:
        async with session(access, "server") as broker:
            await broker.ensure_buckets(1)
            await broker.put_object("large", b"x" * 1000)
            assert await broker.object("large", 999) is None
            assert await broker.object("large", 1000) == (b"x" * 1000, "")

    asyncio.run(check())


def test_no_word_is_said_to_a_broker_that_offers_no_tls(tmp_path: Path) -> None:
    """As somebody in between would make it look, who wants to hear the key's signature in the clear."""
    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", clients=1, port=port)
    info = b'INFO {"version":"2.15.0","max_payload":1048576,"auth_required":true,"nonce":"abc"}\r\n'
    heard, over = [], asyncio.Event()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info)
        heard.append(await reader.read(1000))
        over.set()

    async def check() -> None:
        async with listening(pretend, port):
            with pytest.raises(BrokerUnreachable, match="TLS"):
                await transport.connect_patiently(Access.of(None, folder.path / "clients" / "0"), "0", 0.0)
            await over.wait()

    asyncio.run(check())
    assert set(heard) == {b""}


@pytest.mark.parametrize(
    ("version", "fixed"),
    [("2.10.99", False), ("2.11.0", False), ("2.11.15", False), ("2.11.16", True), ("2.9.0", False),
     ("2.11.17-RC.1", True), ("2.12.0", False), ("2.12.6", False), ("2.12.7", True), ("2.13.0", True),
     ("10.0.0", True), ("1.4.1", False), ("", False), (None, False), ("x", False), (7, False), ("9" * 5000, False)],
)  # fmt: skip
def test_a_broker_without_natss_fixes_of_authorization_is_outdated(version: object, fixed: bool) -> None:
    problem = transport.outdated(version)
    assert (problem is None) is fixed
    assert problem is None or (problem.isprintable() and len(problem) < 200)


@pytest.mark.parametrize("user", ["server", "operator", "clients/0"])
def test_an_outdated_broker_is_refused_by_who_has_a_key_and_used_once_it_is_upgraded(
    tmp_path: Path, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker says its version in the clear, in its first line, which a line in between changes here."""
    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", clients=1, port=port)
    access = Access.of(None, folder.path / user)
    said = ["2.11.15"]

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(re.sub(rb'("version":")[^"]*', rb"\g<1>" + said[0].encode(), data))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pass_on(reader, other_writer), pass_on(other_reader, writer))
        finally:
            other_writer.transport.abort()

    async def check() -> None:
        async with listening(relay) as through_port:
            through = replace(access, servers=(f"tls://127.0.0.1:{through_port}",))
            with pytest.raises(BrokerUnreachable, match=r"2\.11\.15"):
                await transport.connect_patiently(through, access.name, 120.0)
            waiting = asyncio.create_task(transport.connect_patiently(through, access.name, None))
            while "upgrade it" not in caplog.text:
                await asyncio.sleep(0.01)
            said[0] = "2.11.16"
            connection = await waiting
            await connection.flush()
            await connection.close_politely()

    with LocalBroker(folder.path, port=port):
        asyncio.run(check())


def test_without_keys_an_outdated_broker_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with _nonsense(_INFO) as access, session(access, "0", patience_s=120):
            assert "version" in caplog.text

    asyncio.run(check())


def test_other_users_of_the_library_in_this_process_keep_their_own() -> None:
    """What the deployment changes of nats-py and of asyncio's log, it changes for its own connections."""
    script = (
        "import logging, nats.protocol.parser as parser\n"
        "before = parser.MSG_RE, parser.HMSG_RE, parser.Parser.parse, list(logging.getLogger('asyncio').filters)\n"
        "import qafel.deployment.transport as ours\n"
        "after = parser.MSG_RE, parser.HMSG_RE, parser.Parser.parse, list(logging.getLogger('asyncio').filters)\n"
        "assert before == after\n"
        "assert ours.Connection(tls_only=False, with_key=False)._ps.parse.__func__ is not parser.Parser.parse\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_tls_line_that_the_broker_closes_leaves_no_remark_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 1, port=port, sync="2m").path

    async def check() -> None:
        async with session(Access.of(None, folder / "server"), "server") as connected:
            broker.stop()
            with pytest.raises(BrokerLost):
                await connected.until_lost()

    with LocalBroker(folder, port=port) as broker:
        asyncio.run(check())
    assert "eof_received" not in caplog.text
