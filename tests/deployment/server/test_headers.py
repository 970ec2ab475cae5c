"""Any bytes in a message's header block: neither a server's session nor a client's ends, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from qafel.deployment.keys import Access
from qafel.deployment.names import MALFORMED, StreamLimits
from qafel.deployment.server import ServerSettings
from qafel.deployment.transport import read_headers
from tests.deployment.live import serving, taking_part, until, update
from tests.deployment.raw import BAD_HEADERS, random_headers, raw_line


def test_no_header_block_raises_and_a_sound_one_is_read() -> None:
    chooser = random.Random(3)
    for block in [*BAD_HEADERS, *(random_headers(chooser) for _ in range(20_000))]:
        read_headers(block)
    for block in BAD_HEADERS:
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
        line = await stack.enter_async_context(raw_line(access))
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
            raw_line(access) as line,
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
    asyncio.run(_check(tmp_path, access, BAD_HEADERS))


@pytest.mark.parametrize("variants", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_random_header_blocks_end_no_session_of_the_server(tmp_path: Path, access: Access, variants: int) -> None:
    chooser = random.Random(11)
    # A part of something waits for its other parts, and a message that JetStream itself refuses never comes.
    blocks = [random_headers(chooser) for _ in range(2 * variants)]
    wanted = [block for block in blocks if b"Qafel-Part" not in block and b"Nats-" not in block][:variants]
    asyncio.run(_check(tmp_path, access, wanted))


def test_a_malformed_header_ends_no_session_of_a_client(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving(tmp_path, access))
            client = await stack.enter_async_context(taking_part(tmp_path, access, 0))
            line = await stack.enter_async_context(raw_line(access))
            await update(client)
            chooser, heard = random.Random(5), client.follower.heard_at
            for block in [*BAD_HEADERS, *(random_headers(chooser) for _ in range(100))]:
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
            client.outbox.add((start := client.begin()).sequence, client.finish(start, client._train).upload)
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
