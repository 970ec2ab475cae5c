"""Server and clients hold bit-identical hidden states at equal version, whatever the network does."""

import random
from dataclasses import replace

import numpy as np
import pytest

from qafel.algorithm import Client, Held, HiddenState, LocalTraining, Means, Message, Server, method
from qafel.algorithm.catch_up import Snapshot
from qafel.algorithm.methods.mcm import MemoryDifference
from qafel.errors import Drifted, DuplicateUpload, HiddenStateError, MissedBroadcast, WrongCodec, WrongKind
from tests.plans import Recorder
from tests.uploads import receive

SIZE, SEED = 400, 3


def make_algorithm(name="qafel", **changes):
    settings = {
        "server_lr": 0.2,
        "local": LocalTraining(0.5, 1),
        "buffer_size": 3,
        "client_quantizer": "qsgd:4",
        "server_quantizer": "qsgd:4",
    }
    return method(name, **{**settings, **changes})


def noisy(start, local, stream):
    return (start.vector * 0.9 + stream.generator().normal(scale=0.1, size=SIZE)).astype(np.float32)


def recorded(algorithm, capacity=100):
    """A new server whose last broadcasts are kept."""
    server = Server(np.ones(SIZE, np.float32), algorithm, SEED)
    server.recorder = Recorder(server, capacity)
    return server


def planned(server: Server, position: int | None, version: int = 0):
    """The plan for a client that holds x̂ since so many bytes were broadcast, and its messages."""
    plan = server.algorithm.catch_up.plan(Held(position), server.offer())
    return plan, server.recorder.messages(plan, version)


def catch_up(client: Client, server: Server, positions: dict[int, int]) -> None:
    """Fetch what the plan says; a snapshot where the server no longer keeps the broadcasts."""
    version = client.hidden_state.version
    try:
        plan, messages = planned(server, positions[version], version)
        assert sum(map(len, messages)) == plan.download_bytes
    except MissedBroadcast:
        messages = [server.hidden_state.to_snapshot()]
    for message in messages:
        client.receive(message)


