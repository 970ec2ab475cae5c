"""Linked starts between processes as a user starts them: each fault heals by itself, and no counted update is lost."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from qafel.algorithm import HiddenState, LocalTraining, Message
from qafel.config import load_recipe
from qafel.deployment.broker import LocalBroker
from qafel.deployment.server.journal import read_journal
from qafel.deployment.server.ledger import Ledger
from qafel.params import Vector
from qafel.rng import Stream
from tests.deployment.live import replay
from tests.deployment.processes import Command, Line, wait_for

RECIPE = """
name = "starts"
task = {name = "mushrooms", clients = 3}
evaluation = {every = 1000000}
stop = {server_steps = 1000000}
[algorithm]
method = "qafel"
client_quantizer = "qsgd:4"
server_quantizer = "qsgd:4"
buffer_size = 2
catch_up = {name = "link", quantizer = "qsgd:4", first = "qsgd:8"}
"""
FIRST, LATER = 181, 125
"""Bytes of a first start and of a later one."""
_PATIENCE_S = 180.0


def train_slowly(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
    time.sleep(0.1)
    return start.vector * np.float32(0.99) + np.float32(0.001)


class Fleet:
    """A broker, a server and clients 0 and 1; client 0 reaches the broker over a line that can be cut."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.recipe = folder, folder / "starts.toml"
        self.recipe.write_text(RECIPE, encoding="utf-8")
        self.broker = LocalBroker(folder / "broker")
        self.broker.start()
        self.line = Line(self.broker.port)
        self.evicts = False
        self.earlier: dict[str, int] = {}
        """Events of earlier processes with the same name."""
        self.server = self.serve()
        self.clients = [self.take_part(number, f"client-{number}") for number in (0, 1)]
        self.twin: Command | None = None

    def serve(self, *more: str) -> Command:
        options = ["--out", str(self.folder / "run"), "--broker", self.broker.url, "--keep-journal", "--json"]
        return Command("server", self.folder / "server.out", str(self.recipe), *options, "--patience", "60", *more)

    def take_part(self, number: int, name: str, *more: str) -> Command:
        port, output = self.broker.port if number else self.line.port, self.folder / f"{name}.out"
        self.earlier[name] = len(Command.events_of(output)) if output.exists() else 0
        return Command(
            "client", output, "--run", "starts", "--client-id", str(number), "--json", "--broker",
            f"nats://127.0.0.1:{port}", "--state", str(self.folder / name), "--patience", "180", "--train",
            f"{__name__}:train_slowly", "--follow", "start", *more,
        )  # fmt: skip

    def counted(self, client: Command) -> int:
        return sum(event["event"] == "accepted" for event in client.events())

    def go_on(self, *clients: Command, by: int = 3) -> None:
        """Wait until more updates of these clients count; meanwhile no process ends."""
        before = [self.counted(client) for client in clients]

        def went_on() -> bool:
            for command in (self.server, *self.clients):
                assert command.alive, command.errors[-1000:]
            return all(self.counted(each) >= had + by for each, had in zip(clients, before, strict=True))

        wait_for(went_on, "updates to count", _PATIENCE_S, look_s=0.2)

    def wait_for_start(self, client: Command) -> None:
        """Wait until a client has downloaded a start, and trains."""
        events = len(client.events())
        wait_for(lambda: any(e["event"] == "version" for e in client.events()[events:]), "a start", _PATIENCE_S)

    def close(self) -> None:
        for command in (self.server, *self.clients, *([self.twin] if self.twin else [])):
            if command.alive:
                command.kill()
        self.line.close()
        self.broker.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("starts"))
    try:
        made.go_on(*made.clients)
        yield made
    finally:
        made.close()


def cut_line(fleet: Fleet) -> None:
    """Requests and replies are lost."""
    for _ in range(4):
        fleet.line.cut()
        time.sleep(0.4)


def kill_server_between_start_and_upload(fleet: Fleet) -> None:
    fleet.wait_for_start(fleet.clients[0])
    fleet.server.kill()
    fleet.server = fleet.serve()


def lose_client_folder(fleet: Fleet) -> None:
    fleet.clients[0].kill()
    shutil.rmtree(fleet.folder / "client-0")
    fleet.clients[0] = fleet.take_part(0, "client-0")


def kill_client_in_training(fleet: Fleet) -> None:
    fleet.wait_for_start(fleet.clients[1])
    fleet.clients[1].kill()
    fleet.clients[1] = fleet.take_part(1, "client-1")


def restore_old_links(fleet: Fleet) -> None:
    """As from a copy of the server's folder."""
    shutil.copytree(fleet.folder / "run" / "links", fleet.folder / "copy")
    fleet.go_on(*fleet.clients)
    fleet.server.kill()
    shutil.rmtree(fleet.folder / "run" / "links")
    (fleet.folder / "copy").rename(fleet.folder / "run" / "links")
    fleet.server = fleet.serve()


def damage_links(fleet: Fleet) -> None:
    fleet.server.kill()
    for path in (fleet.folder / "run" / "links").iterdir():
        data = bytearray(path.read_bytes())
        data[random.Random(1).randrange(len(data))] ^= 16
        path.write_bytes(data)
    fleet.server = fleet.serve()


def evict(fleet: Fleet) -> None:
    """Each client evicts the other."""
    assert fleet.server.end() == 0
    fleet.evicts = True
    fleet.server = fleet.serve("--link-memory", "700B")


def start_twin(fleet: Fleet) -> None:
    """A second process with the number of client 0."""
    fleet.twin = fleet.take_part(0, "twin")
    fleet.go_on(fleet.twin, by=2)


SLOW = (kill_client_in_training, restore_old_links, damage_links, evict)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(cut_line, marks=pytest.mark.slow),
        kill_server_between_start_and_upload,
        lose_client_folder,
        *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW),
        start_twin,
    ],
)
def test_a_fault_heals_by_itself(fleet: Fleet, fault: Callable[[Fleet], None]) -> None:
    fault(fleet)
    fleet.go_on(*fleet.clients)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", ["usual", pytest.param("all", marks=pytest.mark.slow)])
def test_afterwards_no_counted_update_is_lost_and_starts_were_short(fleet: Fleet, faults: str) -> None:
    """The last of this module, also of its slow part: it ends the processes."""
    for number, client in enumerate(fleet.clients):
        assert not client.alive or client.end(60) == 0
        events = client.events()[fleet.earlier[f"client-{number}"] :]
        downloads, received = sum(event["event"] == "version" for event in events) - 1, events[-1]["received_bytes"]
        assert LATER * downloads <= received <= FIRST * downloads
        if number == 1 and not fleet.evicts:
            assert received < (FIRST + LATER) / 2 * downloads, "most starts were long"
    assert not fleet.server.alive or fleet.server.end(60) == 0, fleet.server.errors
    state, config = fleet.folder / "run" / "state", load_recipe(str(fleet.recipe))
    task = config.task.make()
    algorithm, initial = config.algorithm.compose(task.layout), config.initial_model(task)
    with Ledger.open(state, lambda: initial, algorithm, config.seed, size=initial.size) as ledger:
        again = replay(state, initial, algorithm, config.seed)
        assert np.array_equal(again.model, ledger.server.model)
    counted = [(upload.sender, upload.sequence) for upload in map(Message.from_bytes, read_journal(state))]
    assert len(counted) == len(set(counted))
    told = {
        (number, event["sequence"])
        for number, name in ((0, "client-0"), (1, "client-1"), (0, "twin"))
        if (output := fleet.folder / f"{name}.out").exists()
        for event in Command.events_of(output)
        if event["event"] == "accepted"
    }
    assert told <= set(counted)
