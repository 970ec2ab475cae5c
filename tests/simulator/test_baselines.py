"""Each synchronous method against an independent, plain implementation in float64."""

import numpy as np
import pytest

from qafel.algorithm import method
from qafel.rng import Stream
from qafel.simulator import Evaluation, Limits, Rounds, Simulation, Timing, simulate
from qafel.tasks import Mushrooms, load_mushrooms

CLIENTS, COHORT, ROUNDS = 12, 4, 15
ROWS = 8124


@pytest.fixture(scope="module")
def task():
    return Mushrooms(CLIENTS)


@pytest.fixture(scope="module")
def parts():
    data = load_mushrooms()
    rows = np.hstack([data.features, np.ones((ROWS, 1))]).astype(np.float64)
    targets = data.labels - 1
    return list(zip(np.array_split(rows, CLIENTS), np.array_split(targets, CLIENTS), strict=True))


def gradient(y, rows, targets):
    return rows.T @ (1 / (1 + np.exp(-rows @ y)) - targets) / len(rows) + y / ROWS


def cohorts():
    """The clients of each round, in no particular order: the methods average."""
    return [Rounds().cohort(0, number, CLIENTS, COHORT) for number in range(1, ROUNDS + 1)]


def found(task, name, **settings):
    algorithm = method(name, **{"buffer_size": COHORT, "client_lr": 0.5, **settings})
    simulation = Simulation(task, algorithm, Timing(arrivals=Rounds()), 0)
    simulation.begin()
    while simulation.server.version < ROUNDS:
        simulation.advance()
    return simulation


def fedavg(parts, steps, lr, proximal=0.0):
    """McMahan et al. 2017, Algorithm 1; with the proximal term it is Li et al. 2020, Algorithm 2."""
    x = np.zeros(113)
    for cohort in cohorts():
        models, samples = [], []
        for client in cohort:
            rows, targets = parts[client]
            y = x.copy()
            for _ in range(steps):
                y = y - lr * (gradient(y, rows, targets) + proximal * (y - x))
            models.append(y)
            samples.append(len(targets))
        x = np.average(models, axis=0, weights=samples)
    return x


def test_fedavg(task, parts):
    np.testing.assert_allclose(found(task, "fedavg", local_steps=5).server.model, fedavg(parts, 5, 0.5), atol=2e-5)


def test_fedsgd(task, parts):
    """One gradient over all the cohort's data, weighted by samples."""
    x = np.zeros(113)
    for cohort in cohorts():
        total = sum(len(parts[client][1]) for client in cohort)
        x = x - 0.5 * sum(len(parts[client][1]) / total * gradient(x, *parts[client]) for client in cohort)
    np.testing.assert_allclose(found(task, "fedsgd").server.model, x, atol=2e-5)


def test_fedprox(task, parts):
    result = found(task, "fedprox", local_steps=5, proximal=0.7).server.model
    np.testing.assert_allclose(result, fedavg(parts, 5, 0.5, proximal=0.7), atol=2e-5)
    assert np.abs(result - fedavg(parts, 5, 0.5)).max() > 1e-3, "the term matters"


def rates(up, down):
    """The rates of MCM's memories."""
    return {"client_rule": {"name": "memory", "rate": up}, "downlink": {"name": "memory", "rate": down}}


