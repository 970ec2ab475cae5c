"""Any bytes in a message's header block: neither a server's session nor a client's ends, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from qafel.deployment.connection import read_headers
from qafel.deployment.keys import Access
from qafel.deployment.names import MALFORMED, StreamLimits
from qafel.deployment.server import ServerSettings
from tests.deployment.live import serving, taking_part, until, update

BAD = [
    b"N",
    b"NATS/1.0",
    b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 503 \xff\r\n\r\n",
    b"NATS/1.0 503 a\r\nb: c\xff\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: 1\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nQafel-Signature: \xff\r\n\r\n",
    b"\x00" * 200,
    b"\r\n\r\n",
    b"0\r\nStatus: 409\r\n\r\n",  # which the library takes for the sizes of a message
    b"HTTP/1.1\r\na: b\r\n\r\n",
]


class RawLine:
    """Speaks NATS's protocol byte by byte: the library would not send what we want to send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def publish(self, subject: str, headers: bytes, data: bytes = b"not a frame") -> None:
        size = f"{len(headers)} {len(headers) + len(data)}"
        self._writer.write(f"HPUB {subject} {size}\r\n".encode() + headers + data + b"\r\n")

    async def flush(self) -> None:
        """Until the broker has read it all."""
        self._writer.write(b"PING\r\n")
        while (line := await asyncio.wait_for(self._reader.readline(), 10)) != b"PONG\r\n":
            assert line[:4] not in (b"", b"-ERR"), line


@contextlib.asynccontextmanager
async def _raw(access: Access) -> AsyncIterator[RawLine]:
    where = urlsplit(access.servers[0])
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(b'CONNECT {"verbose": false, "headers": true}\r\n')
    try:
        yield RawLine(reader, writer)
    finally:
        writer.close()


def _variant(chooser: random.Random) -> bytes:
    """A header block that went wrong in some way, or in none."""
    block = bytearray(
        chooser.choice([
            b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\nA: 7\r\n\r\n",
            b"NATS/1.0\r\nQafel-Part: 1/0/2\r\nQafel-Signature: AAAA\r\n\r\n", b"NATS/1.0\r\nStatus: 409\r\n\r\n",
            b"NATS/1.0\r\nNats-Pending: x\r\nQafel-Object: y\r\n\r\n", chooser.randbytes(chooser.randrange(1, 80)),
        ])
    )  # fmt: skip
    for _ in range(chooser.randrange(5)):
        at = chooser.randrange(len(block) + 1)
        match chooser.randrange(4):
            case 0:
                block[at:at] = chooser.randbytes(chooser.randrange(1, 5))
            case 1:
                del block[at : at + chooser.randrange(1, 9)]
            case 2:
                block[at : at + 1] = chooser.randbytes(1)
            case _:
                block[at:at] = chooser.choice([b"\r\n", b" ", b":", b"\x00", b"NATS/1.0", b" 503 ", b"\xc3"])
    return bytes(block) or b"\x00"


def test_no_header_block_raises_and_a_sound_one_is_read() -> None:
    chooser = random.Random(3)
    for block in [*BAD, *(_variant(chooser) for _ in range(20_000))]:
        read_headers(block)
    for block in BAD:
        assert MALFORMED in read_headers(block), block
    assert read_headers(b"NATS/1.0\r\nA: b \r\nC:d\r\n\r\n") == {"A": "b", "C": "d"}
    assert read_headers(b"NATS/1.0 404 No Messages\r\n\r\n") == {"Status": "404", "Description": "No Messages"}
    assert read_headers(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 3\r\n\r\n") == {
        "Status": "100",
        "Description": "Idle Heartbeat",
        "Nats-Last-Stream": "3",
    }


async def _check(folder: Path, access: Access, variants: list[bytes]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        wide = ServerSettings(heartbeat_s=0.2, limits=StreamLimits(queue_per_client=10_000))
        server = await stack.enter_async_context(serving(folder, access, settings=wide))
        client = await stack.enter_async_context(taking_part(folder, access, 0))
        line = await stack.enter_async_context(_raw(access))
        await update(client)
        rejected, begun = server.ledger.server.rejected, server._session_id
        for start in range(0, len(variants), 100):
            batch = variants[start : start + 100]
            wanted = sum(rejected.values()) + len(batch)
            for block in batch:
                line.publish(client.names.upload(1), block)
            await line.flush()
            await until(lambda n=wanted: sum(rejected.values()) >= n)
        await update(client)
        assert client.outbox.counts["accepted"] == 2
        assert server._session_id == begun, "a session ended"
        assert server.ledger.traffic.uploads == 2
        assert rejected["malformed-header"]


def test_a_subject_with_odd_bytes_ends_no_session_of_the_server(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with (
            serving(tmp_path, access) as server,
            _raw(access) as line,
            taking_part(tmp_path, access, 0) as client,
        ):
            begun, rejected = server._session_id, server.ledger.server.rejected
            for end in ("\x0bx", "\xff", "٣", "\x0c", "0\x00"):
                line.publish(f"qafel.live.upload.{end}", b"NATS/1.0\r\n\r\n")
            await line.flush()
            await until(lambda: rejected["unknown-client"] == 5)
            await update(client)
            assert server._session_id == begun

    asyncio.run(check())


def test_a_malformed_header_ends_no_session_of_the_server(tmp_path: Path, access: Access) -> None:
    asyncio.run(_check(tmp_path, access, BAD))


@pytest.mark.parametrize("variants", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_random_header_blocks_end_no_session_of_the_server(tmp_path: Path, access: Access, variants: int) -> None:
    chooser = random.Random(11)
    # A part of something waits for its other parts, and a message that JetStream itself refuses never comes.
    blocks = [_variant(chooser) for _ in range(2 * variants)]
    wanted = [block for block in blocks if b"Qafel-Part" not in block and b"Nats-" not in block][:variants]
    asyncio.run(_check(tmp_path, access, wanted))


def test_a_malformed_header_ends_no_session_of_a_client(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving(tmp_path, access))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            line = await stack.enter_async_context(_raw(access))
            await update(client)
            chooser, heard = random.Random(5), client.follower.heard_at
            for block in [*BAD, *(_variant(chooser) for _ in range(100))]:
                for subject in (client.names.receipt(0), client.names.broadcast(10**6)):
                    line.publish(subject, block)
            await line.flush()
            await until(lambda: client.follower.heard_at > heard + 0.3)  # it still hears the server
            for _ in range(6):
                await update(client)
            await until(lambda: client.follower.version == 2)
            assert not client._wire, "a session ended"

    asyncio.run(check())


def test_an_upload_that_the_server_fails_at_is_put_aside_and_others_go_on(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, access))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            other = await stack.enter_async_context(taking_part(tmp_path, access, 1))
            checker, begun = server.intake.checker, server._session_id
            whole = type(checker).check

            def fails(*arguments: Any) -> Any:
                if arguments[2] == 0:
                    raise RuntimeError("a bug")
                return whole(*arguments)

            monkeypatch.setattr(type(checker), "check", fails)
            client.outbox.add((start := client.begin()).sequence, client.finish(start, client._train))
            for _ in range(2):
                await update(other)
                client.outbox.send_again()
            await until(lambda: client.outbox.counts["quarantined"] == 1)
            assert server._session_id == begun
            assert server.ledger.server.rejected["quarantined"] == 1
            assert len(list((tmp_path / "state" / "quarantine").iterdir())) == 1
            monkeypatch.undo()
            await update(client)
            assert client.outbox.counts["accepted"] == 1

    asyncio.run(check())
