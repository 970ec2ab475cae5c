"""What a client downloads is what the method's `CatchUp` plans, in exactly the plan's bytes; on a real broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qafel.algorithm import Held, Means, Offer, Plan
from qafel.algorithm.catch_up import Exact, Snapshot
from qafel.config import Config
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import DeploymentClient, open_client
from qafel.deployment.client.follower import Follower
from qafel.deployment.client.state import ClientState
from qafel.deployment.client.training import train_task
from qafel.deployment.connection import session
from qafel.deployment.keys import Access
from qafel.deployment.names import Names
from qafel.deployment.server import DefenceSettings, ServerSettings, StartSettings
from qafel.deployment.server.server import DeploymentServer
from qafel.deployment.status import read_status
from qafel.deployment.transport import cancel_and_wait
from tests.deployment.live import CONFIG, same, serving, taking_part, until, update
from tests.deployment.recorded import check_recorded

SETTINGS = ServerSettings(
    heartbeat_s=0.05, snapshot_every=6, keep_journal=True, defence=DefenceSettings(max_norm_ratio=None)
)
QSGD = {**CONFIG["algorithm"], "buffer_size": 1}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "differences": QSGD,
    "top_k": {**QSGD, "server_quantizer": "top_k:0.05"},
    "unquantized": {"method": "fedbuff", "buffer_size": 1, "local_steps": 2},
    "whole models": {**QSGD, "method": "fedbuff-direct"},
    "quantized copies": {**QSGD, "server_quantizer": "sign", "catch_up": {"name": "snapshot", "quantizer": "qsgd:8"}},
}
GAPS = (0, 1, 2, 7, 3, 12, 1, 1, 9, 4)
"""Server steps before each visit."""
OFTEN = (9, 0, 0, 0, 0, 0, 0, 0, 1, 7, 0)
"""So often that one who holds a copy would have paid less for broadcasts."""


def _config(algorithm: dict[str, Any]) -> Config:
    return Config.from_dict({**CONFIG, "algorithm": algorithm})


async def _settled(server: DeploymentServer, access: Access) -> None:
    """Until the broker has the server's last word: nothing moves while a client visits."""
    publisher, ledger = server._publisher, server.ledger
    await until(lambda: not server._background._works and publisher.published.position == ledger.server.broadcast_bytes)
    while True:
        (run,) = await read_status(access)
        if (run.state.position, run.state.snapshot_position) == (
            publisher.published.position,
            publisher.on_broker.position,
        ):
            return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_that_comes_and_goes_downloads_what_was_planned(
    name: str, tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(ALGORITHMS[name])
    kind = type(config.algorithm.compose(config.task.make().layout).catch_up)
    plans: list[Plan] = []
    whole = kind.plan

    def recorded(catch_up: Any, held: Held, offer: Offer) -> Plan:
        plans.append(whole(catch_up, held, offer))
        return plans[-1]

    monkeypatch.setattr(kind, "plan", recorded)
    means: set[Means] = set()

    async def visit() -> None:
        """As `qafel client --once`: catch up, train, upload, end."""
        plans.clear()
        with ClientState(tmp_path / "visitor") as state:
            settings = ClientSettings(patience_s=120, max_updates=1)
            client = await open_client(train_task, Names("live"), 1, state, access, settings)
            began, received = client.begin, list[int]()

            def begin() -> Any:
                received.append(client.report.received_bytes)
                return began()

            client.begin = begin  # type: ignore[method-assign]
            report = await client.run()
            assert report.outcomes == {"accepted": 1}
        planned = plans[0].download_bytes if plans else 0
        means.add(plans[0].means if plans else Means.NOTHING)
        assert received == [planned], "what it had received when it began to train is what was planned"

    gaps = OFTEN if kind is Snapshot else GAPS
    settings = replace(SETTINGS, snapshot_every=1) if kind is Snapshot else SETTINGS

    async def check() -> None:
        async with serving(tmp_path / "run", access, config, settings) as server:
            async with taking_part(tmp_path, access, 0) as worker:
                for gap in gaps:
                    for _ in range(gap):
                        await update(worker)
                    await _settled(server, access)
                    await visit()
            async with taking_part(tmp_path, access, 2) as other:
                await until(lambda: same(server, other.core.hidden_state) or not other.core.hidden_state.exact)

    asyncio.run(check())
    assert means >= {Means.WHOLE, Means.BROADCASTS}
    assert (Means.QUANTIZED in means) == (kind is Snapshot)
    assert check_recorded(tmp_path / "run" / "state", config, {}) == sum(gaps) + len(gaps)


def test_a_client_that_loses_its_line_again_and_again_downloads_what_is_planned_each_time(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    plan = Exact.plan

    def noted(catch_up: Exact, held: Held, offer: Offer) -> Plan:
        plans.append(plan(catch_up, held, offer))
        return plans[-1]

    monkeypatch.setattr(Exact, "plan", noted)

    async def check() -> list[Means]:
        means = []
        config = _config(ALGORITHMS["unquantized"])
        async with (
            serving(tmp_path / "run", access, config, SETTINGS) as server,
            taking_part(tmp_path, access, 0) as worker,
        ):
            with ClientState(tmp_path / "visitor") as state:
                settings = ClientSettings(patience_s=120)
                visitor = await open_client(train_task, Names("live"), 1, state, access, settings)
                for gap in (3, 13, 13, 2):
                    for _ in range(gap):
                        await update(worker)
                    await _settled(server, access)
                    plans.clear()
                    before = visitor.report.received_bytes
                    connection = asyncio.create_task(visitor.stay_connected())
                    await until(lambda: same(server, visitor.core.hidden_state))
                    await cancel_and_wait([connection])
                    assert visitor.report.received_bytes - before == plans[0].download_bytes
                    means.append(plans[0].means)
        return means

    assert asyncio.run(check()) == [Means.WHOLE, Means.WHOLE, Means.WHOLE, Means.BROADCASTS]


async def _holds_copy(client: DeploymentClient) -> None:
    await until(lambda: client.follower.ready)
    assert not client.core.hidden_state.exact


def test_a_copy_is_never_advanced_and_never_taken_for_the_hidden_state(tmp_path: Path, access: Access) -> None:
    config = _config(ALGORITHMS["quantized copies"])

    async def check() -> None:
        async with (
            serving(tmp_path / "run", access, config, SETTINGS) as server,
            taking_part(tmp_path, access, 0) as worker,
        ):
            await until(lambda: worker.follower.ready)
            worker.follower.restart()  # it takes x̂ whole, and follows
            await until(lambda: worker.core.hidden_state.exact)
            for _ in range(7):
                await update(worker)
            await _settled(server, access)
            async with taking_part(tmp_path, access, 1) as late:
                await _holds_copy(late)
                start = late.core.hidden_state
                assert start.version == 6, "the snapshot's"
                for _ in range(3):
                    await update(worker)
                await _settled(server, access)
                assert late.core.hidden_state is start
                assert not late.follower._listening
                await update(late)
                assert late.outbox.counts["accepted"] == 1
                late._save(late._now_held())
            async with taking_part(tmp_path, access, 1) as late:  # from its disk
                assert not late.core.hidden_state.exact
                assert (late.core.hidden_state.version, late.core.hidden_state.digest) == (6, start.digest)
                await _holds_copy(late)
                assert late.report.received_bytes == 0, "there is no newer copy"
            await until(lambda: same(server, worker.core.hidden_state))

    asyncio.run(check())


def test_a_client_that_starts_often_pays_for_x_once_and_follows(tmp_path: Path, access: Access) -> None:
    config = _config(ALGORITHMS["quantized copies"])

    async def check() -> None:
        settings = ServerSettings(heartbeat_s=0.05, snapshot_every=1)
        async with (
            serving(tmp_path / "run", access, config, settings) as server,
            taking_part(tmp_path, access, 0) as worker,
            taking_part(tmp_path, access, 1) as other,
        ):
            copies = 0
            while not other.core.hidden_state.exact:
                await update(worker)
                await _settled(server, access)
                state = server._publisher.on_broker
                await until(lambda s=state: other.follower.state.snapshot_position == s.position)  # type: ignore[misc,union-attr]
                other.follower.prepare()
                await until(lambda: other.follower.ready)
                await update(other)
                copies += 1
                assert copies < 40
            assert other.follower._listening
            await update(worker)
            await until(lambda: same(server, other.core.hidden_state))

    asyncio.run(check())


def test_both_kinds_of_catch_up_are_provided(tmp_path: Path, access: Access) -> None:
    async def check() -> None:
        for name, kind in (("differences", Exact), ("quantized copies", Snapshot)):
            config = _config(ALGORITHMS[name])
            async with serving(tmp_path / name, access, config, ServerSettings(run=name.split()[0])) as server:
                await until(lambda s=server: s._session_id)
                assert isinstance(server.ledger.server.algorithm.catch_up, kind)
                async with session(access, "test") as broker:
                    found = await broker.object(f"{name.split()[0]}/copy", 10**6)
                assert (found is not None) == (kind is Snapshot)

    asyncio.run(check())


def test_a_client_takes_x_whole_also_from_a_snapshot_older_than_its_linked_start(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole x̂ is the broker's snapshot and the broadcasts after it. It counts as planned, and leaves x̂ itself."""
    links = {"name": "auto", "link": "qsgd:8", "first": "qsgd:8", "snapshot": "qsgd:8"}
    algorithm = {**CONFIG["algorithm"], "server_quantizer": "top_k:0.01", "buffer_size": 1, "catch_up": links}
    plans: list[Plan] = []
    plan = Follower._plan

    def noted(self: Follower) -> Plan:
        plans.append(plan(self))
        return plans[-1]

    monkeypatch.setattr(Follower, "_plan", noted)

    async def check() -> int:
        config, wholes = Config.from_dict({**CONFIG, "algorithm": algorithm}), 0
        settings = ServerSettings(heartbeat_s=0.05, snapshot_every=100, starts=StartSettings(per_hour=None))
        sleeper = ClientSettings(patience_s=60, follow="start")
        async with (
            serving(tmp_path / "run", access, config, settings) as server,
            taking_part(tmp_path, access, 1, settings=sleeper) as client,
        ):
            for _ in range(12):
                version, before = server.ledger.server.version, client.report.received_bytes
                await until(lambda v=version: client.follower.state.version >= v)  # type: ignore[misc,union-attr]
                plans.clear()
                client.follower.prepare()
                assert await client.until(lambda: client.follower.ready, 60)
                if plans and plans[0].means is Means.WHOLE:
                    wholes += 1
                    assert client.core.hidden_state.exact
                    assert client.report.received_bytes - before == plans[0].download_bytes
                await update(client)
        return wholes

    assert asyncio.run(check()) > 0
