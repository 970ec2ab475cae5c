"""Methods with state deploy: whatever is killed, x, x̂ and the clients' memories are what the core makes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from qafel.algorithm import HiddenState, LocalTraining
from qafel.config import Config, load_recipe
from qafel.deployment.broker import LocalBroker
from qafel.deployment.client import ClientSettings
from qafel.deployment.client.client import ClientEvent, open_client
from qafel.deployment.client.state import ClientState
from qafel.deployment.keys import Access
from qafel.deployment.names import Names
from qafel.params import Vector
from qafel.rng import Stream
from tests.deployment.live import CONFIG, serving, taking_part, until, update
from tests.deployment.processes import Command, wait_for
from tests.deployment.recorded import check_recorded

RECIPE = """
name = "methods"
task = {name = "mushrooms", clients = 3}
evaluation = {every = 1000}
stop = {server_steps = %d}
[algorithm]
method = "%s"
local_steps = 2
%s
"""
METHODS = {
    "error-feedback": "buffer_size = 3\nclient_quantizer = 'top_k:0.1'\nserver_quantizer = 'qsgd:4'",
    "cafe": "buffer_size = 3\nclient_quantizer = 'sign'\nserver_quantizer = 'qsgd:4'",
    "fedadam": "buffer_size = 3\nclient_quantizer = 'qsgd:4'\nserver_quantizer = 'qsgd:4'",
    "ca2fl": "buffer_size = 3\nclient_quantizer = 'qsgd:4'\nserver_quantizer = 'qsgd:4'",
    "ringmaster": "staleness = {name = 'delay-limit', limit = 4}",
}
STEPS = {"ringmaster": 60}


class _Fleet:
    def __init__(self, folder: Path, broker: LocalBroker, recipe: Path) -> None:
        self._folder, self._broker, self._recipe = folder, broker, recipe
        self.server = self._server()
        self.clients = [self._client(number) for number in range(3)]

    def _server(self) -> Command:
        return Command(
            "server", self._folder / "server.out", str(self._recipe), "--out", str(self._folder / "run"), "--broker",
            self._broker.url, "--keep-journal", "--checkpoint-every", "10", "--snapshot-every", "3", "--json",
        )  # fmt: skip

    def _client(self, number: int) -> Command:
        return Command(
            "client", self._folder / f"client-{number}.out", "--run", "methods", "--client-id", str(number),
            "--broker", self._broker.url, "--state", str(self._folder / f"client-{number}"), "--json",
            "--min-interval", "0.02",
        )  # fmt: skip

    def accepted(self, number: int) -> int:
        """How many updates of a client were accepted, as it heard."""
        return sum(event["event"] == "accepted" for event in self.clients[number].events())

    def move_on(self) -> None:
        """Until an update of each client was accepted."""
        before = [self.accepted(number) for number in range(3)]
        wait_for(
            lambda: all(self.accepted(n) > before[n] or not self.clients[n].alive for n in range(3)), "updates", 120
        )

    def kill_server(self) -> None:
        self.server.kill()
        self.server = self._server()

    def kill_client(self, number: int) -> None:
        self.clients[number].kill()
        self.clients[number] = self._client(number)

    def close(self) -> None:
        for command in (self.server, *self.clients):
            if command.alive:
                command.kill()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "error-feedback" else pytest.mark.faults)
        for name in METHODS
    ],
)
def test_a_method_survives_a_killed_server_and_killed_clients(
    method: str, tmp_path: Path, local_broker: LocalBroker
) -> None:
    recipe = tmp_path / "methods.toml"
    recipe.write_text(RECIPE % (STEPS.get(method, 25), method, METHODS[method]), encoding="utf-8")
    fleet = _Fleet(tmp_path, local_broker, recipe)
    try:
        for number in range(3):
            fleet.move_on()
            fleet.kill_client(number)
            fleet.kill_server()
        commands = [fleet.server, *fleet.clients]
        wait_for(lambda: not any(command.alive for command in commands), "the run to end", 180)
        for command in commands:
            assert command.process.returncode == 0, command.errors[-1000:]
    finally:
        fleet.close()
    folders = {number: tmp_path / f"client-{number}" for number in range(3)}
    assert check_recorded(tmp_path / "run" / "state", load_recipe(str(recipe)), folders) >= 60


def test_a_client_does_not_send_an_update_that_the_staleness_law_gives_up(tmp_path: Path, access: Access) -> None:
    algorithm = {"method": "ringmaster", "staleness": {"name": "delay-limit", "limit": 2}}
    config = Config.from_dict({**CONFIG, "algorithm": algorithm})
    events: list[ClientEvent] = []
    began, goes_on = threading.Event(), threading.Event()

    def train(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        if start.version == 0:
            began.set()
            assert goes_on.wait(60)
        return start.vector * start.vector.dtype.type(0.5)

    async def check() -> None:
        async with serving(tmp_path / "run", access, config) as server, taking_part(tmp_path, access, 1) as other:
            with ClientState(tmp_path / "late") as state:
                settings = ClientSettings(max_updates=1, patience_s=120)
                late = await open_client(
                    lambda *_: (train, 1.0), Names("live"), 0, state, access, settings, events.append
                )
                work = asyncio.create_task(late.run())
                await until(began.is_set)
                for _ in range(2):
                    await update(other)
                await until(lambda: late.follower.newest == 2)
                goes_on.set()
                report = await work
            assert report.outcomes == {"abandoned": 1, "accepted": 1}
            assert [event["version"] for event in events if event["event"] in ("abandoned", "update")] == [0, 2]
            assert server.ledger.server.rejected == {}

    asyncio.run(check())
