"""The deployment computes what the simulator computes, bit for bit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel.algorithm.client import Made
from qafel.config import Config
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import CopiedState, DeploymentClient
from qafel.deployment.keys import Access
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.server import DeploymentServer
from qafel.simulator.executors.jobs import Inline, Job, Trainer
from qafel.simulator.simulation import Simulation
from tests.deployment.live import CONFIG, serving, taking_part, until
from tests.deployment.recorded import check_recorded

ALGORITHMS: dict[str, dict[str, Any]] = {
    "qafel": {},
    "momentum and staleness": {"server_momentum": 0.5, "staleness_exponent": 0.5},
    "direct": {"method": "fedbuff-direct"},
    "fedadam": {"method": "fedadam"},
    "median of buckets": {"accumulator": {"name": "median", "buckets": 3}},
    "fedasync": {"method": "fedasync", "client_quantizer": "none", "server_quantizer": "none", "buffer_size": 1},
}


LINKED: dict[str, dict[str, Any]] = {
    "link": {"catch_up": {"name": "link", "quantizer": "qsgd:4", "first": "qsgd:6"}},
    "auto": {"catch_up": {"name": "auto", "link": "qsgd:4", "first": "qsgd:6", "snapshot": "qsgd:8"}},
}


def _recorded(
    config: Config, events: int, on_upload: Callable[[Job, Made], object] = lambda job, made: None
) -> tuple[Simulation, list[tuple[Job, Made]]]:
    """A simulated run, and the order in which uploads reached its server."""
    task = config.task.make()
    algorithm = config.algorithm.compose(task.layout)
    trainer = Trainer(task, algorithm, config.seed)
    order: list[tuple[Job, Made]] = []

    def result(job: Job) -> Made:
        made = trainer.perform(job)
        order.append((job, made))
        on_upload(job, made)
        return made

    executor = Inline(trainer)
    executor.result = result  # type: ignore[method-assign,assignment,unused-ignore]
    simulation = Simulation(task, algorithm, config.timing, config.seed, executor)
    simulation.begin()
    while len(order) < events:
        simulation.advance()
    return simulation, order


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_recorded_order_of_events_gives_the_simulators_bits(name: str, tmp_path: Path, access: Access) -> None:
    config = Config.from_dict({**CONFIG, "algorithm": {**CONFIG["algorithm"], **ALGORITHMS[name]}})
    simulation, order = _recorded(config, 100)

    async def replay() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(tmp_path / "run", access, config))
            clients = [
                await stack.enter_async_context(taking_part(tmp_path, access, number))
                for number in range(config.task.clients)
            ]
            starts = [client.begin() for client in clients]
            for job, recorded in order:
                client, start = clients[job.client], starts[job.client]
                assert (start.sequence, start.client.hidden_state.version) == (job.sequence, job.version)
                upload = client.finish(start, client._train).upload
                assert upload == recorded.upload
                starts[job.client] = client.begin()
                client.outbox.add(start.sequence, upload)
                assert await client.until(lambda c=client: not len(c.outbox))
                version = server.ledger.server.version
                await until(lambda v=version: all(c.follower.version == v for c in clients))
            held = server.ledger.server
            assert np.array_equal(held.model, simulation.server.model)
            assert np.array_equal(held.hidden_state.vector, simulation.server.hidden_state.vector)
            for client in clients:
                assert np.array_equal(client.core.hidden_state.vector, simulation.background.hidden_state.vector)

    asyncio.run(replay())


async def _settled(server: DeploymentServer, client: DeploymentClient) -> None:
    core, publisher = server.ledger.server, server._publisher
    await until(lambda: publisher.published.position == publisher.on_broker.position == core.broadcast_bytes)
    await until(lambda: client.follower.state.position == client.follower.state.snapshot_position)
    await until(lambda: client.follower.state.version == core.version)


async def _deliver(client: DeploymentClient, sequence: int, upload: bytes) -> None:
    client.outbox.add(sequence, upload)
    assert await client.until(lambda: not len(client.outbox), 60)


@pytest.mark.parametrize("name", LINKED)
def test_a_recorded_order_of_starts_and_uploads_gives_the_simulators_bits(
    name: str, tmp_path: Path, access: Access
) -> None:
    algorithm = {**CONFIG["algorithm"], **LINKED[name]}
    config = Config.from_dict({**CONFIG, "task": {"name": "mushrooms", "clients": 3}, "algorithm": algorithm})
    events: list[tuple[int, Any]] = []
    fetch = Simulation._fetch

    def fetched(simulation: Simulation, client: int, sequence: int) -> Any:
        events.append((client, (sequence, *fetch(simulation, client, sequence))))
        return events[-1][1][1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "_fetch", fetched)
        simulation, _ = _recorded(config, 40, lambda job, made: events.append((job.client, made.upload)))

    async def replay() -> None:
        async with contextlib.AsyncExitStack() as stack:
            settings = ServerSettings(heartbeat_s=0.05, snapshot_every=1, keep_journal=True)
            server = await stack.enter_async_context(serving(tmp_path / "run", access, config, settings))
            clients = [
                await stack.enter_async_context(
                    taking_part(tmp_path, access, number, settings=ClientSettings(patience_s=60, follow="start"))
                )
                for number in range(config.task.clients)
            ]
            starts: dict[int, list[CopiedState]] = {number: [] for number in range(config.task.clients)}
            held = server.ledger.server
            ready: tuple[int, int, bytes] | None = None  # its sender starts again before it reaches the server
            for number, event in [*events, (-1, None)]:
                if ready is not None and number != ready[0]:
                    await _deliver(clients[ready[0]], *ready[1:])
                    ready = None
                if event is None:
                    break
                client = clients[number]
                if isinstance(event, bytes):
                    start = starts[number].pop(0)
                    assert client.finish(start, client._train).upload == event
                    ready = number, start.sequence, event
                    continue
                await _settled(server, client)
                client.follower.prepare()
                assert await client.until(lambda c=client: c.follower.ready, 60)
                sequence, download_bytes, point = event
                assert (client._next_number(), client.report.received_bytes) == (
                    sequence,
                    received[number] + download_bytes,
                )
                received[number] += download_bytes
                assert client.core.hidden_state.digest == point.digest
                starts[number].append(client.begin())
                if ready is not None:
                    await _deliver(client, *ready[1:])
                    ready = None
            assert np.array_equal(held.model, simulation.server.model)
            assert np.array_equal(held.hidden_state.vector, simulation.server.hidden_state.vector)
            assert sum(received) == simulation.traffic.received_bytes

    received = [0] * config.task.clients
    asyncio.run(replay())
    if name == "link":
        assert check_recorded(tmp_path / "run" / "state", config, {}) >= 40