@pytest.mark.parametrize("network_seed", range(8))
@pytest.mark.parametrize(
    "algorithm",
    [
        make_algorithm(),
        make_algorithm(server_quantizer="top_k:0.1"),
        make_algorithm(server_quantizer="none", client_quantizer="none"),
        make_algorithm("fedbuff-direct"),
        replace(make_algorithm(), downlink=MemoryDifference(0.3)),
        make_algorithm("fedasync-hidden", buffer_size=1),
    ],
    ids=["qsgd", "top-k", "identity", "direct", "memory", "fedasync-hidden"],
)
def test_caught_up_clients_hold_the_servers_hidden_state_under_drops_delays_reorderings_and_duplicates(
    algorithm, network_seed
):
    network = random.Random(network_seed)
    server = recorded(algorithm, network.choice([0, 3, 50]))
    clients = [Client(number, server.hidden_state, algorithm, SEED) for number in range(5)]
    in_flight: list[tuple[int, bytes]] = []
    digests, positions = {0: server.hidden_state.digest}, {0: 0}
    for moment in range(300):
        if network.random() < 0.02:  # a client joins late, from a snapshot
            snapshot = HiddenState.from_snapshot(Message.from_bytes(server.hidden_state.to_snapshot()), SIZE, algorithm)
            clients.append(Client(len(clients), snapshot, algorithm, SEED))
        upload = network.choice(clients).update(noisy).upload
        for _ in range(network.choice([0, 1, 1, 1, 2])):  # dropped, delivered, duplicated
            try:
                broadcast = receive(server, upload)
            except DuplicateUpload:
                continue
            if broadcast is not None:
                digests[server.version] = server.hidden_state.digest
                positions[server.version] = server.broadcast_bytes
                in_flight += [
                    (client.number, broadcast) for client in clients for _ in range(network.choice([0, 1, 1, 2]))
                ]
        network.shuffle(in_flight)
        arriving, in_flight = in_flight[: len(in_flight) // 2], in_flight[len(in_flight) // 2 :]
        for number, broadcast in arriving:
            try:
                clients[number].receive(broadcast)
            except MissedBroadcast:
                if network.random() < 0.7:
                    catch_up(clients[number], server, positions)
        for client in clients:
            assert client.hidden_state.digest == digests[client.hidden_state.version], f"moment {moment}"
    assert server.version > 60
    for client in clients:
        catch_up(client, server, positions)
        assert client.hidden_state.version == server.version
        assert client.hidden_state.vector.tobytes() == server.hidden_state.vector.tobytes()


def stepped(steps: int, algorithm=None, capacity=100):
    """A server after so many steps, its first hidden state, and its broadcasts."""
    algorithm = algorithm or make_algorithm(buffer_size=1)
    server = recorded(algorithm, capacity)
    first = server.hidden_state
    feeder = Client(9, first, algorithm, SEED)
    broadcasts = []
    for _ in range(steps):
        broadcasts.append(receive(server, feeder.update(noisy).upload))
        feeder.receive(broadcasts[-1])
    return server, first, broadcasts


def position(broadcasts: list[bytes], version: int) -> int:
    """The bytes broadcast by that version."""
    return sum(map(len, broadcasts[:version]))


def test_a_client_gets_what_it_missed_in_order():
    server, _, broadcasts = stepped(3)
    for version in range(3):
        plan, messages = planned(server, position(broadcasts, version), version)
        assert messages == broadcasts[version:]
        assert (plan.means, plan.held) == (Means.BROADCASTS, Held(server.broadcast_bytes))
    plan, messages = planned(server, server.broadcast_bytes, 3)
    assert (plan.means, plan.download_bytes, messages) == (Means.NOTHING, 0, [])


def test_a_client_that_holds_nothing_gets_the_hidden_state():
    server, _, _ = stepped(3)
    plan, messages = planned(server, None)
    assert messages == [server.hidden_state.to_snapshot()]
    assert plan.download_bytes == len(messages[0])


def test_a_snapshot_is_sent_where_it_is_fewer_bytes():
    server, first, broadcasts = stepped(20)
    limit = len(server.hidden_state.to_snapshot())
    for version in range(20):
        missed = broadcasts[version:]
        plan, messages = planned(server, position(broadcasts, version), version)
        assert plan.download_bytes == sum(map(len, messages))
        if sum(map(len, missed)) <= limit:
            assert messages == missed
        else:
            assert messages == [server.hidden_state.to_snapshot()]
    client = Client(1, first, server.algorithm, SEED)
    catch_up(client, server, {0: 0})
    assert client.hidden_state.version == 20
    assert client.hidden_state.vector.tobytes() == server.hidden_state.vector.tobytes()


def test_broadcasts_that_the_log_no_longer_holds_are_missed():
    server, _, broadcasts = stepped(3, capacity=1)
    assert planned(server, position(broadcasts, 2), 2)[1] == broadcasts[2:]
    with pytest.raises(MissedBroadcast, match="1 broadcasts are kept, 2 were missed"):
        planned(server, position(broadcasts, 1), 1)


@pytest.mark.parametrize("quantizer", ["qsgd:4", "none", "top_k:1.0"])
def test_with_direct_quantization_the_last_model_is_enough(quantizer):
    algorithm = make_algorithm("fedbuff-direct", buffer_size=1, server_quantizer=quantizer)
    server, first, broadcasts = stepped(5, algorithm)
    shortest = min(broadcasts[-1], server.hidden_state.to_snapshot(), key=len)
    for version in (0, 3, 4):
        plan, messages = planned(server, position(broadcasts, version), version)
        assert list(map(len, messages)) == [len(shortest)] == [plan.download_bytes]
        client = Client(1, first, algorithm, SEED)
        assert client.receive(*messages)
        assert client.hidden_state.vector.tobytes() == server.hidden_state.vector.tobytes()


def test_a_client_that_has_drifted_is_told_so_and_can_start_again():
    server, first, broadcasts = stepped(3)
    drifted = Client(1, HiddenState.of(first.vector + np.float32(1e-6)), server.algorithm, SEED)
    held = drifted.hidden_state
    with pytest.raises(Drifted, match="version 1 should have digest"):
        drifted.receive(broadcasts[0])
    assert drifted.hidden_state is held
    drifted.restart(server.hidden_state.to_snapshot())
    assert drifted.hidden_state.digest == server.hidden_state.digest


def test_a_missing_broadcast_is_noticed_and_changes_nothing():
    server, first, broadcasts = stepped(2)
    client = Client(1, first, server.algorithm, SEED)
    with pytest.raises(MissedBroadcast, match="at version 0, the broadcast starts from 1: catch up"):
        client.receive(broadcasts[1])
    assert client.hidden_state is first
    assert client.receive(broadcasts[0])
    assert not client.receive(broadcasts[0]), "a duplicate is known already"
    assert client.receive(broadcasts[1])
    assert not client.receive(server.hidden_state.to_snapshot()), "a snapshot that is no news"


def test_a_client_refuses_uploads_and_whole_models():
    server, first, _ = stepped(1)
    client = Client(1, first, server.algorithm, SEED)
    with pytest.raises(WrongKind):
        client.receive(client.update(noisy).upload)
    _, _, models = stepped(1, make_algorithm("fedbuff-direct", buffer_size=1))
    with pytest.raises(WrongKind, match="expected broadcast, found model"):
        client.receive(models[0])


def test_a_damaged_snapshot_is_refused():
    server, _, _ = stepped(1)
    message = Message.from_bytes(server.hidden_state.to_snapshot())
    forged = Message(message.kind, message.codec, SIZE, 1, bytes(4 * SIZE), digest=message.digest)
    with pytest.raises(HiddenStateError, match="does not match its digest"):
        HiddenState.from_snapshot(forged, SIZE, server.algorithm)


def test_a_client_that_missed_much_starts_from_an_inexact_snapshot_and_holds_nothing_after_it():
    algorithm = make_algorithm(buffer_size=1, server_quantizer="top_k:0.1", catch_up=Snapshot("qsgd:4"))
    server, first, broadcasts = stepped(20, algorithm)
    client = Client(1, first, algorithm, SEED)
    plan, (snapshot,) = planned(server, 0)
    assert plan == (Means.QUANTIZED, len(snapshot), Held(server.broadcast_bytes, exact=False))
    assert snapshot is server.quantized(), "one message for all"
    assert len(snapshot) < len(server.hidden_state.to_snapshot()) / 4
    recent = next(version for version in range(20) if sum(map(len, broadcasts[version:])) <= len(snapshot))
    assert 0 < recent < 20
    assert planned(server, position(broadcasts, recent), recent)[1] == broadcasts[recent:]
    assert planned(server, position(broadcasts, recent - 1), recent - 1)[1] == [snapshot]
    assert client.receive(snapshot)
    start, state = client.hidden_state, server.hidden_state
    assert (start.version, start.exact) == (20, False)
    np.testing.assert_allclose(start.vector, state.vector, atol=0.2 * np.abs(state.vector).max())
    upload = client.update(noisy).upload
    assert Message.from_bytes(upload).version == 20
    following = receive(server, upload)
    with pytest.raises(MissedBroadcast, match="copy of hidden state 20 is an inexact one: fetch a snapshot"):
        client.receive(following)
    assert client.hidden_state is start
    assert client.receive(server.quantized())
    assert server.quantized() is not snapshot
    assert client.receive(server.hidden_state.to_snapshot()), "x̂ itself is news to who holds an inexact copy of it"
    assert client.hidden_state.digest == server.hidden_state.digest
    assert not client.receive(server.quantized()), "an inexact copy is none to who holds x̂"


def test_a_client_that_starts_often_from_copies_fetches_the_hidden_state_before_long():
    algorithm = make_algorithm(buffer_size=1, server_quantizer="top_k:0.01", catch_up=Snapshot("qsgd:4"))
    server = recorded(algorithm)
    feeder = Client(9, server.hidden_state, algorithm, SEED)
    held, paid, means = Held(), 0, []
    for _ in range(40):
        plan = algorithm.catch_up.plan(held, server.offer())
        assert sum(map(len, server.recorder.messages(plan, server.version - 1))) == plan.download_bytes
        held, paid = plan.held, paid + plan.download_bytes
        means.append(plan.means)
        feeder.receive(receive(server, feeder.update(noisy).upload))
    copies = means.count(Means.QUANTIZED)
    assert means == [Means.QUANTIZED] * copies + [Means.WHOLE] + [Means.BROADCASTS] * (39 - copies)
    assert copies > 1
    following = server.hidden_state.snapshot_bytes + server.broadcast_bytes
    assert paid < 2 * following


def test_an_inexact_snapshot_that_is_damaged_or_longer_than_the_hidden_state_is_not_taken():
    server, _, _ = stepped(3, make_algorithm(buffer_size=1, catch_up=Snapshot("qsgd:4")))
    message = Message.from_bytes(server.quantized())
    forged = message._replace(digest=message.digest + 1)
    with pytest.raises(HiddenStateError, match="does not match its digest"):
        HiddenState.from_snapshot(forged, SIZE, server.algorithm)
    with pytest.raises(WrongCodec, match="the receiver reads"):
        HiddenState.from_snapshot(message, SIZE, make_algorithm())
    longer = make_algorithm(buffer_size=1, catch_up=Snapshot("top_k:1.0"))
    server, _, _ = stepped(3, longer, capacity=0)
    plan, messages = planned(server, None)
    assert len(server.quantized()) >= server.hidden_state.snapshot_bytes == plan.download_bytes
    assert messages == [server.hidden_state.to_snapshot()]


def test_hidden_states_are_never_changed():
    server, first, _ = stepped(1)
    with pytest.raises(ValueError, match="read-only"):
        first.vector[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        server.hidden_state.vector[0] = 1


def test_an_update_belongs_to_the_version_that_was_copied():
    server, first, broadcasts = stepped(1)
    client = Client(1, first, server.algorithm, SEED)

    def train(start, local, stream):
        client.receive(broadcasts[0])
        assert start is first
        return noisy(start, local, stream)

    assert Message.from_bytes(client.update(train).upload).version == 0
    assert client.hidden_state.version == 1
