"""What the real broker refuses, with the real configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qafel.deployment.broker import (
    MOST_CONNECTIONS,
    MOST_SUBSCRIPTIONS,
    OPERATOR_API,
    BrokerFolder,
    LocalBroker,
    free_port,
)
from qafel.deployment.connection import Broker, Stored, session
from qafel.deployment.keys import Access
from qafel.deployment.names import Names, StreamLimits
from qafel.deployment.status import read_status
from qafel.errors import BrokerLost, BrokerUnreachable
from tests.deployment.live import until
from tests.deployment.raw import raw_line

NAMES = Names("demo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("secured") / "broker"
    port = free_port()
    BrokerFolder.init(path, 3, port=port, sync="2m")
    with LocalBroker(path, port=port):
        asyncio.run(_make_streams(path))
        yield path


async def _make_streams(folder: Path) -> None:
    async with session(Access.of(None, folder / "server"), "server", patience_s=120) as broker:
        await broker.ensure_buckets(1)
        await broker.ensure(NAMES, StreamLimits())
        await broker.store(NAMES.broadcast(0), b"step 0")
        await broker.store(NAMES.state, b"state")
        await broker.put_object(NAMES.snapshot, b"x" * 2_000_000, "signed")


def _client(folder: Path, number: int = 0) -> Access:
    return Access.of(None, folder / "clients" / str(number))


async def _denied(broker: Broker, subject: str, data: bytes = b"") -> bool:
    """The broker answers a forbidden publish with an error and drops it."""
    connection, error = broker.connection, f'permissions violation for publish to "{subject.lower()}"'
    connection._err = None
    await broker.send(subject, data)
    with contextlib.suppress(TimeoutError):
        await until(lambda: error in str(connection.last_error), 60)
    return error in str(connection.last_error)


async def _heard(broker: Broker, subject: str, cause: str, folder: Path, least: int = 0) -> list[bytes]:
    """What a subscription gets, `least` so many, of a message that the server or another client publishes."""
    heard: list[bytes] = []

    async def hear(stored: Stored) -> None:
        heard.append(stored.data)

    await broker.subscribe(subject, hear)
    await broker.flush()
    sender = _client(folder, 1) if ".upload." in cause else Access.of(None, folder / "server")
    async with session(sender, "1" if ".upload." in cause else "server") as other:
        await other.store(cause, b"secret")
    await until(lambda: len(heard) >= least)
    await asyncio.sleep(0.2)
    return heard


def test_a_client_uploads_and_reads_what_it_must(folder: Path) -> None:
    async def check() -> None:
        async with session(_client(folder), "0", patience_s=120) as broker:
            await broker.store(NAMES.upload(0), b"mine")
            stored = await broker.stored(NAMES.broadcast_stream, NAMES.broadcast(0))
            assert stored is not None
            assert stored.data == b"step 0"
            assert await broker.stored(NAMES.broadcast_stream, NAMES.broadcast(99)) is None
            assert await broker.object(NAMES.snapshot, 1 << 30) == (b"x" * 2_000_000, "signed")
            assert await _heard(broker, NAMES.broadcasts, NAMES.broadcast(1), folder, least=1) == [b"secret"]

    asyncio.run(check())


def test_a_client_that_is_added_to_a_running_broker_uploads_and_reads(folder: Path) -> None:
    changed = BrokerFolder(folder)
    changed.add([7])
    assert changed.reload()

    async def check() -> None:
        async with session(_client(folder, 7), "7", patience_s=120) as broker:
            await broker.store(NAMES.upload(7), b"mine")
            stored = await broker.stored(NAMES.broadcast_stream, NAMES.broadcast(0))
            assert stored is not None
            assert stored.data == b"step 0"

    asyncio.run(check())


def test_two_processes_that_add_clients_together_lose_none(tmp_path: Path) -> None:
    path = BrokerFolder.init(tmp_path / "broker", 1).path
    one, other = BrokerFolder(path), BrokerFolder(path)
    one.add([1])
    other.add([2])
    one.revoke(2)
    assert sorted(BrokerFolder(path).clients) == [0, 1]
    assert sorted(Access.of(None, path / "server").registry() or {}) == [0, 1]


def test_a_reload_that_the_broker_refuses_is_reported(tmp_path: Path) -> None:
    """Otherwise a revoked client would keep its access, and nobody would know."""
    port = free_port()
    folder = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m")
    with LocalBroker(folder.path, port=port):
        config = folder.path / "nats-server.conf"
        config.write_text(config.read_text().replace("tls {", "tls {{"))
        folder.revoke(1)
        with pytest.raises(BrokerUnreachable, match="Parse error"):
            folder.reload()


@pytest.mark.parametrize("full_after", [0, 1, 2])
def test_a_reload_is_noticed_while_a_flood_fills_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_after: int
) -> None:
    """The broker moves a full log away, and continues in a new one, which may be as long by the next look."""
    log, lines = tmp_path / "nats-server.log", ["a forbidden publish\n"] * 2
    lines[1:1] = ["[INF] Reloaded server configuration\n"]

    def answer(process: int, number: int) -> None:
        for count, line in enumerate(lines):
            if count == full_after:
                log.rename(tmp_path / f"nats-server.log.{os.urandom(4).hex()}")
            with log.open("a") as file:
                file.write(line * (1000 if "forbidden" in line else 1))

    monkeypatch.setattr("qafel.deployment.broker._is_broker", lambda *_: True)
    monkeypatch.setattr("qafel.deployment.broker._RELOAD_S", 1.0)
    monkeypatch.setattr(os, "kill", answer)
    folder = BrokerFolder.init(tmp_path, 0)
    (tmp_path / "nats-server.pid").write_text("1")
    log.write_text("a line\n")
    assert folder.reload()


@pytest.mark.skipif(not socket.has_ipv6, reason="without IPv6")
def test_clients_reach_a_broker_by_an_ipv6_address(tmp_path: Path) -> None:
    async def check() -> None:
        async with session(_client(tmp_path), "0", patience_s=120) as broker:
            await broker.flush()

    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 address")
    BrokerFolder.init(tmp_path, 1, port=(port := free_port()), hosts=["::1"], address="::", sync="2m")
    with LocalBroker(tmp_path, port=port):
        asyncio.run(check())


def test_a_client_cannot_publish_as_another(folder: Path) -> None:
    async def check() -> None:
        async with session(_client(folder), "0") as broker:
            assert await _denied(broker, NAMES.upload(1))

    asyncio.run(check())


def test_a_client_cannot_publish_a_broadcast_a_state_or_a_snapshot(folder: Path) -> None:
    async def check() -> None:
        async with session(_client(folder), "0") as broker:
            assert await _denied(broker, NAMES.broadcast(7))
            assert await _denied(broker, NAMES.state)
            assert await _denied(broker, "$O.qafel.M.x")
            assert await _denied(broker, NAMES.receipt(1))

    asyncio.run(check())


def test_a_client_cannot_have_the_brokers_answer_stored_as_a_broadcast(folder: Path) -> None:
    async def check() -> None:
        async with session(_client(folder), "0") as broker:
            await broker.send(NAMES.upload(0), b"upload", reply=NAMES.broadcast(42))
            await broker.flush()
            await asyncio.sleep(0.2)
            assert await broker.stored(NAMES.broadcast_stream, NAMES.broadcast(42)) is None

    asyncio.run(check())


def test_a_client_cannot_read_the_uploads_of_others(folder: Path) -> None:
    async def check() -> None:
        async with session(_client(folder), "0") as broker:
            assert await _heard(broker, NAMES.upload(1), NAMES.upload(1), folder) == []
        async with session(_client(folder), "0") as broker:
            assert await _heard(broker, NAMES.uploads, NAMES.upload(1), folder) == []
        async with session(_client(folder), "0") as broker:
            assert await _heard(broker, "_INBOX_1.>", NAMES.upload(1), folder) == []
        async with session(_client(folder), "0") as broker:
            consumer = b'{"stream_name": "qafel-demo-upload", "config": {"ack_policy": "explicit"}}'
            for subject, request in {
                f"$JS.API.DIRECT.GET.{NAMES.upload_stream}": b'{"seq": 1}',
                f"$JS.API.DIRECT.GET.{NAMES.upload_stream}.{NAMES.upload(1)}": b"",
                f"$JS.API.STREAM.MSG.GET.{NAMES.upload_stream}": b'{"seq": 1}',
                f"$JS.API.CONSUMER.CREATE.{NAMES.upload_stream}": consumer,
                f"$JS.API.CONSUMER.MSG.NEXT.{NAMES.upload_stream}.server": b"",
            }.items():
                assert await _denied(broker, subject, request), subject

    asyncio.run(check())


def test_the_operator_reads_state_and_nothing_else(folder: Path) -> None:
    async def check() -> None:
        async with session(Access.of(None, folder / "operator"), "operator") as broker:
            assert (await broker.stored("KV_qafel", NAMES.state)) is not None
            assert await _denied(broker, NAMES.upload(0))
            assert await _denied(broker, NAMES.broadcast(8))

    asyncio.run(check())


ASKED = {
    "operator": [
        ("qafel.api.STREAM.INFO.KV_qafel", b""),
        (f"$JS.API.DIRECT.GET.KV_qafel.{NAMES.state}", b""),
        ("$JS.API.STREAM.INFO.KV_qafel", b""),
    ],
    "clients/0": [
        (NAMES.upload(0), b"upload"),
        (f"$JS.API.DIRECT.GET.{NAMES.broadcast_stream}.{NAMES.broadcast(0)}", b""),
        ("$JS.API.DIRECT.GET.OBJ_qafel", b'{"seq": 1}'),  # 12 bytes for half a megabyte
    ],
}
"""What each key may ask for: the answer goes where it says."""


@pytest.mark.parametrize("who", ASKED)
@pytest.mark.parametrize("named", ["broadcast", "receipt", "state", "upload"])
def test_no_answer_reaches_a_stream_or_another_client_under_a_subject_that_the_asker_names(
    folder: Path, who: str, named: str
) -> None:
    reply = {
        "broadcast": NAMES.broadcast(42),
        "receipt": NAMES.receipt(1),
        "state": NAMES.state,
        "upload": NAMES.upload(1),
    }[named]

    async def check() -> None:
        asker, heard = Access.of(None, folder / who), []

        async def hear(stored: Stored) -> None:
            heard.append(stored)

        async with (
            session(_client(folder, 1), "1") as other,
            session(Access.of(None, folder / "server"), "server") as server,
            session(asker, asker.name) as broker,
        ):
            for subject in (NAMES.broadcasts, NAMES.receipt(1), NAMES.state, "_INBOX_1.>"):
                await other.subscribe(subject, hear)
            await other.flush()
            waiting = await server.waiting(NAMES.upload_stream)
            state = await server.stored("KV_qafel", NAMES.state)
            for subject, request in ASKED[who]:
                for _ in range(3):
                    await broker.send(subject, request, reply=reply)
            await broker.flush()
            await asyncio.sleep(0.2)
            assert heard == []
            assert await server.stored(NAMES.broadcast_stream, NAMES.broadcast(42)) is None
            assert await server.stored("KV_qafel", NAMES.state) == state
            own = 3 if who == "clients/0" else 0  # its own uploads, which it may send
            assert await server.waiting(NAMES.upload_stream) == (waiting or 0) + own

    asyncio.run(check())


def test_a_key_has_so_many_connections_and_subscriptions_and_others_do_not_notice(folder: Path) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            # The library ends a connection that is refused anything.
            line = await stack.enter_async_context(raw_line(_client(folder, 1)))
            await line.flush()
            for _ in range(MOST_CONNECTIONS - 1):
                await stack.enter_async_context(session(_client(folder, 1), "1", patience_s=120))
            with pytest.raises(BrokerUnreachable, match="maximum account active connections"):
                await stack.enter_async_context(session(_client(folder, 1), "1", patience_s=0.3))
            other = await stack.enter_async_context(session(_client(folder, 0), "0", patience_s=120))
            for number in range(MOST_SUBSCRIPTIONS + 5):
                line.write(f"SUB _INBOX_1.own.{number} {number}\r\n")
            asked = f"$JS.API.DIRECT.GET.{NAMES.broadcast_stream}.{NAMES.broadcast(0)}"
            for number in (MOST_SUBSCRIPTIONS + 4, 0):
                line.write(f"PUB {asked} _INBOX_1.own.{number} 0\r\n\r\n")
            heard = await line.until(b"step 0\r\n")
            assert b"-ERR 'maximum subscriptions exceeded'\r\n" in heard
            assert [said.split()[1] for said in heard if said.startswith(b"HMSG")] == [b"_INBOX_1.own.0"]
            assert (await other.stored(NAMES.broadcast_stream, NAMES.broadcast(0))) is not None

    asyncio.run(check())


@pytest.mark.parametrize("who", ["operator", "server"])
def test_status_is_answered_under_either_key(folder: Path, who: str) -> None:
    (run,) = asyncio.run(read_status(Access.of(None, folder / who)))
    assert (run.run, run.word) == ("demo", "not genuine")  # nobody signed what this test stored


def test_nobody_connects_without_a_key_or_with_an_unknown_one(folder: Path, tmp_path: Path) -> None:
    async def connect(access: Access) -> None:
        async with session(access, "0", patience_s=120):
            pass

    keyless = tmp_path / "keyless"
    shutil.copytree(folder / "clients" / "0", keyless)
    (keyless / "user.nk").unlink()
    with pytest.raises(BrokerUnreachable, match="refused our key"):
        asyncio.run(connect(Access.of(None, keyless)))
    other = BrokerFolder.init(tmp_path / "other", 1, port=1).path
    shutil.copy(other / "clients" / "0" / "user.nk", keyless / "user.nk")
    with pytest.raises(BrokerUnreachable, match="refused our key"):
        asyncio.run(connect(Access.of(None, keyless)))


def test_a_broker_that_the_authority_does_not_vouch_for_is_refused(folder: Path, tmp_path: Path) -> None:
    async def connect() -> None:
        async with session(Access.of(None, tmp_path / "client"), "0", patience_s=120):
            pass

    shutil.copytree(folder / "clients" / "0", tmp_path / "client")
    other = BrokerFolder.init(tmp_path / "other", 1, port=1).path
    shutil.copy(other / "ca" / "ca.pem", tmp_path / "client" / "ca.pem")
    with pytest.raises(BrokerUnreachable, match="TLS"):
        asyncio.run(connect())


def test_plain_text_to_the_tls_port_is_refused(folder: Path) -> None:
    port = int(Access.of(None, folder / "server").servers[0].rsplit(":", 1)[-1])
    with socket.create_connection(("127.0.0.1", port), 5) as plain:
        plain.settimeout(5)
        assert b'"tls_required":true' in plain.recv(4096)
        plain.sendall(b'CONNECT {"verbose":true}\r\nPING\r\n')
        answer = b""
        while data := plain.recv(4096):
            answer += data
        assert b"PONG" not in answer
        assert b"+OK" not in answer


def test_a_connection_closes_although_the_broker_says_no_goodbye(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asyncio would wait half a minute for the end of TLS, and longer than the loop lives."""
    monkeypatch.setattr("qafel.deployment.transport._CLOSE_S", 0.1)
    broker = int((folder / "nats-server.pid").read_text())

    async def check() -> None:
        async with session(_client(folder), "0", patience_s=120) as opened:
            line: Any = opened.connection._transport
            socket = line._io_writer.transport.get_extra_info("socket")
            os.kill(broker, signal.SIGSTOP)
        await asyncio.sleep(0)  # transports close in the next round
        assert socket.fileno() == -1

    try:
        asyncio.run(check())
    finally:
        os.kill(broker, signal.SIGCONT)


