"""The server against the plain reading of the paper, and what it refuses."""

import numpy as np
import pytest

from qafel.algorithm import Client, HiddenState, LocalTraining, Message, PolynomialStaleness, Server, make_upload, wire
from qafel.config import Config
from qafel.errors import ConfigError, DuplicateUpload, FutureUpload, NonFiniteVector, StaleUpload
from qafel.params import Vector
from qafel.quantizers import parse
from qafel.rng import Stream
from tests.algorithm import reference

SIZE, SEED = 50, 7
LOCAL = LocalTraining(0.5, 1)


def settings(**changes):
    return {"server_lr": 0.3, "local": LOCAL, "buffer_size": 4, **changes}


def pull_towards(client: int):
    """A client whose training moves halfway to a point of its own."""
    goal = np.random.default_rng(client).normal(size=SIZE).astype(np.float32)

    def train(start: Vector, stream: Stream) -> Vector:
        return start + np.float32(0.5) * (goal - start)

    return train


class Mean:
    """An own aggregation."""

    def aggregate(self, updates, weights):
        return updates.mean(axis=0)


def schedule(updates: int):
    """(client, how many versions old its start is), the same in every test."""
    generator = np.random.default_rng(SEED)
    return [(int(generator.integers(9)), int(generator.integers(4))) for _ in range(updates)]


def drive(algorithm, updates=60):
    """The server under test, fed by clients that start from older hidden states; returns every (x, x̂) by version."""
    server = Server(np.ones(SIZE, np.float32), algorithm, SEED)
    states, history = [server.hidden_state], [(server.model.copy(), server.hidden_state.vector)]
    for sequence, (client, age) in enumerate(schedule(updates)):
        start = states[max(0, len(states) - 1 - age)]
        trained = pull_towards(client)(start.vector, Stream.named(0, "unused"))
        stream = Stream.named(SEED, "client-quantizer", client, sequence)
        upload = make_upload(start, trained, algorithm, stream, client=client, sequence=sequence, weight=1 + client / 8)
        if server.receive(Message.from_bytes(upload)).broadcast is not None:
            states.append(server.hidden_state)
            history.append((server.model.copy(), server.hidden_state.vector))
    return history


@pytest.mark.parametrize("quantizer", ["none", "qsgd:4", "top_k:0.1", "rotated:4", "trellis:2"])
@pytest.mark.parametrize("aggregation", ["mean", "weighted-mean", "median", Mean()])
def test_an_update_that_was_decoded_before_counts_to_the_same_bit(quantizer, aggregation):
    chosen = settings(aggregation=aggregation, client_quantizer=parse(quantizer), staleness=PolynomialStaleness(0.5))
    algorithm = wire("qafel", server_quantizer=parse("qsgd:4"), **chosen)
    servers = [Server(np.ones(SIZE, np.float32), algorithm, SEED) for _ in range(2)]
    start = servers[0].hidden_state
    for sequence, (client, _) in enumerate(schedule(20)):
        trained = pull_towards(client)(start.vector, Stream.named(0, "unused"))
        stream = Stream.named(SEED, "client-quantizer", client, sequence)
        weight, factor = 1 + client / 8, (1.0, 0.37)[sequence % 2]
        upload = make_upload(start, trained, algorithm, stream, client=client, sequence=sequence, weight=weight)
        message = Message.from_bytes(upload)
        servers[0].receive(message, factor)
        servers[1].receive(message, factor, algorithm.client_quantizer.decode(message.payload, SIZE))
        assert servers[0].buffer.total.tobytes() == servers[1].buffer.total.tobytes()
    assert servers[0].version == 5
    assert servers[0].model.tobytes() == servers[1].model.tobytes()
    assert servers[0].hidden_state.digest == servers[1].hidden_state.digest


def reference_updates(algorithm, updates=60):
    quantizer = algorithm.client_quantizer
    for sequence, (client, age) in enumerate(schedule(updates)):

        def update(hidden, client=client, age=age, sequence=sequence):
            version = max(0, len(hidden) - 1 - age)
            delta = hidden[version] - pull_towards(client)(hidden[version], Stream.named(0, "unused"))
            stream = Stream.named(SEED, "client-quantizer", client, sequence)
            return quantizer.decode(quantizer.encode(delta.astype(np.float32), stream), SIZE), version, 1 + client / 8

        yield update


