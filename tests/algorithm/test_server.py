"""The server against the plain reading of the paper, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from qafel.algorithm import (
    Client,
    HiddenState,
    Kept,
    Kind,
    LocalTraining,
    Message,
    Needs,
    Next,
    PolynomialStaleness,
    Server,
    method,
    require_provided,
    save_server,
)
from qafel.algorithm.catch_up import Snapshot
from qafel.config import Config
from qafel.errors import ConfigError, DuplicateUpload, FutureUpload, NonFiniteVector, StaleUpload
from qafel.params import Vector
from qafel.quantizers import parse
from qafel.rng import Stream
from tests.algorithm import reference
from tests.uploads import receive, upload_of

SIZE, SEED = 50, 7
LOCAL = LocalTraining(0.5, 1)


def settings(**changes):
    return {"server_lr": 0.3, "local": LOCAL, "buffer_size": 4, **changes}


def pull_towards(client: int):
    """A client whose training moves halfway to a point of its own."""
    goal = np.random.default_rng(client).normal(size=SIZE).astype(np.float32)

    def train(start: Vector) -> Vector:
        return start + np.float32(0.5) * (goal - start)

    return train


def training(client: int):
    """The same as `Client.update` takes it."""
    return lambda start, local, stream: pull_towards(client)(start.vector)


class Mean(Kept):
    """A custom accumulator."""

    def combine(self, uploads, updates, weights):
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
        trained, weight = pull_towards(client)(start.vector), 1 + client / 8
        upload = upload_of(start, trained, algorithm, client=client, sequence=sequence, weight=weight, seed=SEED)
        if receive(server, upload) is not None:
            states.append(server.hidden_state)
            history.append((server.model.copy(), server.hidden_state.vector))
    return history


@pytest.mark.parametrize("quantizer", ["none", "qsgd:4", "top_k:0.1", "rotated:4", "trellis:2"])
@pytest.mark.parametrize("accumulator", ["mean", "weighted-mean", "median", Mean()])
def test_an_update_that_was_decoded_before_counts_to_the_same_bit(quantizer, accumulator):
    chosen = settings(accumulator=accumulator, client_quantizer=parse(quantizer), staleness=PolynomialStaleness(0.5))
    algorithm = method("qafel", server_quantizer=parse("qsgd:4"), **chosen)
    servers = [Server(np.ones(SIZE, np.float32), algorithm, SEED) for _ in range(2)]
    start = servers[0].hidden_state
    for sequence, (client, _) in enumerate(schedule(20)):
        trained = pull_towards(client)(start.vector)
        weight, factor = 1 + client / 8, (1.0, 0.37)[sequence % 2]
        upload = upload_of(start, trained, algorithm, client=client, sequence=sequence, weight=weight, seed=SEED)
        decoded = algorithm.client_quantizer.decode(Message.from_bytes(upload).payload, SIZE)
        receive(servers[0], upload, factor)
        receive(servers[1], upload, factor, decoded)
        one, other = (save_server(server).arrays for server in servers)
        assert all(one[name].tobytes() == other[name].tobytes() for name in one | other)
    assert servers[0].version == 5
    assert servers[0].hidden_state.digest == servers[1].hidden_state.digest


def reference_updates(algorithm, updates=60):
    quantizer = algorithm.client_quantizer
    for sequence, (client, age) in enumerate(schedule(updates)):

        def update(hidden, client=client, age=age, sequence=sequence):
            version = max(0, len(hidden) - 1 - age)
            delta = hidden[version] - pull_towards(client)(hidden[version])
            stream = Stream.named(SEED, "client-quantizer", client, sequence)
            return quantizer.decode(quantizer.encode(delta.astype(np.float32), stream), SIZE), version, 1 + client / 8

        yield update


@pytest.mark.parametrize("client_spec", ["none", "qsgd:4"])
@pytest.mark.parametrize("server_spec", ["none", "qsgd:4", "top_k:0.1", "qsgd:levels=8,norm=l2,bucket=none"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_server_follows_the_paper_bit_for_bit(client_spec, server_spec, momentum):
    algorithm = method(
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
    fedbuff = drive(method("fedbuff", **settings()))
    qafel = drive(method("qafel", **settings(client_quantizer="none", server_quantizer="none")))
    for one, other in zip(fedbuff, qafel, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fedbuff_follows_its_own_paper():
    """Within float32's rounding, as the reference has no hidden state and computes in float64."""
    algorithm = method("fedbuff", **settings())
    expected = reference.fedbuff(np.ones(SIZE), reference_updates(algorithm), buffer_size=4, server_lr=0.3)
    for (x, hidden), expected_x in zip(drive(algorithm), expected, strict=True):
        np.testing.assert_allclose(x, expected_x, rtol=0, atol=2e-6)
        np.testing.assert_allclose(hidden, expected_x, rtol=0, atol=2e-6)