@pytest.mark.parametrize("rate", [0.3, "from-omega"])
def test_mcm(task, parts, rate):
    """Philippenko & Dieuleveut 2021: w exact at the server, ŵ = H + Ω at the clients, H ← H + αΩ; clients send
    C(gᵢ − hᵢ), hᵢ ← hᵢ + αC(gᵢ − hᵢ). Here every memory is kept, and their mean is made anew in every round.
    """
    lr, server_lr = 0.5, 0.8
    simulation = found(
        task,
        "mcm",
        local_steps=1,
        server_lr=server_lr,
        **rates(rate, rate),
        client_quantizer="qsgd:3",
        server_quantizer="qsgd:4",
    )
    up, down = simulation.algorithm.client_quantizer, simulation.algorithm.server_quantizer
    alpha_up, alpha = (1 / (2 * (1 + q.omega(113))) if rate == "from-omega" else rate for q in (up, down))
    model = estimate = memory = np.zeros(113)
    memories = np.zeros((CLIENTS, 113))
    sequences = np.zeros(CLIENTS, int)
    for number, cohort in enumerate(cohorts()):
        compressed, mean_memory = [], memories.mean(axis=0)
        for client in cohort:
            stream = Stream.named(0, "client-quantizer", client, int(sequences[client]))
            sequences[client] += 1
            step = (lr * gradient(estimate, *parts[client]) - memories[client]).astype(np.float32)
            compressed.append(up.decode(up.encode(step, stream), 113).astype(np.float64))
            memories[client] += alpha_up * compressed[-1]
        model = model - server_lr * (mean_memory + np.mean(compressed, axis=0))
        stream = Stream.named(0, "server-quantizer", number=number)
        omega = down.decode(down.encode((model - memory).astype(np.float32), stream), 113).astype(np.float64)
        estimate, memory = memory + omega, memory + alpha * omega
    # Rounding may tip a coordinate to the neighbouring level; the trajectories stay within a level's width.
    np.testing.assert_allclose(simulation.server.model, model, atol=2e-2)
    np.testing.assert_allclose(simulation.background.hidden_state.vector, estimate, atol=5e-2)
    assert np.linalg.norm(simulation.server.model - model) < 0.05 * np.linalg.norm(model)
    np.testing.assert_allclose(simulation.server.accumulator.memory, memories.mean(axis=0), atol=5e-3)


def test_the_server_keeps_the_mean_of_the_memories_of_those_who_took_part():
    """However it went: late uploads are not taken, and move neither the client's memory nor the server's mean."""
    task, algorithm = (
        Mushrooms(30),
        method("mcm", **{"buffer_size": 4, "client_lr": 0.5, "local_steps": 2, "server_lr": 0.8}),
    )
    simulation = Simulation(task, algorithm, Timing(arrivals=Rounds(over_selection=1.0, timeout=0.4)), 0)
    simulation.begin()
    while simulation.server.version < 12:
        simulation.advance()
    assert simulation.server.rejected["stale"] > 0
    took_part = {client for client in range(30) if client in simulation.server.seen.windows}
    memories = simulation.fleet.state()["memory_h"]
    assert set(memories) == took_part
    assert len(took_part) < 30
    mean = np.sum(list(memories.values()), axis=0) / 30
    np.testing.assert_allclose(simulation.server.accumulator.memory, mean, atol=1e-7)
    assert np.abs(mean).max() > 1e-3


@pytest.mark.slow
def test_with_its_uplink_memory_mcm_converges_where_it_stalled():
    """The clients of mushrooms differ: at x* their gradients are not zero. Without memories, sampling and quantizing
    them leaves noise at which the run stalls; what is relative to a memory vanishes with it.
    """
    task = Mushrooms(10)
    settings = {"buffer_size": 2, "client_lr": 2.0, "local_steps": 1, "server_lr": 4.0}
    settings |= {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}

    def ends(**changes):
        rounds = 4000
        result = simulate(
            task,
            method("mcm", **settings | changes),
            Timing(arrivals=Rounds()),
            limits=Limits(server_steps=rounds),
            evaluation=Evaluation(every=rounds // 40),
        )
        return result.history["metric"][-4:].mean()

    assert ends() < 1e-6
    assert ends(**rates(0.0, 0.5)) > 3e-5


def test_mcm_with_rate_one_and_no_uplink_memory_is_a_synchronous_qafel(task):
    settings = {"local_steps": 2, "server_lr": 0.8, "client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
    mcm = found(task, "mcm", **rates(0.0, 1.0), **settings)
    qafel = found(task, "qafel", **settings)
    np.testing.assert_array_equal(mcm.server.model, qafel.server.model)