def test_a_revoked_client_is_shut_out_at_once_and_stays_out(folder: Path) -> None:
    async def check() -> None:
        changed = BrokerFolder(folder)
        async with session(_client(folder, 2), "2") as broker:
            changed.revoke(2)
            assert changed.reload()
            with pytest.raises(BrokerLost):
                await asyncio.wait_for(broker.until_lost(), 120)
        with pytest.raises(BrokerUnreachable, match="refused our key"):
            async with session(_client(folder, 2), "2", patience_s=120):
                pass
        assert 2 not in (Access.of(None, folder / "server").registry() or {})
        async with session(_client(folder, 0), "0", patience_s=120) as broker:
            await broker.store(NAMES.upload(0), b"the others go on")

    asyncio.run(check())


def test_mutual_tls_asks_for_a_certificate(tmp_path: Path) -> None:
    async def connect(access: Access, patience_s: float) -> None:
        async with session(access, "0", patience_s=patience_s) as broker:
            await broker.flush()

    port = free_port()
    path = BrokerFolder.init(tmp_path / "broker", 1, port=port, mutual_tls=True, runs=["demo"]).path
    with LocalBroker(path, port=port):
        asyncio.run(connect(_client(path), 120))
        (path / "clients" / "0" / "cert.pem").unlink()
        with pytest.raises(BrokerUnreachable):
            asyncio.run(connect(_client(path), 0.0))


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_secrets_are_readable_by_their_owner_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = BrokerFolder.init(tmp_path / "broker", 2)
        folder.add([1, 5])
    finally:
        os.umask(before)
    secrets = [*folder.path.rglob("*.nk"), *folder.path.rglob("*key.pem")]
    assert len(secrets) == 8
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in folder.path.rglob("*") if path.is_dir()} == {0o700}
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_key_folder_that_others_could_enter_is_closed_when_it_is_written_again(tmp_path: Path) -> None:
    folder = BrokerFolder.init(tmp_path / "broker", 1)
    (folder.path / "clients" / "0").chmod(0o755)
    folder.add([0])
    assert (folder.path / "clients" / "0").stat().st_mode & 0o777 == 0o700


