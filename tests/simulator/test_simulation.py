"""The event loop: exact, deterministic, and its bytes are those that crossed."""

import heapq
import json
from dataclasses import asdict

import numpy as np
import pytest

from qafel.algorithm import LocalTraining, wire
from qafel.config import Config, load_recipe
from qafel.rng import Stream
from qafel.simulator import HalfNormal, Simulation, run
from qafel.tasks import Mushrooms

STEPS = 60


@pytest.fixture(scope="module")
def mushrooms():
    return Mushrooms(20)


def simulation(task, seed=0, preset="qafel", every=1, **changes):
    settings = {"server_lr": 0.1, "local": LocalTraining(2.0, 3), "buffer_size": 4, **changes}
    return Simulation(task, wire(preset, **settings), HalfNormal(seed), seed, evaluate_every=every)


def test_the_loop_follows_a_plain_simulation_bit_for_bit(mushrooms):
    """FedBuff in virtual time, written plainly: no messages, no hidden state class, one list of finish times."""
    found = simulation(mushrooms, preset="fedbuff")
    rows = list(found.rows(STEPS))

    durations = iter(np.abs(Stream.named(0, "duration").generator().normal(size=4096)))
    x = hidden = np.zeros(113, np.float32)
    flights = [(float(next(durations)), order, client, hidden, 0) for order, client in enumerate(range(20))]
    heapq.heapify(flights)
    total, count, version, order, staleness = np.zeros(113, np.float32), 0, 0, 20, []
    while version < STEPS:
        now, _, client, start, started = heapq.heappop(flights)
        heapq.heappush(flights, (now + float(next(durations)), order, client, hidden, version))
        order += 1
        staleness.append(version - started)
        total = total + (start - mushrooms.train(client, start, LocalTraining(2.0, 3), Stream.named(0, "unused")))
        count += 1
        if count == 4:
            x = x - np.float32(0.1) * (total / np.float32(4))
            hidden = hidden + (x - hidden)
            total, count, version = np.zeros(113, np.float32), 0, version + 1
    np.testing.assert_array_equal(found.server.model, x)
    assert found.clock.now == now == rows[-1].virtual_time
    assert rows[-1].staleness_mean == pytest.approx(np.mean(staleness))
    assert rows[-1].staleness_max == max(staleness)
    assert found.traffic.staleness_counts == np.bincount(staleness).tolist()


def test_bytes_are_those_of_the_messages(mushrooms):
    found = simulation(mushrooms, client_quantizer="qsgd:4", server_quantizer="top_k:0.1")
    *_, last = found.rows(STEPS)
    assert last.uploads == STEPS * 4
    frame, packed, scale = 64, (113 + 1) // 2, 4
    assert last.upload_bytes_total == STEPS * 4 * (frame + packed + scale)
    logged = [data for _, data in found.server.log._entries]
    assert last.broadcast_bytes_total == sum(map(len, logged))
    assert last.received_bytes_total == 20 * last.broadcast_bytes_total


def test_the_fleet_and_the_server_hold_the_same_hidden_state(mushrooms):
    found = simulation(mushrooms, client_quantizer="qsgd:4", server_quantizer="qsgd:4")
    for _ in found.rows(STEPS):
        assert found.fleet.vector.tobytes() == found.server.hidden_state.vector.tobytes()


def test_the_seed_decides_everything(mushrooms):
    def result(seed, every):
        found = simulation(mushrooms, seed, every=every, client_quantizer="qsgd:4", server_quantizer="qsgd:4")
        list(found.rows(STEPS))
        return found.server.model.tobytes()

    assert result(1, 1) == result(1, 7)
    assert result(1, 1) != result(2, 1)


def test_global_random_state_is_neither_used_nor_changed(mushrooms):
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    list(simulation(mushrooms, client_quantizer="qsgd:4").rows(5))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_evaluations_come_at_the_start_every_so_often_and_at_the_end(mushrooms):
    assert [row.version for row in simulation(mushrooms, every=4).rows(10)] == [0, 4, 8, 10]


def test_weights_follow_the_samples():
    task = Mushrooms(7)
    algorithm = wire("qafel", server_lr=0.1, local=LocalTraining(2.0, 1))
    found = Simulation(task, algorithm, HalfNormal(0), 0, weigh_by_samples=True)
    samples = np.array([task.samples(client) for client in range(7)])
    np.testing.assert_allclose(found.weights, samples / samples.mean())


def test_draws_are_numbered():
    once, again = HalfNormal(3), HalfNormal(3)
    forwards = [once.draw(number) for number in range(5000)]
    assert [again.draw(number) for number in (4999, 0, 4096)] == [forwards[4999], forwards[0], forwards[4096]]
    assert min(forwards) >= 0
    assert np.mean(forwards) == pytest.approx(np.sqrt(2 / np.pi), abs=0.05)


def short(recipe, **changes):
    data = load_recipe(recipe, ["stop.server_steps=200"]).model_dump()
    return Config.from_dict({**data, **changes})


def test_a_run_directory_holds_what_a_reader_needs(tmp_path):
    config = short("mushrooms-qafel-4bit", evaluation={"every": 10, "target": 0.3})
    seen = []
    summary = run(config, tmp_path / "run", seen.append)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "summary.json",
        "model.safetensors",
    }
    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert rows == [asdict(row) for row in seen]
    assert Config.from_toml((tmp_path / "run/config.toml").read_text(), "saved") == config
    first = next(row for row in rows if row["metric"] <= 0.3)
    assert (summary["uploads_to_target"], summary["virtual_time_to_target"]) == (
        first["uploads"],
        first["virtual_time"],
    )
    assert summary["metric_final"] == rows[-1]["metric"]
    assert summary["metric_best"] == min(row["metric"] for row in rows)
    assert summary["status"] == "finished"
    assert 0 <= summary["overhead_share"] <= 1


def test_the_saved_model_is_the_servers(tmp_path):
    import hashlib

    import safetensors.numpy

    summary = run(short("mushrooms-fedbuff"), tmp_path)
    (saved,) = safetensors.numpy.load_file(tmp_path / "model.safetensors").values()
    assert hashlib.sha256(saved.tobytes()).hexdigest() == summary["model_sha256"]


def test_a_diverging_run_ends_with_what_it_has(tmp_path):
    config = short("mushrooms-fedbuff", algorithm={"preset": "fedbuff", "server_lr": 1e30, "client_lr": 1e30})
    summary = run(config, tmp_path)
    assert summary["status"] == "diverged"
    assert summary["server_steps"] < 200
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") >= 1


def test_the_papers_claims_on_mushrooms_hold(tmp_path):
    def reached(recipe):
        return run(load_recipe(recipe, ["evaluation.every=1000"]), tmp_path / recipe)["metric_final"]

    fedbuff = reached("mushrooms-fedbuff")
    assert reached("mushrooms-qafel-qsgd") < 1.15 * fedbuff
    assert reached("mushrooms-qafel-topk") < 1.15 * fedbuff
    assert reached("mushrooms-qafel-4bit") < 1.15 * fedbuff
    assert reached("mushrooms-direct-qsgd") > 5 * fedbuff
    assert reached("mushrooms-direct-topk") > 20 * fedbuff