@pytest.mark.parametrize("client_spec", ["none", "qsgd:4"])
@pytest.mark.parametrize("server_spec", ["none", "qsgd:4", "top_k:0.1", "qsgd:levels=8,norm=l2,bucket=none"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_server_follows_the_paper_bit_for_bit(client_spec, server_spec, momentum):
    algorithm = wire(
        "qafel",
        **settings(
            client_quantizer=client_spec,
            server_quantizer=server_spec,
            server_momentum=momentum,
            staleness=PolynomialStaleness(0.5),
        ),
    )

    def quantize_server(vector, version):
        payload = algorithm.server_quantizer.encode(vector, Stream.named(SEED, "server-quantizer", number=version))
        return algorithm.server_quantizer.decode(payload, SIZE)

    expected = reference.qafel(
        np.ones(SIZE),
        reference_updates(algorithm),
        buffer_size=4,
        server_lr=0.3,
        momentum=momentum,
        quantize_server=quantize_server,
        staleness_weight=lambda tau: 1 / np.sqrt(1 + tau),
    )
    found = drive(algorithm)
    assert len(found) == len(expected) == 16
    for (x, hidden), (expected_x, expected_hidden) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, expected_x)
        np.testing.assert_array_equal(hidden, expected_hidden)


def test_fedbuff_equals_qafel_with_identity_quantizers_bit_for_bit():
    fedbuff = drive(wire("fedbuff", **settings()))
    qafel = drive(wire("qafel", **settings(client_quantizer="none", server_quantizer="none")))
    for one, other in zip(fedbuff, qafel, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fedbuff_follows_its_own_paper():
    """Within float32's rounding, as the reference has no hidden state and computes in float64."""
    algorithm = wire("fedbuff", **settings())
    expected = reference.fedbuff(np.ones(SIZE), reference_updates(algorithm), buffer_size=4, server_lr=0.3)
    for (x, hidden), expected_x in zip(drive(algorithm), expected, strict=True):
        np.testing.assert_allclose(x, expected_x, rtol=0, atol=2e-6)
        np.testing.assert_allclose(hidden, expected_x, rtol=0, atol=2e-6)


def test_fedasync_mixes_models_as_its_own_paper_says():
    law = PolynomialStaleness(0.5)
    algorithm = wire("fedasync", server_lr=0.6, local=LOCAL, staleness=law)
    server = Server(np.ones(SIZE, np.float32), algorithm, SEED)
    states, jobs = [server.hidden_state], []
    for sequence, (client, age) in enumerate(schedule(40)):
        version = max(0, len(states) - 1 - age)
        jobs.append((lambda start, client=client: pull_towards(client)(start, None), version))
        trained = pull_towards(client)(states[version].vector, Stream.named(0, "unused"))
        stream = Stream.named(SEED, "client-quantizer")
        upload = make_upload(states[version], trained, algorithm, stream, client=client, sequence=sequence)
        assert server.receive(Message.from_bytes(upload)).broadcast is not None
        states.append(server.hidden_state)
    expected = reference.fedasync(np.ones(SIZE), jobs, alpha=0.6, staleness_weight=law)
    np.testing.assert_allclose(server.model, expected[-1], rtol=0, atol=2e-6)


def test_sum_is_mean_with_a_learning_rate_larger_by_k():
    mean = drive(wire("qafel", **settings(server_lr=0.4)))
    total = drive(wire("qafel", **settings(server_lr=0.1, aggregation="sum")))
    np.testing.assert_allclose(mean[-1][0], total[-1][0], rtol=1e-5)


def test_weighted_mean_divides_by_the_clients_weights():
    algorithm = wire("fedbuff", server_lr=1.0, local=LOCAL, buffer_size=2, aggregation="weighted-mean")
    server = Server(np.zeros(SIZE, np.float32), algorithm, SEED)
    for client, weight in ((1, 1.0), (2, 3.0)):
        trained = np.full(SIZE, -client, np.float32)
        upload = make_upload(
            server.hidden_state, trained, algorithm, Stream.named(0, "q"), client=client, sequence=0, weight=weight
        )
        server.receive(Message.from_bytes(upload))
    np.testing.assert_allclose(server.model, -(1 * 1 + 3 * 2) / 4)


def test_direct_quantization_sends_the_model_itself():
    algorithm = wire("fedbuff-direct", **settings(server_quantizer="top_k:0.1"))
    for x, hidden in drive(algorithm)[1:]:
        kept = np.flatnonzero(hidden)
        assert kept.size == 5
        np.testing.assert_array_equal(hidden[kept], x[kept])
        assert np.abs(x[kept]).min() >= np.abs(np.delete(x, kept)).max()


def one_client(**changes):
    algorithm = wire("qafel", **settings(**changes))
    server = Server(np.zeros(SIZE, np.float32), algorithm, SEED)
    return server, Client(1, server.hidden_state, algorithm, SEED)


def test_an_update_is_counted_once():
    server, client = one_client()
    upload = client.update(pull_towards(1))
    server.receive(Message.from_bytes(upload))
    with pytest.raises(DuplicateUpload, match="taken before"):
        server.receive(Message.from_bytes(upload))
    assert server.buffer.count == 1
    assert server.rejected == {"duplicate": 1}


def test_uploads_of_one_client_may_arrive_out_of_order():
    server, client = one_client(buffer_size=100)
    uploads = [client.update(pull_towards(1)) for _ in range(70)]
    for upload in reversed(uploads[6:]):
        server.receive(Message.from_bytes(upload))
    for upload in uploads:
        with pytest.raises(DuplicateUpload):
            server.receive(Message.from_bytes(upload))
    assert server.buffer.count == 64


def test_updates_from_the_future_or_too_stale_are_refused_and_counted():
    server, client = one_client(buffer_size=1, max_staleness=1)
    late = [client.update(pull_towards(1)) for _ in range(3)]
    server.receive(Message.from_bytes(late[0]))
    server.receive(Message.from_bytes(late[1]))
    with pytest.raises(StaleUpload, match="staleness 2 is above the maximum, 1"):
        server.receive(Message.from_bytes(late[2]))
    client.hidden_state = HiddenState.of(np.zeros(SIZE, np.float32), version=9)
    with pytest.raises(FutureUpload, match="version 9, the server is at 2"):
        server.receive(Message.from_bytes(client.update(pull_towards(1))))
    assert server.rejected == {"stale": 1, "future": 1}
    assert server.version == 2


def test_a_diverging_model_is_named():
    server, client = one_client(buffer_size=1, server_lr=1e38)
    with pytest.raises(NonFiniteVector, match="server model 1 .* lower the learning rates"):
        server.receive(Message.from_bytes(client.update(lambda start, stream: start + np.float32(1e10))))


def test_a_client_refuses_to_send_what_is_not_finite():
    _, client = one_client(client_quantizer="qsgd:4")
    with pytest.raises(NonFiniteVector):
        client.update(lambda start, stream: start * np.float32(np.nan))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"server_lr": 0.0}, "server learning rate is positive"),
        ({"buffer_size": 0}, "at least one update"),
        ({"server_momentum": 1.0}, "momentum lies in"),
        ({"max_staleness": -1}, "zero or more"),
        ({"aggregation": "mode"}, "aggregation is one of"),
        ({"upload": "gradient"}, "upload is one of"),
        ({"memory_rate": 0.0}, "memory_rate lies in"),
        ({"memory_rate": "omega"}, "memory_rate lies in"),
        ({"uplink_memory_rate": 1.5}, "uplink_memory_rate lies in"),
        ({"snapshot_quantizer": "qsgd:4", "memory_rate": 0.5}, "a snapshot_quantizer needs .* no memories"),
        ({"snapshot_quantizer": "qsgd:4", "upload": "model"}, 'needs upload = "update"'),
        ({"snapshot_quantizer": "qsgd4"}, "unknown quantizer 'qsgd4'"),
        ({"uplink_memory_rate": 0.5}, "an uplink memory needs the plain mean of updates, in rounds"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        wire("qafel", **settings(**change))


def test_methods_where_an_inexact_start_would_last_refuse_a_snapshot_quantizer():
    for preset in ("fedbuff-direct", "mcm"):
        with pytest.raises(
            ConfigError, match=f"a snapshot_quantizer needs a hidden state .* no memories .*; {preset} has others"
        ):
            wire(preset, snapshot_quantizer="qsgd:4")
    with pytest.raises(ConfigError, match='needs upload = "update": .*; fedasync has "model"'):
        wire("fedasync", snapshot_quantizer="qsgd:4")
    assert wire("fedbuff", snapshot_quantizer="qsgd:4").snapshot_quantizer.spec == "qsgd:4"
    assert wire("fedasync", snapshot_quantizer="none").snapshot_quantizer is None


def test_presets_refuse_what_contradicts_them():
    with pytest.raises(ConfigError, match="fedbuff has client_quantizer = 'none' by definition"):
        wire("fedbuff", **settings(client_quantizer="qsgd:4"))
    with pytest.raises(ConfigError, match="fedasync has buffer_size = 1"):
        wire("fedasync", **settings())
    with pytest.raises(ConfigError, match="unknown algorithm 'fedsync'"):
        wire("fedsync", **settings())


def test_the_rates_of_mcms_memories_follow_from_its_quantizers():
    algorithm = wire("mcm", **settings(client_quantizer="rand_k:0.1", server_quantizer="rand_k:0.25"))
    assert algorithm.uplink_rate(100) == pytest.approx(1 / (2 * 10))
    assert algorithm.downlink_rate(100) == pytest.approx(1 / (2 * 4))
    with pytest.raises(ConfigError, match="told how many clients there are"):
        Server(np.ones(100, np.float32), algorithm, 0)

    class Mine:
        def encode(self, vector, stream):
            return b""

        decode = encode

        def unbiased(self, size):
            return True

        def omega(self, size):
            return np.inf

    with pytest.raises(ConfigError, match="Mine has no bound ω"):
        wire("mcm", **settings(server_quantizer=Mine())).downlink_rate(100)


def test_qafel_sends_four_bits_unless_told_otherwise():
    qafel, fedbuff = wire("qafel"), wire("fedbuff")
    assert (qafel.client_quantizer.spec, qafel.server_quantizer.spec) == ("trellis:4", "trellis:4")
    assert (fedbuff.client_quantizer.spec, fedbuff.server_quantizer.spec) == ("none", "none")
    assert Config.from_dict({"task": {"name": "quadratic"}}).algorithm.client_quantizer == "trellis:4"
    assert wire("qafel", client_quantizer="none").client_quantizer.spec == "none"


def test_presets_are_wiring():
    def wired(preset, **changes):
        algorithm = wire(preset, server_lr=1.0, local=LOCAL, **changes)
        return algorithm.buffer_size, algorithm.broadcast, algorithm.upload

    assert wired("qafel") == (10, "difference", "update")
    assert wired("fedbuff") == (10, "difference", "update")
    assert wired("fedasync") == (1, "difference", "model")
    assert wired("fedasync", upload="update") == (1, "difference", "update")
    assert wired("fedbuff-direct") == (10, "model", "update")
    assert wired("fedasync-direct") == (1, "model", "update")
    assert wired("fedasync-hidden") == (1, "difference", "update")


def test_staleness_weighs_as_told():
    law = PolynomialStaleness(0.5)
    assert [law(tau) for tau in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert [PolynomialStaleness(1.0, cutoff=4)(tau) for tau in (0, 4, 5)] == [1.0, 1.0, 0.5]
    assert PolynomialStaleness()(1000) == 1.0
    with pytest.raises(ConfigError, match="exponent"):
        PolynomialStaleness(-1.0)
    with pytest.raises(ConfigError, match="cut-off"):
        PolynomialStaleness(1.0, cutoff=-1)


def test_quantizers_may_be_objects():
    quantizer = parse("qsgd:4")
    assert wire("qafel", **settings(client_quantizer=quantizer)).client_quantizer is quantizer
