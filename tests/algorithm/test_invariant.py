"""Server and clients hold bit-identical hidden states at equal version, whatever the network does."""

import random

import numpy as np
import pytest

from qafel.algorithm import Client, HiddenState, LocalTraining, Message, Server, wire
from qafel.errors import ClientAhead, Drifted, DuplicateUpload, HiddenStateError, MissedBroadcast, WrongCodec, WrongKind

SIZE, SEED = 400, 3


def make_algorithm(preset="qafel", **changes):
    settings = {
        "server_lr": 0.2,
        "local": LocalTraining(0.5, 1),
        "buffer_size": 3,
        "client_quantizer": "qsgd:4",
        "server_quantizer": "qsgd:4",
    }
    return wire(preset, **{**settings, **changes})


def noisy(start, stream):
    return (start * 0.9 + stream.generator().normal(scale=0.1, size=SIZE)).astype(np.float32)


def catch_up(client: Client, server: Server) -> None:
    for message in server.catch_up(client.hidden_state.version, client.hidden_state.digest):
        client.receive(message)


@pytest.mark.parametrize("network_seed", range(8))
@pytest.mark.parametrize(
    "algorithm",
    [
        make_algorithm(),
        make_algorithm(server_quantizer="top_k:0.1"),
        make_algorithm(server_quantizer="none", client_quantizer="none"),
        make_algorithm("fedbuff-direct"),
        make_algorithm(memory_rate=0.3),
        make_algorithm("fedasync-hidden", buffer_size=1),
    ],
    ids=["qsgd", "top-k", "identity", "direct", "memory", "fedasync-hidden"],
)
def test_caught_up_clients_hold_the_servers_hidden_state_under_drops_delays_reorderings_and_duplicates(
    algorithm, network_seed
):
    network = random.Random(network_seed)
    server = Server(np.ones(SIZE, np.float32), algorithm, SEED, log_capacity=network.choice([0, 3, 50]))
    clients = [Client(number, server.hidden_state, algorithm, SEED) for number in range(5)]
    in_flight: list[tuple[int, bytes]] = []
    digests = {0: server.hidden_state.digest}
    for moment in range(300):
        if network.random() < 0.02:  # a client joins late, from a snapshot
            snapshot = HiddenState.from_snapshot(Message.from_bytes(server.hidden_state.to_snapshot()), SIZE, algorithm)
            clients.append(Client(len(clients), snapshot, algorithm, SEED))
        upload = network.choice(clients).update(noisy)
        for _ in range(network.choice([0, 1, 1, 1, 2])):  # dropped, delivered, duplicated
            try:
                broadcast = server.receive(Message.from_bytes(upload)).broadcast
            except DuplicateUpload:
                continue
            if broadcast is not None:
                digests[server.version] = server.hidden_state.digest
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
                    catch_up(clients[number], server)
        for client in clients:
            assert client.hidden_state.digest == digests[client.hidden_state.version], f"moment {moment}"
    assert server.version > 60
    for client in clients:
        catch_up(client, server)
        assert client.hidden_state.version == server.version
        assert client.hidden_state.vector.tobytes() == server.hidden_state.vector.tobytes()


def stepped(steps: int, algorithm=None, **options):
    """A server after so many steps, its first hidden state, and its broadcasts."""
    algorithm = algorithm or make_algorithm(buffer_size=1)
    server = Server(np.ones(SIZE, np.float32), algorithm, SEED, **options)
    first = server.hidden_state
    feeder = Client(9, first, algorithm, SEED)
    broadcasts = []
    for _ in range(steps):
        broadcasts.append(server.receive(Message.from_bytes(feeder.update(noisy))).broadcast)
        feeder.receive(broadcasts[-1])
    return server, first, broadcasts


def test_a_client_gets_what_it_missed_in_order():
    server, first, broadcasts = stepped(3)
    assert server.catch_up(0, first.digest) == broadcasts
    assert server.catch_up(2) == broadcasts[2:]
    assert server.catch_up(3, server.hidden_state.digest) == []


def test_a_snapshot_is_sent_where_it_is_fewer_bytes():
    server, first, broadcasts = stepped(20)
    limit = len(server.hidden_state.to_snapshot())
    for version in range(20):
        missed = broadcasts[version:]
        messages = server.catch_up(version)
        if sum(map(len, missed)) <= limit:
            assert messages == missed
        else:
            assert messages == [server.hidden_state.to_snapshot()]
    client = Client(1, first, server.algorithm, SEED)
    catch_up(client, server)
    assert client.hidden_state.version == 20
    assert client.hidden_state.vector.tobytes() == server.hidden_state.vector.tobytes()


