"""A client says how it goes, and what it waits for: a broker, a run, a server that was stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qafel.cli.client import _log_event
from qafel.config import Config
from qafel.deployment.broker import LocalBroker, free_port
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import open_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.client.training import train_task
from qafel.deployment.keys import Access
from qafel.deployment.messages import Agreement
from qafel.deployment.names import Names
from qafel.errors import BrokerUnreachable
from tests.deployment.live import CONFIG, serving, taking_part, until

NOT_STARTED = "run 'live': its server has not started"


def test_a_client_says_how_it_goes_and_what_it_waits_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    access = Access((f"nats://127.0.0.1:{port}",))
    broker = LocalBroker(tmp_path / "broker", port=port)
    told: list[dict[str, Any]] = []

    async def take_part(state: ClientState) -> None:
        settings = ClientSettings(patience_s=120, report_every_s=0.1, min_interval_s=0.01, window=2)
        client = await open_client(train_task, Names("live"), 0, state, access, settings, told.append)
        stopping.append(client.stop)
        await client.run()

    def waiting() -> list[str]:
        return [event["text"] for event in told if event["event"] == "waiting"]

    def last() -> dict[str, Any]:
        return next((event for event in reversed(told) if event["event"] == "progress"), {})

    async def check() -> None:
        with ClientState(tmp_path / "state") as state:
            work = asyncio.create_task(take_part(state))
            await until(waiting)
            await asyncio.to_thread(broker.start)
            await until(lambda: NOT_STARTED in waiting())
            async with serving(tmp_path / "run", access, Config.from_dict(CONFIG)):
                await until(lambda: last().get("accepted", 0) > 3)
            await until(lambda: "stopped" in last()["waits_for"])
            await asyncio.to_thread(broker.stop)
            await until(lambda: last()["waits_for"].startswith("the broker ("))
            stopping[0]()
            await asyncio.wait_for(work, 120)

    stopping: list[Any] = []
    try:
        asyncio.run(check())
    finally:
        broker.stop()
    assert waiting()[0].startswith(f"no broker at nats://127.0.0.1:{port}")
    counted = next(event for event in told if event["event"] == "progress" and event["accepted"])
    assert counted["rejected"] == counted["repeated"] == 0
    assert counted["version"] >= 0
    assert counted["behind"] >= 0
    caplog.clear()
    with caplog.at_level("INFO", "qafel.cli"):
        for event in told:
            _log_event(event)
    lines = caplog.messages
    assert lines[0].startswith("waiting: no broker at")
    assert any(line.endswith("waiting for the server, which was stopped") for line in lines)
    assert any("accepted, 0 rejected · " in line and line.startswith("version ") for line in lines)
    assert len(lines) < len(told), "receipts and versions are for --json"


def test_a_broker_that_left_while_the_task_was_made_is_told_of_and_not_waited_for_for_ever(tmp_path: Path) -> None:
    """A run's last broker may end with it before a slow client has loaded its task."""
    told: list[dict[str, Any]] = []
    broker = LocalBroker(tmp_path / "broker")
    access = Access((broker.url,))

    def make_slowly(agreement: Agreement, number: int, settings: ClientSettings) -> Any:
        broker.stop()
        return train_task(agreement, number, settings)

    async def take_part() -> None:
        async with serving(tmp_path / "run", access), taking_part(tmp_path, access, 1):
            pass  # the broker has the run from now on
        with ClientState(tmp_path / "state") as state:
            settings = ClientSettings(patience_s=0.5, report_every_s=0.1, window=2)
            client = await open_client(make_slowly, Names("live"), 0, state, access, settings, told.append)
            await client.run()

    with broker, pytest.raises(BrokerUnreachable, match="no broker at"):
        asyncio.run(asyncio.wait_for(take_part(), 120))
    assert next(event["text"] for event in told if event["event"] == "waiting").startswith("no broker at")
    progress = [event["waits_for"] for event in told if event["event"] == "progress"]
    assert progress[-1].startswith("the broker (no broker at")


def test_a_client_says_that_it_works_again_after_an_outage(tmp_path: Path, local_broker: LocalBroker) -> None:
    """Its last line is not the one about the outage, however seldom it tells how it goes by then."""
    access = Access((local_broker.url,))
    told: list[dict[str, Any]] = []

    def last() -> dict[str, Any]:
        return next((event for event in reversed(told) if event["event"] in ("progress", "waiting")), {"event": ""})

    async def check() -> None:
        settings = ClientSettings(patience_s=120, report_every_s=0.02, min_interval_s=0.01, window=2)
        async with serving(tmp_path / "run", access):
            with ClientState(tmp_path / "state") as state:
                client = await open_client(train_task, Names("live"), 0, state, access, settings, told.append)
                work = asyncio.create_task(client.run())
                await until(lambda: sum(event["event"] == "progress" for event in told) >= 7)
                await asyncio.to_thread(local_broker.stop)
                await until(lambda: last()["event"] == "waiting")
                await asyncio.to_thread(local_broker.start)
                before = len(told)
                await until(lambda: sum(event["event"] == "accepted" for event in told[before:]) > 40)
                assert last()["event"] == "progress"
                assert last()["waits_for"] in ("", "receipts")
                client.stop()
                await asyncio.wait_for(work, 120)

    asyncio.run(check())
