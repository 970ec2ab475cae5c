"""A simulated run with linked starts sends real messages: clients that receive them start from the same points."""

from __future__ import annotations

from typing import Any

import pytest

from qafel.algorithm import Client, HiddenState, method
from qafel.simulator import Simulation, Timing
from qafel.tasks import Mushrooms

SEED = 4


@pytest.fixture(scope="module")
def mushrooms() -> Any:
    return Mushrooms(12)


@pytest.mark.parametrize("catch_up", ["link", "auto"])
def test_real_clients_that_receive_the_messages_of_a_run_start_from_its_points(mushrooms: Any, catch_up: str) -> None:
    algorithm = method("qafel", client_quantizer="qsgd:4", server_quantizer="qsgd:4", catch_up=catch_up)
    simulation = Simulation(mushrooms, algorithm, Timing(), SEED)
    assert simulation.links is not None
    reply, initial = simulation.links.reply, simulation.server.hidden_state
    clients: dict[int, Client] = {}
    received: list[int] = []

    def checked(
        client: int, sequence: int, digest: int, target: HiddenState, **others: Any
    ) -> tuple[bytes, HiddenState]:
        message, start = reply(client, sequence, digest, target, **others)
        if client not in clients:
            clients[client] = Client(client, initial, algorithm, SEED)
            clients[client].initial = initial
        clients[client].receive(message)
        assert clients[client].hidden_state.digest == start.digest
        assert start.version == target.version
        received.append(len(message))
        return message, start

    simulation.links.reply = checked  # type: ignore[method-assign]
    simulation.begin()
    while simulation.server.version < 25:
        simulation.advance()
    assert len(received) > 100
    if catch_up == "link":
        assert simulation.traffic.received_bytes == sum(received)
    assert sum(received) < 0.2 * len(received) * simulation.server.hidden_state.snapshot_bytes
