"""The event loop: exact, deterministic, and its bytes are those that crossed."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

from qafel.algorithm import ClientRule, HiddenState, Needs, method
from qafel.algorithm.catch_up import Snapshot
from qafel.algorithm.messages import HEADER_BYTES
from qafel.errors import ConfigError, Stalled
from qafel.rng import Stream
from qafel.simulator import (
    Constant,
    ConstantRate,
    Evaluation,
    Limits,
    Network,
    Rounds,
    Simulation,
    Timing,
    simulate,
)
from qafel.simulator.timing import make_timing
from qafel.tasks import Mushrooms, Quadratic

STEPS = 60


@pytest.fixture(scope="module")
def mushrooms():
    return Mushrooms(20)


def algorithm(name="qafel", **changes):
    return method(name, **{"server_lr": 0.1, "client_lr": 2.0, "local_steps": 3, "buffer_size": 4, **changes})


FOUR_BITS = {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}


def steps(task, count, timing=None, seed=0, every=1, **changes):
    """A simulation after so many server steps."""
    simulation = Simulation(task, algorithm(**changes), timing or Timing(), seed)
    simulation.begin()
    while simulation.server.version < count:
        simulation.advance()
    return simulation


def trained(task, client, start):
    return task.train(client, HiddenState.of(start.copy()), algorithm().local, Stream.named(0, "unused"))


def test_the_loop_follows_a_plain_simulation_bit_for_bit(mushrooms):
    """FedBuff in virtual time, written plainly: no messages, no hidden state class, one list of finish times."""
    found = steps(mushrooms, STEPS, name="fedbuff")
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
        total = total + (start - trained(mushrooms, client, start))
        count += 1
        if count == 4:
            x = x - np.float32(0.1) * (total / np.float32(4))
            hidden = hidden + (x - hidden)
            total, count, version = np.zeros(113, np.float32), 0, version + 1
    np.testing.assert_array_equal(found.server.model, x)
    assert found.clock.now == now
    assert found.traffic.staleness_counts == np.bincount(staleness).tolist()


def test_a_direct_model_may_be_drawn_anew_at_every_start(mushrooms):
    """Direct quantization as in the published neural runs, written plainly: each start has a Q_s(x) of its own."""
    changes = {"name": "fedbuff-direct", "server_quantizer": "qsgd:4", "catch_up": "per-start"}
    found = steps(mushrooms, STEPS, **changes)
    quantizer = found.algorithm.server_quantizer
    durations = iter(np.abs(Stream.named(0, "duration").generator().normal(size=4096)))
    x, starts, drawn_bytes, flights = np.zeros(113, np.float32), [0] * 20, 0, []

    def start(client, now):
        nonlocal drawn_bytes
        payload = quantizer.encode(x, Stream.named(0, "start-quantizer", client, starts[client]))
        drawn_bytes += HEADER_BYTES + len(payload)
        starts[client] += 1
        heapq.heappush(flights, (now + float(next(durations)), sum(starts), client, quantizer.decode(payload, 113)))

    for client in range(20):
        start(client, 0.0)
    total, count, version = np.zeros(113, np.float32), 0, 0
    while version < STEPS:
        now, _, client, received = heapq.heappop(flights)
        start(client, now)
        total = total + (received - trained(mushrooms, client, received))
        count += 1
        if count == 4:
            x = x - np.float32(0.1) * (total / np.float32(4))
            total, count, version = np.zeros(113, np.float32), 0, version + 1
    np.testing.assert_array_equal(found.server.model, x)
    assert found.traffic.received_bytes == drawn_bytes, "every start downloads a message of its own"
    assert found.traffic.broadcasts == STEPS
    shared = steps(mushrooms, STEPS, **changes | {"catch_up": "exact"})
    assert not np.array_equal(found.server.model, shared.server.model)


def test_only_a_whole_model_can_be_drawn_at_a_start():
    with pytest.raises(ConfigError, match='catch_up = "per-start" needs downlink = "direct"'):
        algorithm("qafel", catch_up="per-start")


def test_bytes_are_those_of_the_messages(mushrooms):
    found = Simulation(mushrooms, algorithm(client_quantizer="qsgd:4", server_quantizer="top_k:0.1"), Timing(), 0)
    crossed = []

    class Listening:
        """The server, with every message that passes noted."""

        def __getattr__(self, name):
            return getattr(server, name)

        def receive(self, upload):
            crossed.append(("up", len(upload.to_bytes())))
            return server.receive(upload)

        def step(self, batch):
            broadcast = server.step(batch)
            crossed.append(("down", len(broadcast)))
            return broadcast

    server = found.server
    found.server = Listening()
    found.begin()
    while server.version < 20:
        found.advance()
    up, down = (sum(size for way, size in crossed if way == wanted) for wanted in ("up", "down"))
    assert (found.traffic.upload_bytes, found.traffic.broadcast_bytes) == (up, down)
    assert found.traffic.received_by_all_bytes == 20 * down
    assert found.traffic.uploads == 80
    frame, packed, scale = 64, (113 + 1) // 2, 4
    assert up == 80 * (frame + packed + scale)


def test_an_exact_snapshot_is_what_no_quantizer_and_the_identity_give(mushrooms):
    one, other = (
        steps(mushrooms, 20, **FOUR_BITS),
        steps(mushrooms, 20, **FOUR_BITS, catch_up=Snapshot("none")),
    )
    assert one.server.model.tobytes() == other.server.model.tobytes()
    assert one.traffic == other.traffic
    inexact = steps(mushrooms, 20, **FOUR_BITS, catch_up=Snapshot("qsgd:4"))
    assert inexact.server.model.tobytes() != one.server.model.tobytes()
    assert inexact.traffic.received_bytes < one.traffic.received_bytes / 2


def test_a_client_that_starts_often_pays_at_most_twice_what_it_pays_without_inexact_snapshots():
    """One client and one broadcast between two starts: inexact snapshots until x̂ would have been cheaper, then x̂."""
    task = Mushrooms(1)
    settings = {"buffer_size": 1, "server_quantizer": "top_k:0.01"}
    for count in (2, 5, 20, 100):
        without = steps(task, count, **settings).traffic.received_bytes
        found = steps(task, count, **settings, catch_up=Snapshot("qsgd:8"))
        assert found.traffic.received_bytes <= 2 * without
    assert found.fleet.held[0].exact, "it follows in the end"


def test_the_fleet_and_the_server_hold_the_same_hidden_state(mushrooms):
    for changes in (FOUR_BITS, {"name": "fedbuff-direct", **FOUR_BITS}):
        found = steps(mushrooms, 10, **changes)
        assert found.background.hidden_state.vector.tobytes() == found.server.hidden_state.vector.tobytes()


def test_the_seed_decides_everything(mushrooms):
    def result(seed, every):
        timing, limits = Timing(), Limits(server_steps=STEPS)
        return simulate(
            mushrooms, algorithm(**FOUR_BITS), timing, limits=limits, evaluation=Evaluation(every=every), seed=seed
        ).summary["model_sha256"]

    assert result(1, 1) == result(1, 7)
    assert result(1, 1) != result(2, 1)


def test_global_random_state_is_neither_used_nor_changed(mushrooms):
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    steps(mushrooms, 5, **FOUR_BITS)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def run_rows(task, limits, evaluation=None, timing=None, **changes):
    return simulate(task, algorithm(**changes), timing or Timing(), limits=limits, evaluation=evaluation).history


def test_evaluations_come_at_the_start_every_so_often_and_at_the_end(mushrooms):
    history = run_rows(mushrooms, Limits(server_steps=10), Evaluation(every=4))
    assert history["version"].tolist() == [0, 4, 8, 10]
    history = run_rows(mushrooms, Limits(uploads=25), Evaluation(every=10, unit="uploads"))
    assert history["uploads"].tolist() == [0, 10, 20, 25]


def test_rows_tell_the_staleness_since_the_row_before(mushrooms):
    history = run_rows(mushrooms, Limits(server_steps=30), Evaluation(every=10))
    whole = simulate(
        mushrooms, algorithm(), Timing(), limits=Limits(server_steps=30), evaluation=Evaluation(every=100)
    ).summary["staleness_histogram"]
    total = np.zeros(len(whole))
    for counts in history["staleness_histogram"]:
        total[: len(counts)] += counts
    assert total.tolist() == whole
    assert [sum(counts) for counts in history["staleness_histogram"]] == [0, 40, 40, 40]


@pytest.mark.parametrize(
    ("limits", "column", "least"),
    [
        (Limits(server_steps=7), "version", 7),
        (Limits(uploads=13), "uploads", 13),
        (Limits(virtual_time=2.5), "virtual_time", 2.5),
        (Limits(server_steps=10**9, virtual_time=1.0), "virtual_time", 1.0),
    ],
)
def test_a_run_stops_at_the_first_limit(mushrooms, limits, column, least):
    history = run_rows(mushrooms, limits)
    assert history[column][-1] >= least
    assert history[column][-2] <= least


def test_a_run_stops_at_its_byte_budget_and_at_its_target(mushrooms):
    history = run_rows(mushrooms, Limits(total_bytes=100_000))
    parts = sum(history[f"{part}_bytes_total"][-1] for part in ("upload", "broadcast", "received"))
    assert 100_000 <= history["total_bytes"][-1] == parts < 105_000
    history = run_rows(mushrooms, Limits(server_steps=10_000, at_target=True), Evaluation(target=0.1))
    assert history["metric"][-1] <= 0.1 < history["metric"][-2]
    history = run_rows(mushrooms, Limits(server_steps=10, at_target=True), Evaluation(target=100.0))
    assert history["version"].tolist() == [0], "the start meets it"


def test_a_run_needs_an_end():
    with pytest.raises(ConfigError, match="set at least one of"):
        Limits()


def test_messages_take_time_on_a_thin_line(mushrooms):
    """One client, nothing random: a start costs the download, the training and the upload of real bytes."""
    task = Mushrooms(1)
    timing = Timing(duration=Constant(1.0), network=Network(upload_rate=100.0, download_rate=1000.0, latency=0.25))
    found = steps(task, 2, timing, name="fedbuff", buffer_size=1)
    message = 64 + 4 * 113
    cycle = 0.25 + 1.0 + (0.25 + message / 100)
    assert found.clock.now == pytest.approx(message / 1000 + 2 * cycle), "it starts again before its update's step"
    quick = steps(task, 2, timing, buffer_size=1, **FOUR_BITS)
    assert quick.clock.now < found.clock.now / 2


def test_clients_have_their_own_speed_and_bandwidth():
    network = make_timing(Timing(network=Network(upload_rate=100.0, spread=1.0)), 0, 5).network
    times = [network.upload_time(client, 1000) for client in range(5)]
    assert len(set(times)) == 5
    assert network.download_time(0, 1000) == 0
    given = Network(upload_rate=100.0, spread=1.0, rate_factors=[2.0] * 5)
    faster = make_timing(Timing(network=given), 0, 5).network
    assert [faster.upload_time(client, 1000) for client in range(5)] == [time / 2 for time in times]
    timing = Timing(duration=Constant(2.0), duration_factors=[1.0, 3.0], per_example=0.5)
    found = Simulation(Quadratic(2, 5), algorithm(), timing, 0)
    assert [found._duration(client, 0) for client in (0, 1)] == [2.5, 6.5]


def test_who_drops_out_never_reports(mushrooms):
    found = steps(mushrooms, 50, Timing(dropout=0.5))
    assert found.traffic.uploads == 200
    assert 350 < found.starts < 480
    assert found.in_flight == 20


def test_beyond_the_concurrency_limit_clients_are_turned_away(mushrooms):
    arrivals = ConstantRate(rate=100.0)
    found = steps(mushrooms, 20, Timing(duration=Constant(1.0), arrivals=arrivals, max_concurrency=7))
    assert found.in_flight <= 7
    assert found.turned_away > 0


def test_constant_arrivals_give_the_papers_concurrency():
    """Rate × √(2/π): 125 arrivals a second make about 100 in flight."""
    found = steps(Quadratic(5000, 3), 100, Timing(arrivals=ConstantRate(rate=125.0)))
    assert found.in_flight == pytest.approx(125 * np.sqrt(2 / np.pi), rel=0.15)


def test_a_users_own_arrival_law_is_an_iterable(mushrooms):
    arrivals = [(0.5 * number, number % 3) for number in range(40)]
    history = run_rows(mushrooms, Limits(server_steps=100), timing=Timing(duration=Constant(0.1), arrivals=arrivals))
    assert history["uploads"][-1] == 40, "the run ends when nobody comes any more"
    assert history["virtual_time"][-1] == pytest.approx(39 * 0.5 + 0.1)


def test_a_round_ends_with_its_slowest_client(mushrooms):
    found = steps(mushrooms, 1, Timing(arrivals=Rounds()), name="fedavg", local_steps=3)
    drawn = np.abs(Stream.named(0, "duration").generator().normal(size=4096))[:4]
    assert found.clock.now == pytest.approx(max(drawn))
    assert found.server.version == 1


def test_over_selection_waits_for_the_fastest_and_takes_no_more(mushrooms):
    timing = Timing(arrivals=Rounds(over_selection=1.0))
    found = steps(mushrooms, 30, timing, name="fedavg")
    assert found.traffic.uploads == 120
    assert found.server.rejected["stale"] > 0
    assert found.traffic.upload_bytes == (120 + found.traffic.rejected_uploads) * (64 + 4 * 113)
    assert found.traffic.staleness_counts == [120]


def test_a_round_that_times_out_steps_with_what_it_has(mushrooms):
    found = steps(mushrooms, 20, Timing(arrivals=Rounds(timeout=0.5)), name="fedavg")
    assert found.clock.now <= 0.5 * found.rounds
    assert found.traffic.uploads < 80


class DurationOf:
    """A duration law from a function of client and number."""

    def __init__(self, draw):
        self.draw = draw


@pytest.mark.parametrize("name", ["fedavg", "mcm"])
def test_an_upload_of_a_round_that_ended_empty_is_late(name):
    """Nobody of round 1 is in time. In round 2, client 0 is faster than its first upload."""
    law = DurationOf(lambda client, number: [1.5, 9.0, 0.4, 9.0][number] if number < 4 else 0.5)
    timing = Timing(duration=law, arrivals=Rounds(timeout=1.0))
    found = steps(Quadratic(2, 5), 1, timing, name=name, buffer_size=2, client_lr=0.1)
    assert found.rounds == 3
    assert found.traffic.uploads == 1
    assert found.server.rejected["stale"] == 1
    if name == "mcm":
        mean = np.mean([found.fleet.memory(client)["h"] for client in range(2)], axis=0)
        np.testing.assert_allclose(found.server.accumulator.memory, mean, atol=1e-7)
        assert np.abs(mean).max() > 0


class Counting(ClientRule):
    """Counts the accepted uploads of a client."""

    needs = Needs(client_memory=True)

    def new_memory(self, size):
        return {"count": np.zeros(1, np.float32)}

    def vector(self, start, trained, memory):
        return start.vector - trained.model

    def following(self, start, trained, memory, sent):
        return {"count": memory["count"] + np.float32(1)}


def test_a_round_starts_no_client_whose_memory_is_in_flight():
    law = DurationOf(lambda client, number: 1.0 if client else 2.5)
    timing = Timing(duration=law, arrivals=Rounds(over_selection=1.34))
    found = steps(Quadratic(4, 5), 20, timing, client_rule=Counting(), buffer_size=3, client_lr=0.1)
    counts = [float(found.fleet.memory(client)["count"][0]) for client in range(4)]
    assert found.traffic.rejected_uploads == 0
    assert counts[0] > 1
    assert sum(counts) == found.traffic.uploads


def test_a_last_step_without_an_upload_is_measured(mushrooms):
    """Every upload is measured as it comes; the round then steps by its timeout."""
    timing = Timing(arrivals=Rounds(timeout=0.5))
    history = run_rows(mushrooms, Limits(server_steps=5), Evaluation(every=1, unit="uploads"), timing, name="fedavg")
    assert history["version"][-1] == 5
    assert history["uploads"][-1] == history["uploads"][-2]


class Recording:
    """A task that remembers how many steps each training was asked for."""

    def __init__(self, task, samples=None):
        self.task, self.asked = task, []
        self.samples = samples or task.samples

    def __getattr__(self, name):
        return getattr(self.task, name)

    def train(self, client, start, local, stream):
        self.asked.append((client, local.steps_for(self.samples(client))))
        return self.task.train(client, start, replace(local, batch_size=None), stream)


def test_fedprox_takes_partial_work_in_time(mushrooms):
    task, timing = Recording(mushrooms), Timing(duration=Constant(2.0), arrivals=Rounds(timeout=1.0))
    found = steps(task, 5, timing, name="fedprox", local_steps=4)
    assert found.traffic.uploads == 20, "all are in time, with half of their steps"
    assert {done for _, done in task.asked} == {2}
    assert found.clock.now == pytest.approx(5.0)


def test_fedprox_does_the_part_of_an_epoch_that_it_is_charged_for():
    """Two epochs of as many batches as a client has; in 0.8 of the time, whole batches, never a whole epoch more."""
    plain = Quadratic(12, 4)
    task = Recording(plain, lambda client: 10 * (client + 1))
    timing = Timing(duration=Constant(1.0), arrivals=Rounds(timeout=0.8))
    found = steps(task, 6, timing, name="fedprox", local_steps=None, local_epochs=2, batch_size=10)
    assert len(task.asked) == 24
    for client, done in task.asked:
        assert done == int(0.8 * 2 * (client + 1)), "of 2 · (client + 1) batches"
    # The last of a round is the one whose batches fill 0.8 best; it is charged for these alone.
    assert found.clock.now <= 6 * 0.8
    shares = np.array([done / (2 * (client + 1)) for client, done in task.asked]).reshape(6, 4)
    assert found.clock.now == pytest.approx(shares.max(axis=1).sum())


def test_fedprox_without_time_for_one_step_sends_nothing_and_is_counted(mushrooms):
    task, timing = Recording(mushrooms), Timing(arrivals=Rounds(timeout=0.3))
    found = steps(task, 30, timing, name="fedprox", local_steps=4)
    drawn = np.abs(Stream.named(0, "duration").generator().normal(size=4096))[: 4 * found.rounds]
    expected = np.minimum(4, np.floor(4 * 0.3 / drawn)).astype(int)
    assert found.out_of_time == (expected == 0).sum() > 0
    ended = expected[:-4]  # the last round has just begun
    assert sorted(done for _, done in task.asked) == sorted(ended[ended > 0])
    assert found.traffic.uploads == len(task.asked)


def test_a_client_whose_download_outlasts_the_deadline_trains_nothing(mushrooms):
    timing = Timing(duration=Constant(1.0), arrivals=Rounds(timeout=1.0), network=Network(latency=0.6))
    simulation = Simulation(mushrooms, algorithm("fedprox", local_steps=4), timing, 0)
    simulation.begin()
    with pytest.raises(Stalled, match="1000 rounds ended without an update: set a longer timing.round_timeout"):
        [simulation.advance() for _ in range(6000)]
    assert simulation.traffic.uploads == simulation.executor.training_s == 0
    assert simulation.out_of_time == 4000


def test_a_round_that_can_never_end_says_so(mushrooms):
    timing = Timing(arrivals=Rounds(), dropout=0.9)
    with pytest.raises(Stalled, match="round_timeout"):
        run_rows(mushrooms, Limits(server_steps=20), timing=timing, name="fedavg")
    with pytest.raises(ConfigError, match="a round of 21 needs as many clients"):
        steps(mushrooms, 1, Timing(arrivals=Rounds()), name="fedavg", buffer_size=21)


def test_weights_follow_the_samples():
    task = Mushrooms(7)
    found = Simulation(task, algorithm(client_weights="samples"), Timing(), 0)
    samples = np.array([task.samples(client) for client in range(7)])
    np.testing.assert_allclose(found._weights, samples / samples.mean())


def test_memory_is_one_vector_per_version_in_flight():
    """Clients in flight share the versions they started from: many clients, few vectors."""
    found = steps(Quadratic(2000, 4), 3, Timing(), buffer_size=500)
    vectors = {id(event.start.vector) for _, _, _, event in found.clock.entries()}
    assert len(found.clock) == 2000
    assert len(vectors) <= 4
