"""Each synchronous method against an independent, plain implementation in float64."""

import numpy as np
import pytest

from qafel.algorithm import wire
from qafel.rng import Stream
from qafel.simulator import HalfNormal, Rounds, Simulation, Timing
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


def found(task, preset, **settings):
    algorithm = wire(preset, **{"buffer_size": COHORT, "client_lr": 0.5, **settings})
    simulation = Simulation(task, algorithm, Timing(HalfNormal(0), Rounds()), 0)
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


def test_mcm(task, parts):
    """Philippenko & Dieuleveut 2021: w exact at the server, ŵ = h + Ω at the clients, h ← h + αΩ."""
    alpha, lr, server_lr = 0.3, 0.5, 0.8
    simulation = found(
        task,
        "mcm",
        local_steps=1,
        server_lr=server_lr,
        memory_rate=alpha,
        client_quantizer="qsgd:4",
        server_quantizer="qsgd:4",
    )
    up, down = simulation.algorithm.client_quantizer, simulation.algorithm.server_quantizer
    model = estimate = memory = np.zeros(113)
    sequences = np.zeros(CLIENTS, int)
    for number, cohort in enumerate(cohorts()):
        compressed = []
        for client in cohort:
            stream = Stream.named(0, "client-quantizer", client, int(sequences[client]))
            sequences[client] += 1
            step = (lr * gradient(estimate, *parts[client])).astype(np.float32)
            compressed.append(up.decode(up.encode(step, stream), 113).astype(np.float64))
        model = model - server_lr * np.mean(compressed, axis=0)
        stream = Stream.named(0, "server-quantizer", number=number)
        omega = down.decode(down.encode((model - memory).astype(np.float32), stream), 113).astype(np.float64)
        estimate, memory = memory + omega, memory + alpha * omega
    # Rounding may tip a coordinate to the neighbouring level; the trajectories stay within a level's width.
    np.testing.assert_allclose(simulation.server.model, model, atol=2e-2)
    np.testing.assert_allclose(simulation.clients_hidden_state.vector, estimate, atol=5e-2)
    assert np.linalg.norm(simulation.server.model - model) < 0.05 * np.linalg.norm(model)


def test_mcm_with_rate_one_is_a_synchronous_qafel(task):
    settings = {"local_steps": 2, "server_lr": 0.8, "client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
    mcm = found(task, "mcm", memory_rate=1.0, **settings)
    qafel = found(task, "qafel", **settings)
    np.testing.assert_array_equal(mcm.server.model, qafel.server.model)
