"""While one key asks or sends without end, another client's updates go on, and no session ends; on a secured broker."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from qafel.config import Config
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.connection import Broker, session
from qafel.deployment.keys import Access, signed_name
from qafel.deployment.names import PART, Names
from qafel.deployment.server import intake
from qafel.errors import BrokerError
from tests.crowding import crowd, still_open
from tests.deployment.live import CONFIG, serving, taking_part, until, update
from tests.deployment.processes import Command, wait_for

NAMES = Names("live")


async def _flood(
    broker: Broker, subject: str, data: bytes, headers: dict[str, str] | None, reply: str, stop: asyncio.Event
) -> int:
    sent = 0
    with contextlib.suppress(BrokerError):  # the broker may shut it out
        while not stop.is_set() and sent < 20_000:
            for _ in range(100):
                await broker.send(subject, data, reply=reply, headers=headers)
                sent += 1
            await broker.flush()
    return sent


@pytest.mark.timeout(180)
def test_a_stolen_operators_key_and_a_registered_client_that_flood_stop_nobody(tmp_path: Path) -> None:
    async def check(keys: Path) -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path, Access.of(None, keys / "server")))
            good, bad = [
                await stack.enter_async_context(taking_part(tmp_path, Access.of(None, keys / "clients" / str(n)), n))
                for n in range(2)
            ]
            await until(lambda: bad.follower.state is not None)
            begun, accepted = server._session_id, server.ledger.traffic
            start = bad.begin()
            frame = bad.finish(start, bad._train).upload
            own = bad.outbox._signer.headers(signed_name(NAMES.upload(1), server.ledger.run_id), frame)
            state = f"$JS.API.DIRECT.GET.KV_qafel.{NAMES.state}"
            step = f"$JS.API.DIRECT.GET.{NAMES.broadcast_stream}.{NAMES.broadcast(0)}"
            upload = NAMES.upload(1)
            floods: list[tuple[str, str, bytes, dict[str, str] | None, str]] = [
                ("operator", "qafel.api.STREAM.INFO.KV_qafel", b"", None, "_INBOX_operator.x"),
                ("operator", state, b"", None, NAMES.state),
                ("clients/1", upload, frame, own, ""),  # the same again and again
                ("clients/1", upload, bytes(900_000), None, ""),
                ("clients/1", upload, frame, {**own, "Nats-Rollup": "all"}, ""),
                ("clients/1", upload, frame[:30], {**own, PART: "5/0/2"}, ""),
                ("clients/1", "$JS.API.DIRECT.GET.OBJ_qafel", b'{"seq":1,"batch":1000}', None, "_INBOX_1.x"),
                ("clients/1", step, b"", None, NAMES.broadcast(7)),
            ]
            for who, *flood in floods:
                access, stop = Access.of(None, keys / who), asyncio.Event()
                async with session(access, access.name, patience_s=120) as broker:
                    work = asyncio.create_task(_flood(broker, *flood, stop))  # type: ignore[arg-type]
                    await asyncio.sleep(0.1)
                    for _ in range(5):
                        await update(good)
                    stop.set()
                    assert await work
            assert good.outbox.counts == {"accepted": 5 * len(floods)}
            assert accepted.uploads <= 5 * len(floods) + 1, "of the flood at most its first update counts"
            assert server._session_id == begun, "a session ended"

    port = free_port()
    keys = BrokerFolder.init(tmp_path / "broker", 2, port=port, sync="2m").path
    with LocalBroker(keys, port=port):
        asyncio.run(check(keys))


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_connections_to_the_metrics_without_end_cost_the_server_nothing(tmp_path: Path) -> None:
    """It needs descriptors for its journal, its checkpoints and its broker."""
    port, broker = free_port(), str(free_port())
    server = Command(
        "server", tmp_path / "server.out", "mushrooms-qafel-4bit", "--local-broker", "--port", broker, "--out",
        str(tmp_path / "run"), "--metrics-port", str(port), "--checkpoint-every", "20", "--json",
        "--set", "stop.server_steps=1000000",
    )  # fmt: skip
    client = Command(
        "client", tmp_path / "client.out", "--run", "mushrooms-qafel-4bit", "--client-id", "7", "--broker",
        f"nats://127.0.0.1:{broker}", "--state", str(tmp_path / "state"), "--min-interval", "0.005", "--json",
        "--patience", "60",
    )  # fmt: skip

    def accepted() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            (found,) = re.findall(r"^qafel_accepted_updates_total\S* (\S+)$", answer.read().decode(), re.MULTILINE)
            return float(found)

    def grows(by: float) -> None:
        before = accepted()
        wait_for(lambda: accepted() > before + by, "updates to count")

    try:
        wait_for(lambda: any(event["event"] == "accepted" for event in client.events()), "an update to count")
        grows(20)
        for said in (b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"):
            with crowd(port, 1100, said) as held:
                grows(100)
                assert still_open(held) < 100
        grows(100)
        assert client.end() == 0
        assert server.end() == 0, server.errors
    finally:
        for command in (client, server):
            if command.alive:
                command.kill()
    assert "Too many open files" not in server.errors


def _large(dimension: int) -> Config:
    task = {"name": "quadratic", "clients": 40, "dimension": dimension}
    return Config.from_dict({**CONFIG, "task": task, "algorithm": {"method": "fedbuff", "buffer_size": 3}})


@pytest.mark.timeout(180)
def test_unfinished_parts_of_many_clients_block_nobody_before_and_after_a_restart(
    tmp_path: Path, access: Access
) -> None:
    """The broker delivers 4,096 messages that nobody acknowledges, and then none: here are more of them."""

    async def send_parts(broker: Broker) -> None:
        for client in range(1, 34):
            for number in range(128):
                await broker.send(NAMES.upload(client), b"x", headers={PART: f"5/{number}/129"})
            await broker.flush()

    async def check() -> None:
        config = _large(60_000)
        async with session(access, "test") as broker:
            for _ in range(2):
                async with serving(tmp_path, access, config), taking_part(tmp_path, access, 0) as client:
                    await update(client)
                    await send_parts(broker)
                    await update(client)
                await send_parts(broker)  # to the queue of a server that is not there
            async with serving(tmp_path, access, config) as server, taking_part(tmp_path, access, 0) as client:
                await update(client)
                assert server.ledger.traffic.uploads == 5
                async with asyncio.timeout(120):
                    while await broker.waiting(NAMES.upload_stream):
                        await asyncio.sleep(0.05)

    asyncio.run(check())


@pytest.mark.timeout(180)
def test_uploads_that_many_clients_do_not_finish_hold_up_nobodys(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of full size, and more than the server holds; the last client sends an upload of two parts meanwhile."""
    config = _large(300_000)
    monkeypatch.setattr(intake, "_ASSEMBLY_BYTES", 8 << 20)

    async def check() -> None:
        async with session(access, "test") as broker:
            for _ in range(2):
                async with serving(tmp_path, access, config) as server, taking_part(tmp_path, access, 39) as client:
                    for number in range(20):
                        await broker.store(NAMES.upload(number), bytes(broker.part_bytes), {PART: "5/0/2"})
                    await update(client)
                    held: Any = server.intake._assembler
                    assert held.held <= held.most_held == 8
                    info = await broker._js.consumer_info(NAMES.upload_stream, NAMES.consumer(server._lease.epoch))
                    assert info.config.max_ack_pending == 4096 + held.most_held
            assert server.ledger.traffic.uploads == 2

    asyncio.run(check())