def test_fedasync_mixes_models_as_its_own_paper_says():
    law = PolynomialStaleness(0.5)
    algorithm = method("fedasync", server_lr=0.6, local=LOCAL, staleness=law)
    server = Server(np.ones(SIZE, np.float32), algorithm, SEED)
    states, jobs = [server.hidden_state], []
    for sequence, (client, age) in enumerate(schedule(40)):
        version = max(0, len(states) - 1 - age)
        jobs.append((pull_towards(client), version))
        trained = pull_towards(client)(states[version].vector)
        upload = upload_of(states[version], trained, algorithm, client=client, sequence=sequence)
        assert receive(server, upload) is not None
        states.append(server.hidden_state)
    expected = reference.fedasync(np.ones(SIZE), jobs, alpha=0.6, staleness_weight=law)
    np.testing.assert_allclose(server.model, expected[-1], rtol=0, atol=2e-6)


def test_sum_is_mean_with_a_learning_rate_larger_by_k():
    mean = drive(method("qafel", **settings(server_lr=0.4)))
    total = drive(method("qafel", **settings(server_lr=0.1, accumulator="sum")))
    np.testing.assert_allclose(mean[-1][0], total[-1][0], rtol=1e-5)


def test_weighted_mean_divides_by_the_clients_weights():
    algorithm = method("fedbuff", server_lr=1.0, local=LOCAL, buffer_size=2, accumulator="weighted-mean")
    server = Server(np.zeros(SIZE, np.float32), algorithm, SEED)
    for client, weight in ((1, 1.0), (2, 3.0)):
        trained = np.full(SIZE, -client, np.float32)
        receive(server, upload_of(server.hidden_state, trained, algorithm, client=client, weight=weight))
    np.testing.assert_allclose(server.model, -(1 * 1 + 3 * 2) / 4)


def test_direct_quantization_sends_the_model_itself():
    algorithm = method("fedbuff-direct", **settings(server_quantizer="top_k:0.1"))
    for x, hidden in drive(algorithm)[1:]:
        kept = np.flatnonzero(hidden)
        assert kept.size == 5
        np.testing.assert_array_equal(hidden[kept], x[kept])
        assert np.abs(x[kept]).min() >= np.abs(np.delete(x, kept)).max()


def one_client(**changes):
    algorithm = method("qafel", **settings(**changes))
    server = Server(np.zeros(SIZE, np.float32), algorithm, SEED)
    return server, Client(1, server.hidden_state, algorithm, SEED)


def test_an_update_is_counted_once():
    server, client = one_client()
    upload = client.update(training(1)).upload
    receive(server, upload)
    with pytest.raises(DuplicateUpload, match="taken before"):
        receive(server, upload)
    assert server.accumulator.count == 1
    assert server.rejected == {"duplicate": 1}


def test_uploads_of_one_client_may_arrive_out_of_order():
    server, client = one_client(buffer_size=100)
    uploads = [client.update(training(1)).upload for _ in range(70)]
    for upload in reversed(uploads[6:]):
        receive(server, upload)
    for upload in uploads:
        with pytest.raises(DuplicateUpload):
            receive(server, upload)
    assert server.accumulator.count == 64


def test_updates_from_the_future_or_too_stale_are_refused_and_counted():
    server, client = one_client(buffer_size=1, max_staleness=1)
    late = [client.update(training(1)).upload for _ in range(3)]
    receive(server, late[0])
    receive(server, late[1])
    with pytest.raises(StaleUpload, match="staleness 2 is above the maximum, 1"):
        receive(server, late[2])
    client.hidden_state = HiddenState.of(np.zeros(SIZE, np.float32), version=9)
    with pytest.raises(FutureUpload, match="version 9, the server is at 2"):
        receive(server, client.update(training(1)).upload)
    assert server.rejected == {"stale": 1, "future": 1}
    assert server.version == 2


def test_a_staleness_law_may_reject():
    server, client = one_client(buffer_size=1, staleness=lambda tau: None if tau > 1 else 1.0)
    late = [client.update(training(1)).upload for _ in range(3)]
    receive(server, late[0])
    receive(server, late[1])
    with pytest.raises(StaleUpload, match="staleness 2"):
        receive(server, late[2])
    assert server.version == 2