def test_the_operator_of_a_folder_from_before_accounts_is_told_its_new_way_in(tmp_path: Path) -> None:
    folder = BrokerFolder.init(tmp_path / "broker", 1)
    connection = folder.path / "operator" / "connection.toml"
    connection.write_text('servers = ["tls://127.0.0.1:4222"]\n', encoding="utf-8")
    assert Access.of(None, folder.path / "operator").api == "$JS.API"
    folder.add([1])
    assert Access.of(None, folder.path / "operator").api == OPERATOR_API


def _log_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("nats-server.log*"))


def test_the_log_has_a_bound_however_much_is_forbidden(tmp_path: Path) -> None:
    """The broker writes a line for every forbidden publish, and has no switch for that."""
    port, limit = free_port(), 50_000
    path = BrokerFolder.init(tmp_path / "broker", 1, port=port, sync="2m").path
    config = path / "nats-server.conf"
    text, found = re.subn(r"(?m)^logfile_size_limit: \d+MB$", f"logfile_size_limit: {limit}", config.read_text())
    assert found == 1
    config.write_text(text)
    files = int(re.findall(r"(?m)^logfile_max_num: (\d+)$", text)[0])

    async def flood() -> None:
        async with session(_client(path), "0", patience_s=120) as broker:
            for _ in range(100):
                for number in range(100):
                    await broker.send(f"forbidden.{'x' * 100}.{number}", b"")
                await broker.flush()

    with LocalBroker(path, port=port):
        asyncio.run(flood())
        (last,) = path.glob("nats-server.log")
        assert "Publish Violation" in last.read_text() + "".join(old.read_text() for old in path.glob("*.log.*"))
        assert _log_bytes(path) < (files + 1) * limit, "of 10,000 lines of more than 100 bytes"


def test_an_interval_is_one_to_the_broker(tmp_path: Path) -> None:
    """Without quotes it takes 2m for two million, of seconds, and says so in its log."""
    port = free_port()
    path = BrokerFolder.init(tmp_path / "secured", 1, port=port, sync="2m").path
    for broker in (LocalBroker(path, port=port), LocalBroker(tmp_path / "local", sync="2m")):
        with broker:
            log = (broker.folder / "nats-server.log").read_text(encoding="utf-8")
        assert "sync_interval" not in log
