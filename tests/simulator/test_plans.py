"""Every plan of a run, materialised, brings a real client to the start of its job in exactly the bytes charged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qafel.algorithm import Client, HiddenState, Kind, Made, Means, Message, method
from qafel.algorithm.catch_up import Exact, PerStart, Snapshot
from qafel.algorithm.methods.mcm import MemoryDifference
from qafel.simulator import AlwaysTraining, ConstantRate, Network, Rounds, Simulation, Timing
from qafel.simulator.executors.jobs import Inline, Job, Trainer
from qafel.simulator.timing import Links
from qafel.tasks import Mushrooms
from tests.plans import Recorder

CLIENTS, SIZE, STEPS = 20, 113, 60
FOUR_BITS = {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
ASKED = ConstantRate(rate=9.0)
ALWAYS = AlwaysTraining()
DIRECT = {"name": "fedbuff-direct", **FOUR_BITS}


@pytest.fixture(scope="module")
def mushrooms() -> Mushrooms:
    return Mushrooms(CLIENTS)


class Fleet:
    """A simulation in which each client is a real one too: it receives real messages, and makes its own uploads."""

    def __init__(self, task: Mushrooms, algorithm: Any, timing: Timing, seed: int = 0) -> None:
        self.trainer = Trainer(task, algorithm, seed)
        self.executor = Inline(self.trainer)
        self.executor.result = self.result
        self.simulation = Simulation(task, algorithm, timing, seed, self.executor)
        self.server = self.simulation.server
        self.initial = self.server.hidden_state
        self.recorder = Recorder(self.server)
        self.clients: dict[int, Client] = {}
        self.begun: dict[tuple[int, int], Client] = {}
        self.fetched: list[int] = []
        self.planned: list[tuple[int, Means]] = []
        """Of every start: the client, and how it got to its start point."""
        self.uploads = 0
        self.listen: Callable[[int, list[bytes]], None] = lambda *_: None
        self._fetch = self.simulation._fetch
        self.simulation._fetch = self.fetch

    def fetch(self, number: int, sequence: int) -> tuple[int, HiddenState]:
        """What the simulation does when a client starts; and the same with messages."""
        simulation, algorithm = self.simulation, self.simulation.algorithm
        client = self.clients.get(number)
        plan = algorithm.catch_up.plan(simulation.fleet.held[number], simulation._offer)
        version = -1 if client is None else client.hidden_state.version
        messages = self.recorder.messages(plan, version, number, sequence)
        if plan.means is Means.LINK and plan.download_bytes:
            assert simulation.links is not None
            held = None if client is None else client.hidden_state
            messages = [self.recorder.linked_start(simulation.links, number, sequence, held)]
        self.listen(number, messages)
        charged, start = self._fetch(number, sequence)
        assert charged == sum(map(len, messages)), "the bytes charged are those of the messages"
        assert plan.means in (Means.OWN, Means.LINK) or charged == plan.download_bytes
        self.fetched.append(charged)
        self.planned.append((number, plan.means))
        if client is None:  # it holds nothing that could be of use
            nothing = HiddenState.of(np.full(SIZE, np.nan, np.float32), -1)
            client = self.clients[number] = Client(number, nothing, algorithm, simulation.seed)
            client.initial = self.initial
        if plan.means is not Means.OWN:
            for message in messages:
                assert client.receive(message)
            assert client.hidden_state.version == self.server.version
            assert client.hidden_state.digest == start.digest
            assert client.hidden_state.digest == self.server.hidden_state.digest or not client.hidden_state.exact
        client.sequence, client.memory = sequence, simulation.fleet.memory(number)
        begun = client.begin()
        if plan.means is Means.OWN:  # the message is drawn from x, which the server holds
            begun.hidden_state = start
            (drawn,) = map(Message.from_bytes, messages)
            assert drawn.version == self.server.version
            expected = algorithm.server_quantizer.decode(drawn.payload, SIZE)
            found = algorithm.catch_up.start(start, algorithm, simulation.seed, number, sequence)
            assert found.vector.tobytes() == expected.tobytes()
        self.begun[number, sequence] = begun
        return charged, start

    @property
    def means(self) -> set[Means]:
        return {means for _, means in self.planned}

    def result(self, job: Job) -> Made:
        """The upload of the job, which the real client makes too."""
        made, client = self.trainer.perform(job), self.begun.pop((job.client, job.sequence))
        local = self.simulation.algorithm.local
        local = local if job.steps is None else replace(local, steps=job.steps, epochs=None)
        client.weight = job.weight
        again = client.update(lambda *trained: self.trainer.task.train(job.client, *trained), local)
        assert again.upload == made.upload
        assert all((again.memory[name] == value).all() for name, value in made.memory.items())
        self.uploads += 1
        return made

    def run(self, steps: int) -> None:
        self.simulation.begin()
        while self.server.version < steps:
            self.simulation.advance()
        assert self.simulation.traffic.received_bytes == sum(self.fetched)
        assert self.uploads >= steps
        assert self.simulation.background.hidden_state.digest == self.server.hidden_state.digest


def compose(name: str = "qafel", **changes: Any) -> Any:
    return method(name, **{"server_lr": 0.1, "client_lr": 2.0, "local_steps": 3, "buffer_size": 4, **changes})


EXACT = {
    "qsgd": (ALWAYS, compose(server_quantizer="qsgd:4", buffer_size=8)),
    "top-k": (ALWAYS, compose(server_quantizer="top_k:0.1")),
    "fedbuff": (ALWAYS, compose("fedbuff")),
    "direct": (ALWAYS, compose(**DIRECT)),
    "one update a step": (ALWAYS, compose("fedasync-hidden", buffer_size=1, server_quantizer="sign")),
    "arrivals": (ASKED, compose(server_quantizer="qsgd:4")),
    "direct arrivals": (ASKED, compose("fedasync-direct", buffer_size=1, server_quantizer="qsgd:8")),
    "kept moves": (ASKED, compose("cafe", client_quantizer="sign", max_staleness=20)),
    "memories": (Rounds(timeout=2.0), compose("mcm", **FOUR_BITS)),
    "downlink memory": (ALWAYS, replace(compose(**FOUR_BITS), downlink=MemoryDifference(0.3))),
    "partial work": (Rounds(timeout=0.5), compose("fedprox")),
}


@pytest.mark.parametrize(("arrivals", "algorithm"), EXACT.values(), ids=EXACT)
def test_a_start_is_charged_what_brings_its_client_to_the_hidden_state(
    mushrooms: Mushrooms, monkeypatch: pytest.MonkeyPatch, arrivals: Any, algorithm: Any
) -> None:
    assert isinstance(algorithm.catch_up, Exact)
    timing = Timing(arrivals=arrivals, network=Network(download_rate=1000.0), dropout=0.1)
    fleet, charged, download_time = Fleet(mushrooms, algorithm, timing), [], Links.download_time

    def timed(links: Links, client: int, size: int) -> float:
        charged.append(size)
        return download_time(links, client, size)

    monkeypatch.setattr(Links, "download_time", timed)
    fleet.run(STEPS)
    assert charged == fleet.fetched
    assert len(set(charged)) > 1
    assert Means.WHOLE in fleet.means


def test_each_start_downloads_a_message_of_its_own(mushrooms: Mushrooms) -> None:
    algorithm = compose(**DIRECT, catch_up="per-start")
    assert isinstance(algorithm.catch_up, PerStart)
    fleet = Fleet(mushrooms, algorithm, Timing(dropout=0.1))
    drawn: set[bytes] = set()
    fleet.listen = lambda number, messages: drawn.update(messages)
    fleet.run(STEPS)
    assert fleet.means == {Means.OWN}
    assert len(drawn) > 0.9 * len(fleet.fetched)


QUANTIZED = {
    "followed in the end": (
        ALWAYS,
        compose(server_quantizer="top_k:0.01", catch_up=Snapshot("qsgd:8")),
        True,
    ),
    "never followed": (
        ALWAYS,
        compose(server_quantizer="qsgd:4", catch_up=Snapshot("trellis:3")),
        False,
    ),
    "arrivals": (ASKED, compose(server_quantizer="qsgd:2", catch_up=Snapshot("qsgd:8")), True),
    "rounds": (Rounds(timeout=2.0), compose("fedavg", catch_up=Snapshot("qsgd:4")), False),
}


@pytest.mark.parametrize(("arrivals", "algorithm", "some_follow"), QUANTIZED.values(), ids=QUANTIZED)
def test_a_start_from_an_inexact_snapshot_is_charged_its_bytes(
    mushrooms: Mushrooms, arrivals: Any, algorithm: Any, some_follow: bool
) -> None:
    """Each client also decides by itself what to fetch, from what it holds: the same messages.

    It follows broadcasts if it holds x̂ and they are no longer than the server's snapshot; it fetches x̂ itself once
    inexact snapshots have cost as much more than broadcasts as x̂ costs more than one.
    """
    assert isinstance(algorithm.catch_up, Snapshot)
    fleet = Fleet(mushrooms, algorithm, Timing(arrivals=arrivals, dropout=0.1))
    server, regrets, kinds = fleet.server, {}, set()

    def decided(number: int) -> list[bytes]:
        exact, inexact = server.hidden_state.to_snapshot(), server.quantized()
        if number not in fleet.clients:
            regrets[number] = 0
            return [inexact]
        held = fleet.clients[number].hidden_state
        missed = fleet.recorder.last(server.version - held.version)
        since = sum(map(len, missed))
        if not missed or (held.exact and since <= len(inexact)):
            return missed
        regrets[number] = (0 if held.exact else regrets[number]) + max(0, len(inexact) - since)
        return [exact if regrets[number] >= len(exact) - len(inexact) else inexact]

    def compare(number: int, messages: list[bytes]) -> None:
        assert messages == decided(number)
        kinds.update(Message.from_bytes(message).kind for message in messages)

    fleet.listen = compare
    fleet.run(STEPS)
    assert Means.QUANTIZED in fleet.means
    assert Kind.SNAPSHOT in kinds
    assert (Kind.BROADCAST in kinds) == some_follow


OFTEN = {"name": "auto", "link": "qsgd:8", "first": "qsgd:8", "snapshot": "qsgd:8"}
LINKED = {
    "always": (ALWAYS, compose(**FOUR_BITS, catch_up="link"), {Means.LINK}),
    "rounds": (Rounds(timeout=2.0), compose("fedavg", catch_up="link"), {Means.LINK}),
    "automatic": (ALWAYS, compose(**FOUR_BITS, catch_up="auto"), {Means.LINK}),
    "followed in the end": (
        ASKED,
        compose(server_quantizer="top_k:0.01", catch_up=OFTEN),
        {Means.LINK, Means.WHOLE, Means.BROADCASTS},
    ),
}


@pytest.mark.parametrize(("arrivals", "algorithm", "means"), LINKED.values(), ids=LINKED)
def test_a_linked_start_moves_the_point_that_its_client_holds(
    mushrooms: Mushrooms, arrivals: Any, algorithm: Any, means: set[Means]
) -> None:
    fleet = Fleet(mushrooms, algorithm, Timing(arrivals=arrivals, dropout=0.1))
    fleet.run(3 * STEPS if Means.WHOLE in means else STEPS)
    assert fleet.means >= means
    if Means.WHOLE in means:  # a client that held x̂ since begins its link again
        own = [[by for number, by in fleet.planned if number == client] for client in range(CLIENTS)]
        assert any(Means.LINK in planned[planned.index(Means.WHOLE) :] for planned in own if Means.WHOLE in planned)