def test_receive_closes_a_batch_and_step_makes_the_step():
    server, client = one_client(buffer_size=2)
    uploads = [client.update(training(1)).upload for _ in range(4)]
    first, second = (server.receive(Message.from_bytes(upload)) for upload in uploads[:2])
    assert (first.staleness, first.following, first.batch) == (0, Next.NEWEST, None)
    assert second.batch is not None
    assert (second.batch.uploads, server.accumulator.count, server.version) == (2, 0, 0)
    third = server.receive(Message.from_bytes(uploads[2]))  # belongs to the next batch
    assert (third.batch, server.accumulator.count) == (None, 1)
    broadcast = server.step(second.batch)
    assert Message.from_bytes(broadcast).kind is Kind.BROADCAST
    assert (server.version, server.accumulator.count) == (1, 1)
    other, _ = one_client(buffer_size=2)
    assert [receive(other, upload) for upload in uploads[:2]] == [None, broadcast]


def test_a_batch_can_be_closed_before_it_is_due():
    server, client = one_client(buffer_size=4)
    assert server.close() is None
    receive(server, client.update(training(1)).upload)
    batch = server.close()
    assert batch.uploads == 1
    server.step(batch)
    assert (server.version, server.close()) == (1, None)


def test_a_diverging_model_is_named():
    server, client = one_client(buffer_size=1, server_lr=1e38)
    with pytest.raises(NonFiniteVector, match="server model 1 .* lower the learning rates"):
        receive(server, client.update(lambda start, *_: start.vector + np.float32(1e10)).upload)


def test_a_client_refuses_to_send_what_is_not_finite():
    _, client = one_client(client_quantizer="qsgd:4")
    with pytest.raises(NonFiniteVector):
        client.update(lambda start, *_: start.vector * np.float32(np.nan))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"server_lr": 0.0}, "server_lr: .*greater than 0"),
        ({"buffer_size": 0}, "buffer_size: .*greater"),
        ({"server_momentum": 1.0}, "server_momentum: .*less than 1"),
        ({"max_staleness": -1}, "max_staleness: .*greater"),
        ({"accumulator": "mode"}, "unknown accumulator 'mode'"),
        ({"accumulator": {"name": "median", "bucket": 3}}, "'bucket'; did you mean 'buckets'"),
        ({"accumulator": {"buckets": 3}}, "a part is a name, or a table"),
        ({"client_rule": "gradient"}, "unknown client rule 'gradient'"),
        ({"client_rule": {"name": "memory", "rate": 1.5}, "accumulator": "memory-mean"}, r"rate lies in \[0, 1\]"),
        ({"client_rule": "memory"}, 'needs accumulator = "memory-mean"'),
        ({"client_rule": "memory", "accumulator": "memory-mean"}, "max_staleness = 0"),
        ({"accumulator": "memory-mean"}, 'needs client_rule = "memory"'),
        ({"server_rule": "adagrat"}, "unknown server rule 'adagrat'"),
        ({"server_rule": {"name": "sgd", "momentum": 1.5}}, "momentum lies in"),
        ({"catch_up": "per-start"}, 'needs downlink = "direct"'),
        (
            {"catch_up": Snapshot("qsgd:4"), "client_rule": "model"},
            "need clients that send updates",
        ),
        ({"catch_up": {"name": "snapshot", "quantizer": "qsgd4"}}, "unknown quantizer 'qsgd4'"),
        ({"staleness": lambda tau: 1.0, "staleness_exponent": 0.5}, "in place of staleness_exponent"),
        ({"bufer_size": 3}, "unknown key 'bufer_size'.*did you mean 'buffer_size'"),
        ({"client_lr": 0.1}, "client_lr goes into local="),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        method("qafel", **settings(**change))


@pytest.mark.parametrize("rate", [0.0, 1.5, -1, True, "omega"])
def test_a_downlink_memory_has_a_rate(rate):
    with pytest.raises(ConfigError, match="rate lies in"):
        method("mcm", downlink={"name": "memory", "rate": rate})


def test_methods_where_an_inexact_start_would_last_refuse_a_snapshot_quantizer():
    for name in ("fedbuff-direct", "mcm"):
        with pytest.raises(ConfigError, match=f"{name}: quantized starts need a hidden state .* no memories"):
            method(name, catch_up=Snapshot("qsgd:4"))
    with pytest.raises(ConfigError, match="fedasync: quantized starts need clients that send updates"):
        method("fedasync", catch_up=Snapshot("qsgd:4"))
    assert method("fedbuff", catch_up=Snapshot("qsgd:4")).catch_up.quantizer.spec == "qsgd:4"


