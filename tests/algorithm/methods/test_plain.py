"""Each method against a plain implementation in double precision, written from its paper's rule alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
import pytest

from qafel import (
    Client,
    HalfNormal,
    HiddenState,
    Limits,
    Message,
    Mushrooms,
    Quadratic,
    Server,
    Stream,
    Timing,
    method,
    simulate,
)
from qafel.algorithm import Next
from qafel.errors import ConfigError, RejectedUpload

SIZE, CLIENTS = 12, 5


def arrivals(count: int, seed: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Clients in a random order, each with an update that no method can know before."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield int(random.integers(CLIENTS)), random.standard_normal(SIZE).astype(np.float32)


class Fleet:
    """A server and clients whose training moves by a given vector."""

    def __init__(self, name: str, **settings: object) -> None:
        self.algorithm = method(name, server_lr=0.1, **settings)
        self.start = np.linspace(-1, 1, SIZE, dtype=np.float32)
        self.server = Server(self.start, self.algorithm, seed=1, clients=CLIENTS)
        state = HiddenState.of(self.start.copy())
        self.clients = [Client(number, state, self.algorithm, seed=1) for number in range(CLIENTS)]

    def upload(self, number: int, update: np.ndarray) -> Next | None:
        """One update of a client from the hidden state that it holds; None if the server rejects it."""
        client = self.clients[number]
        made = client.update(lambda start, local, stream: start.vector - update)
        try:
            accepted = self.server.receive(Message.from_bytes(made.upload))
        except RejectedUpload:
            return None
        client.memory = made.memory
        if accepted.batch is not None:
            broadcast = self.server.step(accepted.batch)
            for each in self.clients:
                if each is client or self.all_follow:
                    each.hidden_state = self.server.hidden_state
            assert broadcast
        return accepted.following

    all_follow = True


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.allclose(found, expected, rtol=2e-5, atol=2e-6))


@pytest.mark.parametrize("compensated", [True, False])
def test_fedadam_is_adam_on_the_mean_update(compensated: bool) -> None:
    rule = {"name": "adam", "beta1": 0.8, "beta2": 0.95, "epsilon": 0.01, "compensated": compensated}
    fleet = Fleet("fedadam", buffer_size=4, client_quantizer="none", server_quantizer="none", server_rule=rule)
    x, m, v, waiting = fleet.start.astype(float), np.zeros(SIZE), np.full(SIZE, 0.01**2), []
    for client, update in arrivals(80):
        fleet.upload(client, update)
        waiting.append(update.astype(float))
        if len(waiting) == 4:
            d = -np.mean(waiting, axis=0)
            m = 0.8 * m + 0.2 * d
            v = 0.95 * v + 0.05 * d**2
            x = x + 0.1 * m / (np.sqrt(v) + 0.01)
            waiting = []
        assert close(fleet.server.model, x)


@pytest.mark.parametrize("quantizer", ["none", "affine:8"])
def test_ca2fl_calibrates_by_each_clients_last_update(quantizer: str) -> None:
    fleet = Fleet("ca2fl", buffer_size=3, client_quantizer=quantizer, server_quantizer="none")
    x, cache, waiting = fleet.start.astype(float), np.zeros((CLIENTS, SIZE)), []
    for client, update in arrivals(90):
        fleet.upload(client, update)
        waiting.append((client, update.astype(float)))
        if len(waiting) == 3:  # by chance a client is in it twice
            v = cache.mean(axis=0) + np.mean([update - cache[client] for client, update in waiting], axis=0)
            x = x - 0.1 * v
            for each, last in waiting:
                cache[each] = last
            waiting = []
        error = np.abs(fleet.server.model - x).max()
        assert error < (1e-5 if quantizer == "none" else 0.2), error


def test_error_feedback_sends_what_was_left_out_before() -> None:
    fleet = Fleet("error-feedback", buffer_size=2, client_quantizer="top_k:0.25", server_quantizer="none")
    x, errors, waiting = fleet.start.astype(float), np.zeros((CLIENTS, SIZE)), []
    for client, update in arrivals(100):
        fleet.upload(client, update)
        p = errors[client] + update
        sent = np.where(np.argsort(np.argsort(-np.abs(p))) < 3, p, 0.0)  # a quarter of twelve
        errors[client] = p - sent
        waiting.append(sent)
        if len(waiting) == 2:
            x, waiting = x - 0.1 * np.mean(waiting, axis=0), []
        assert close(fleet.server.model, x)
    assert close(np.array([client.memory["error"] for client in fleet.clients]), errors)


def test_a_rejected_update_leaves_the_error_as_it_was() -> None:
    fleet = Fleet("error-feedback", buffer_size=1, client_quantizer="top_k:0.25", max_staleness=0)
    fleet.all_follow = False
    ones = np.linspace(0.1, 1, SIZE, dtype=np.float32)
    fleet.upload(0, ones)
    before = fleet.clients[1].memory["error"].copy()
    assert fleet.upload(1, ones) is None, "it started from version 0"
    assert (fleet.clients[1].memory["error"] == before).all()


@pytest.mark.parametrize("gain", [1.0, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_cafe_sends_how_an_update_differs_from_the_aggregate_that_its_client_saw_last(
    gain: float, momentum: float
) -> None:
    rule = {"name": "aggregate-feedback", "gain": gain}
    fleet = Fleet(
        "cafe", buffer_size=2, client_quantizer="top_k:0.25", server_quantizer="none", client_rule=rule,
        server_momentum=momentum,
    )  # fmt: skip
    fleet.all_follow = False
    x, v, seen, waiting = fleet.start.astype(float), np.zeros(SIZE), np.zeros((CLIENTS, SIZE)), []
    for client, update in arrivals(150, seed=5):
        fleet.upload(client, update)
        expected = gain * seen[client]
        left = update - expected
        waiting.append(expected + np.where(np.argsort(np.argsort(-np.abs(left))) < 3, left, 0.0))
        if len(waiting) == 2:
            v = momentum * v + np.mean(waiting, axis=0)
            x, seen[client], waiting = x - 0.1 * v, (1 - momentum) * v, []
        assert close(fleet.server.model, x)
    assert len(fleet.server.accumulator.moves) > 60


@pytest.mark.filterwarnings("ignore:client quantizer")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_with_top_k_cafe_comes_closer_to_the_optimum_than_qafel_with_the_same_bytes(seed: int) -> None:
    quantizers = {"client_quantizer": "top_k:0.05", "server_quantizer": "trellis:4"}
    cafe, qafel = (
        simulate(Mushrooms(), method(name, **quantizers), server_steps=100, evaluate_every=100, seed=seed).summary
        for name in ("cafe", "qafel")
    )
    assert cafe["metric_final"] < 0.6 * qafel["metric_final"]
    assert cafe["upload_bytes_total"] < 1.01 * qafel["upload_bytes_total"]


def test_cafe_keeps_the_broadcasts_of_the_versions_that_updates_may_start_from() -> None:
    fleet = Fleet("cafe", buffer_size=1, max_staleness=7)
    for client, update in arrivals(30):
        fleet.upload(client, update)
    assert sorted(fleet.server.accumulator.moves) == list(range(23, 31))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_staleness": None}, "max_staleness"),
        ({"server_rule": "adam"}, "sgd"),
        ({"client_weights": "samples"}, "equal weights"),
        ({"client_rule": {"name": "aggregate-feedback", "gain": 2.0}}, "gain"),
        ({"catch_up": "link"}, "quantized starts"),
    ],
)
def test_cafe_refuses_settings_that_do_not_fit(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        method("cafe", **settings)


def test_ringleader_uses_an_update_of_every_client_in_every_step() -> None:
    fleet = Fleet("ringleader")
    fleet.all_follow = False
    x, n = fleet.start.astype(float), CLIENTS
    sums, numbers = np.zeros((n, SIZE)), np.zeros(n)
    later_sums, later_numbers = np.zeros((n, SIZE)), np.zeros(n)
    pending: set[int] = set()
    steps, delays = 0, []
    for client, update in arrivals(600, seed=3):
        version = fleet.clients[client].hidden_state.version
        following = fleet.upload(client, update)
        delays.append(steps - version)
        if not pending:
            sums[client] += update
            numbers[client] += 1
            pending = set(range(n)) if (numbers > 0).all() else set()
            stepped = bool(pending)
        elif client in pending:
            sums[client] += update
            numbers[client] += 1
            stepped = True
        else:
            later_sums[client] += update
            later_numbers[client] += 1
            stepped = False
        if stepped:
            x = x - 0.1 * np.mean(sums / numbers[:, None], axis=0)
            steps += 1
            pending.remove(client)
            if not pending:
                sums, numbers = later_sums, later_numbers
                later_sums, later_numbers = np.zeros((n, SIZE)), np.zeros(n)
        assert following is (Next.NEWEST if stepped else Next.SAME)
        assert close(fleet.server.model, x)
    assert steps > 100
    assert max(delays) <= 2 * n - 2


def test_ringmaster_discards_updates_whose_delay_reaches_the_limit() -> None:
    fleet = Fleet("ringmaster", staleness={"name": "delay-limit", "limit": 3})
    fleet.all_follow = False
    x, version, starts, discarded = fleet.start.astype(float), 0, [0] * CLIENTS, 0
    for client, update in arrivals(300, seed=4):
        taken = fleet.upload(client, update) is not None
        assert taken == (version - starts[client] < 3)
        if taken:
            x, version = x - 0.1 * update, version + 1
        discarded += not taken
        fleet.clients[client].hidden_state = fleet.server.hidden_state  # it starts again from the newest model
        starts[client] = version
        assert close(fleet.server.model, x)
    assert discarded > 20


def test_ringmaster_stops_jobs_that_become_too_old() -> None:
    """The same run as a plain event loop in which late jobs are taken from the queue and begin again."""
    task, limit, steps = Quadratic(clients=8, dimension=SIZE), 3, 60
    algorithm = method("ringmaster", server_lr=0.5, client_lr=0.1, staleness={"name": "delay-limit", "limit": limit})
    law = HalfNormal(seed=0)
    found = simulate(task, algorithm, Timing(duration=law), limits=Limits(server_steps=steps))
    draws = HalfNormal(seed=0)
    x = task.initial_model(Stream.named(0, "initial-model")).astype(np.float32)
    version = number = stopped = 0
    queue: list[tuple[float, int, int, int, int, np.ndarray]] = []
    sequences = [0] * task.clients

    def start(now: float, client: int) -> None:
        nonlocal number
        duration = draws.draw(client, number)
        heapq.heappush(queue, (now + duration, number, client, sequences[client], version, x))
        sequences[client] += 1
        number += 1

    for client in range(task.clients):
        start(0.0, client)
    while version < steps:
        now, _, client, sequence, from_version, model = heapq.heappop(queue)
        stream = Stream.named(0, "train", client, sequence)
        trained = task.train(client, HiddenState.of(model.copy()), algorithm.local, stream)
        x = x - np.float32(0.5) * (model - trained)
        version += 1
        late = sorted((job for job in queue if job[4] == version - limit), key=lambda job: job[1])
        queue = [job for job in queue if job[4] != version - limit]
        heapq.heapify(queue)
        for job in late:
            stopped += 1
            start(now, job[2])
        start(now, client)  # from the model after its own step
        assert version - from_version <= limit
    assert close(found.model, x)
    assert found.summary["stopped"] == stopped > 10
    assert found.summary["rejected"] == {}


def test_ringmaster_with_one_client_is_gradient_descent_without_delay() -> None:
    algorithm = method("ringmaster", server_lr=0.5, client_lr=0.1)
    found = simulate(Quadratic(clients=1, dimension=SIZE), algorithm, server_steps=20)
    assert found.summary["staleness_max"] == 0