def test_a_snapshot_is_sent_where_the_log_no_longer_reaches_back():
    server, _, broadcasts = stepped(3, log_capacity=1)
    assert server.catch_up(2) == broadcasts[2:]
    assert server.catch_up(1) == [server.hidden_state.to_snapshot()]


def test_with_direct_quantization_the_last_model_is_enough():
    server, first, broadcasts = stepped(5, make_algorithm("fedbuff-direct", buffer_size=1))
    assert server.catch_up(0) == broadcasts[-1:]
    client = Client(1, first, server.algorithm, SEED)
    catch_up(client, server)
    assert client.hidden_state.vector.tobytes() == server.hidden_state.vector.tobytes()


def test_a_client_that_is_ahead_or_drifted_is_told_so_and_can_start_again():
    server, first, broadcasts = stepped(3)
    with pytest.raises(ClientAhead, match="the client holds hidden state 4, the server 3"):
        server.catch_up(4)
    with pytest.raises(Drifted, match="hidden state 1 .* start again from a snapshot"):
        server.catch_up(1, digest=12345)
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
        client.receive(client.update(noisy))
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
    algorithm = make_algorithm(buffer_size=1, server_quantizer="top_k:0.1", snapshot_quantizer="qsgd:4")
    server, first, broadcasts = stepped(20, algorithm)
    client = Client(1, first, algorithm, SEED)
    (snapshot,) = server.catch_up(0, first.digest)
    assert snapshot is server.snapshot(), "one message for all"
    assert len(snapshot) < len(server.hidden_state.to_snapshot()) / 4
    recent = next(version for version in range(20) if sum(map(len, broadcasts[version:])) <= len(snapshot))
    assert 0 < recent < 20
    assert server.catch_up(recent) == broadcasts[recent:]
    assert server.catch_up(recent - 1) == [snapshot]
    assert client.receive(snapshot)
    start, state = client.hidden_state, server.hidden_state
    assert (start.version, start.exact) == (20, False)
    np.testing.assert_allclose(start.vector, state.vector, atol=0.2 * np.abs(state.vector).max())
    upload = Message.from_bytes(client.update(noisy))
    assert upload.version == 20
    following = server.receive(upload).broadcast
    with pytest.raises(MissedBroadcast, match="copy of hidden state 20 is an inexact one: fetch a snapshot"):
        client.receive(following)
    assert client.hidden_state is start
    assert client.receive(server.snapshot())
    assert server.snapshot() is not snapshot
    assert client.receive(server.hidden_state.to_snapshot()), "x̂ itself is news to who holds an inexact copy of it"
    assert client.hidden_state.digest == server.hidden_state.digest
    assert not client.receive(server.snapshot()), "an inexact copy is none to who holds x̂"


def test_an_inexact_snapshot_that_is_damaged_or_longer_than_the_hidden_state_is_not_taken():
    server, _, _ = stepped(3, make_algorithm(buffer_size=1, snapshot_quantizer="qsgd:4"))
    message = Message.from_bytes(server.snapshot())
    forged = message._replace(digest=message.digest + 1)
    with pytest.raises(HiddenStateError, match="does not match its digest"):
        HiddenState.from_snapshot(forged, SIZE, server.algorithm)
    with pytest.raises(WrongCodec, match="the receiver reads"):
        HiddenState.from_snapshot(message, SIZE, make_algorithm())
    longer = make_algorithm(buffer_size=1, snapshot_quantizer="top_k:1.0")
    server, _, _ = stepped(3, longer, log_capacity=0)
    assert server.catch_up(0) == [server.hidden_state.to_snapshot()] == [server.snapshot()]


def test_hidden_states_are_never_changed():
    server, first, _ = stepped(1)
    with pytest.raises(ValueError, match="read-only"):
        first.vector[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        server.hidden_state.vector[0] = 1


def test_an_update_belongs_to_the_version_that_was_copied():
    server, first, broadcasts = stepped(1)
    client = Client(1, first, server.algorithm, SEED)

    def train(start, stream):
        client.receive(broadcasts[0])
        assert start is first.vector
        return noisy(start, stream)

    assert Message.from_bytes(client.update(train)).version == 0
    assert client.hidden_state.version == 1
