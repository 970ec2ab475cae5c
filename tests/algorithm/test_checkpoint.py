"""A server that is saved and restored goes on exactly as one that was not."""

import numpy as np
import pytest

from qafel.algorithm import Checkpoint, Client, LocalTraining, Message, Server, restore_server, save_server, wire
from qafel.errors import DataError, DuplicateUpload, StaleUpload

SIZE = 30
SETTINGS = {"server_lr": 0.2, "local": LocalTraining(0.5, 1), "buffer_size": 3, "client_quantizer": "qsgd:4"}


def noisy(start, stream):
    return (start * 0.9 + stream.generator().normal(scale=0.1, size=SIZE)).astype(np.float32)


CHANGES = [
    {},
    {"server_momentum": 0.5},
    {"memory_rate": 0.4, "server_quantizer": "qsgd:4"},
    {"uplink_memory_rate": "from-omega", "max_staleness": 0},
]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("saved_after", [0, 1, 6, 7])
def test_a_restored_server_goes_on_as_if_nothing_had_happened(changes, saved_after):
    algorithm = wire("qafel", **{**SETTINGS, **changes})
    server = Server(np.ones(SIZE, np.float32), algorithm, seed=1, clients=2)
    clients = [Client(number, server.hidden_state, algorithm, 1) for number in range(2)]
    uploads = []
    for turn in range(15):
        if turn == saved_after:
            checkpoint = save_server(server)
        uploads.append(clients[turn % 2].update(noisy))
        clients[turn % 2].taken(uploads[-1])
        if broadcast := server.receive(Message.from_bytes(uploads[-1])).broadcast:
            for client in clients:
                client.receive(broadcast)
    restored = restore_server(checkpoint, algorithm, seed=1, size=SIZE, clients=2)
    for turn, upload in enumerate(uploads):
        if turn < saved_after:
            with pytest.raises((DuplicateUpload, StaleUpload)):
                restored.receive(Message.from_bytes(upload))
        else:
            restored.receive(Message.from_bytes(upload))
    assert restored.version == server.version == 5
    assert restored.model.tobytes() == server.model.tobytes()
    assert restored.hidden_state.digest == server.hidden_state.digest
    if server.uplink_memory is not None:
        np.testing.assert_allclose(server.uplink_memory, (clients[0].memory + clients[1].memory) / 2, atol=1e-6)


def test_a_checkpoint_that_does_not_fit_is_refused():
    algorithm = wire("qafel", **SETTINGS)
    saved = save_server(Server(np.ones(SIZE, np.float32), algorithm, seed=1))
    with pytest.raises(DataError, match="velocity"):
        restore_server(saved, wire("qafel", **SETTINGS, server_momentum=0.9), seed=1, size=SIZE)
    damaged = Checkpoint({**saved.arrays, "hidden_state": np.zeros(SIZE, np.float32)}, saved.values)
    with pytest.raises(DataError, match="damaged"):
        restore_server(damaged, algorithm, seed=1, size=SIZE)