def test_methods_refuse_what_contradicts_them():
    with pytest.raises(ConfigError, match="fedbuff has client_quantizer = 'none' by definition"):
        method("fedbuff", **settings(client_quantizer="qsgd:4"))
    with pytest.raises(ConfigError, match="fedasync has buffer_size = 1"):
        method("fedasync", **settings())
    with pytest.raises(ConfigError, match="mcm has client_rule = 'memory' by definition"):
        method("mcm", client_rule="update")
    with pytest.raises(ConfigError, match="unknown method 'fedsync'"):
        method("fedsync", **settings())
    assert method("mcm", client_rule={"name": "memory", "rate": 0.5}).client_rule.rate(100) == 0.5


def test_the_rates_of_mcms_memories_follow_from_its_quantizers():
    algorithm = method("mcm", **settings(client_quantizer="rand_k:0.1", server_quantizer="rand_k:0.25"))
    assert algorithm.client_rule.rate(100) == pytest.approx(1 / (2 * 10))
    assert algorithm.downlink.rate(algorithm.server_quantizer, 100) == pytest.approx(1 / (2 * 4))
    with pytest.raises(ConfigError, match="the number of clients"):
        Server(np.ones(100, np.float32), algorithm, 0)

    class Mine:
        def encode(self, vector, stream):
            return b""

        decode = encode

        def unbiased(self, size):
            return True

        def omega(self, size):
            return np.inf

    boundless = method("mcm", **settings(server_quantizer=Mine()))
    with pytest.raises(ConfigError, match="Mine"):
        boundless.downlink.rate(boundless.server_quantizer, 100)


def test_a_driver_that_lacks_what_a_method_needs_refuses_it_in_one_sentence():
    everything = Needs(*(True for _ in Needs._fields))
    mcm = method("mcm")
    assert mcm.needs == Needs(rounds=True, clients=True, client_memory=True, exact_uploads=True)
    assert method("qafel").needs == Needs()
    require_provided(method("qafel"), Needs(), "nothing")
    require_provided(mcm, everything, "everything")
    for name in Needs._fields:
        lacking = everything._replace(**{name: False})
        if not getattr(mcm.needs, name):
            require_provided(mcm, lacking, "this")
            continue
        with pytest.raises(ConfigError, match="^mcm needs .*, which this driver does not provide: ."):
            require_provided(mcm, lacking, "this driver")
    assert method("fedbuff", catch_up=Snapshot("qsgd:4")).needs == Needs(quantized_starts=True)
    assert method("fedbuff-direct", catch_up="per-start").needs == Needs(own_starts=True)
    for name in Needs._fields:
        needy = replace(method("qafel"), own_needs=Needs(**{name: True}))
        with pytest.raises(ConfigError, match="qafel needs .*, which it does not provide: ."):
            require_provided(needy, Needs(), "it")


def test_qafel_sends_four_bits_unless_told_otherwise():
    qafel, fedbuff = method("qafel"), method("fedbuff")
    assert (qafel.client_quantizer.spec, qafel.server_quantizer.spec) == ("trellis:4", "trellis:4")
    assert (fedbuff.client_quantizer.spec, fedbuff.server_quantizer.spec) == ("none", "none")
    assert Config.from_dict({"task": {"name": "quadratic"}}).algorithm.client_quantizer == "trellis:4"
    assert method("qafel", client_quantizer="none").client_quantizer.spec == "none"


def test_methods_are_compositions():
    def composed(name, **changes):
        algorithm = method(name, server_lr=1.0, local=LOCAL, **changes)
        return algorithm.buffer_size, algorithm.downlink.kind, algorithm.client_rule.sends_model

    assert composed("qafel") == (10, Kind.BROADCAST, False)
    assert composed("fedbuff") == (10, Kind.BROADCAST, False)
    assert composed("fedasync") == (1, Kind.BROADCAST, True)
    assert composed("fedasync", client_rule="update") == (1, Kind.BROADCAST, False)
    assert composed("fedbuff-direct") == (10, Kind.MODEL, False)
    assert composed("fedasync-direct") == (1, Kind.MODEL, False)
    assert composed("fedasync-hidden") == (1, Kind.BROADCAST, False)


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
    assert method("qafel", **settings(client_quantizer=quantizer)).client_quantizer is quantizer
