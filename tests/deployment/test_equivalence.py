"""The deployment computes what the simulator computes, bit for bit."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel.algorithm.client import Made
from qafel.config import Config
from qafel.deployment.keys import Access
from qafel.simulator.executors.jobs import Inline, Job, Trainer
from qafel.simulator.simulation import Simulation
from tests.deployment.live import CONFIG, serving, taking_part, until

ALGORITHMS: dict[str, dict[str, Any]] = {
    "qafel": {},
    "momentum and staleness": {"server_momentum": 0.5, "staleness_exponent": 0.5},
    "direct": {"method": "fedbuff-direct"},
    "fedadam": {"method": "fedadam"},
    "median of buckets": {"accumulator": {"name": "median", "buckets": 3}},
    "fedasync": {"method": "fedasync", "client_quantizer": "none", "server_quantizer": "none", "buffer_size": 1},
}


def _recorded(config: Config, events: int) -> tuple[Simulation, list[tuple[Job, Made]]]:
    """A simulated run, and the order in which uploads reached its server."""
    task = config.task.make()
    algorithm = config.algorithm.compose(task.layout)
    trainer = Trainer(task, algorithm, config.seed)
    order: list[tuple[Job, Made]] = []

    def result(job: Job) -> Made:
        made = trainer.perform(job)
        order.append((job, made))
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
