"""Clients say what they received; the server sums it up, bounds it by what there was, and keeps it over restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qafel.config import Config
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.names import RECEIVED, Names
from qafel.deployment.server import ServerSettings
from qafel.deployment.status import read_status
from tests.deployment.live import CONFIG, serving, taking_part, until, update
from tests.uploads import upload_of

SETTINGS = ServerSettings(heartbeat_s=0.1, checkpoint_every=4)


def test_the_server_knows_what_its_clients_received_also_after_a_restart(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path / "run", access, settings=SETTINGS) as server:
            async with taking_part(tmp_path, access, 0) as one, taking_part(tmp_path, access, 1) as two:
                for _ in range(5):
                    await update(one)
                    await update(two)
                await until(lambda: one.follower.version == two.follower.version == 3)
                for client in (one, two):
                    await update(client)  # each tells of the last broadcasts before it
                said = one.report.received_bytes + two.report.received_bytes
                untold = one.outbox.received_bytes + two.outbox.received_bytes
                assert server.ledger.traffic.received_bytes == said - untold >= 6 * 125
            while (run := (await read_status(access))[0]).state.uploads < 12:
                await asyncio.sleep(0.05)
            assert run.state.received_bytes_total == server.ledger.traffic.received_bytes
            before = server.ledger.traffic.received_bytes
        summary = server.evaluator.summary()
        assert summary["received_bytes_total"] == before
        async with serving(tmp_path / "run", access, settings=SETTINGS) as server:
            assert server.ledger.traffic.received_bytes == before

    asyncio.run(check())


@pytest.mark.parametrize(("claim", "counted"), [("9999999999", "most"), ("100", "100"), ("-1", "0")])
def test_a_client_cannot_claim_more_than_there_was_to_receive(
    claim: str, counted: str, tmp_path: Path, access: Access
) -> None:
    async def check() -> None:
        async with (
            serving(tmp_path / "run", access, Config.from_dict(CONFIG)) as server,
            taking_part(tmp_path, access, 0) as honest,
            session(access, "test") as broker,
        ):
            for _ in range(6):
                await update(honest)
            core, before = server.ledger.server, server.ledger.traffic.received_bytes
            start, most = core.hidden_state, core.broadcast_bytes + core.hidden_state.snapshot_bytes
            for sequence, allowed in enumerate((most, core.hidden_state.snapshot_bytes)):  # then nothing was broadcast
                frame = upload_of(start, start.vector, core.algorithm, client=4, sequence=sequence)
                await broker.store(Names("live").upload(4), frame, {RECEIVED: claim})
                await until(lambda n=sequence: server.ledger.traffic.uploads == 7 + n)
                expected = allowed if counted == "most" else int(counted)
                assert server.ledger.traffic.received_bytes - before == expected
                before = server.ledger.traffic.received_bytes
            await broker.store(Names("live").upload(4), frame, {RECEIVED: "1e9"})
            await until(lambda: core.rejected["malformed-header"] == 1)

    asyncio.run(check())


def test_what_came_with_a_rejected_upload_is_told_with_the_next(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path / "run", access) as server, taking_part(tmp_path, access, 0) as client:
            for _ in range(3):
                await update(client)
            await until(lambda: client.follower.version == 1)
            untold = client.outbox.received_bytes
            assert untold
            client.outbox.add(99, b"not a frame")
            client.outbox._settle(99, "share", "", -1)
            assert client.outbox.received_bytes == untold
            before = server.ledger.traffic.received_bytes
            await update(client)
            assert server.ledger.traffic.received_bytes == before + untold

    asyncio.run(check())


def test_a_client_that_received_very_much_is_counted(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        async with serving(tmp_path / "run", access) as server, taking_part(tmp_path, access, 0) as client:
            await update(client)
            client.outbox.received_bytes = 10**15
            await update(client)
            assert server.ledger.server.rejected.total() == 0

    asyncio.run(check())
