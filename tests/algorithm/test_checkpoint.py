"""A server that is saved and restored continues exactly as one that was not."""

import numpy as np
import pytest

from qafel.algorithm import (
    METHODS,
    Checkpoint,
    Client,
    Kept,
    LocalTraining,
    Server,
    method,
    restore_server,
    save_server,
)
from qafel.errors import DataError, DuplicateUpload, StaleUpload
from tests.uploads import receive

SIZE = 30
SETTINGS = {"server_lr": 0.2, "local": LocalTraining(0.5, 1), "buffer_size": 3, "client_quantizer": "qsgd:4"}


def noisy(start, local, stream):
    return (start.vector * 0.9 + stream.generator().normal(scale=0.1, size=SIZE)).astype(np.float32)


class Median(Kept):
    def combine(self, uploads, updates, weights):
        return np.median(updates, axis=0)


CHANGES = {
    "plain": {},
    "momentum": {"server_momentum": 0.5},
    "compensated": {"server_rule": {"name": "sgd", "compensated": True}},
    "buckets": {"accumulator": {"name": "median", "buckets": 2}},
    "kept": {"accumulator": Median()},
    "downlink memory": {"downlink": {"name": "memory", "rate": 0.4}, "server_quantizer": "qsgd:4", "method": "mcm"},
    "uplink memory": {"client_rule": "memory", "accumulator": "memory-mean", "max_staleness": 0},
}


CHANGES |= {name: {"method": name} for name in METHODS}


def algorithm_with(changes):
    """The method with the changes, and the settings that it leaves open."""
    settings = {**SETTINGS, **changes}
    name = settings.pop("method", "qafel")
    return method(
        name, **{key: value for key, value in settings.items() if key not in METHODS[name].fixed or key in changes}
    )


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("saved_after", [0, 1, 6, 7])
def test_a_restored_server_continues_as_if_nothing_had_happened(changes, saved_after):
    algorithm = algorithm_with(changes)
    server = Server(np.ones(SIZE, np.float32), algorithm, seed=1, clients=2)
    clients = [Client(number, server.hidden_state, algorithm, 1) for number in range(2)]
    uploads = []
    for turn in range(15):
        if turn == saved_after:
            checkpoint = save_server(server)
        client = clients[turn % 2]
        made = client.update(noisy)
        uploads.append(made.upload)
        broadcast = receive(server, made.upload)
        client.memory = made.memory
        if broadcast is not None:
            for client in clients:
                client.receive(broadcast)
    restored = restore_server(checkpoint, algorithm, seed=1, size=SIZE, clients=2)
    for turn, upload in enumerate(uploads):
        if turn < saved_after:
            with pytest.raises((DuplicateUpload, StaleUpload)):
                receive(restored, upload)
        else:
            receive(restored, upload)
    assert restored.version == server.version >= 4
    assert restored.model.tobytes() == server.model.tobytes()
    assert restored.hidden_state.digest == server.hidden_state.digest
    ends = [save_server(each) for each in (server, restored)]
    assert ends[0].arrays.keys() == ends[1].arrays.keys()
    assert all(ends[0].arrays[name].tobytes() == ends[1].arrays[name].tobytes() for name in ends[0].arrays)
    if "h" in clients[0].memory:
        mean = (clients[0].memory["h"] + clients[1].memory["h"]) / 2
        np.testing.assert_allclose(server.accumulator.memory, mean, atol=1e-6)


def saved_in_the_middle(algorithm):
    server = Server(np.ones(SIZE, np.float32), algorithm, seed=1, clients=2)
    clients = [Client(number, server.hidden_state, algorithm, 1) for number in range(2)]
    for turn in range(5):
        if (broadcast := receive(server, clients[turn % 2].update(noisy).upload)) is not None:
            for client in clients:
                client.receive(broadcast)
    return save_server(server)


def is_refused(checkpoint, algorithm):
    try:
        restore_server(checkpoint, algorithm, seed=1, size=SIZE, clients=2)
    except DataError:
        return True
    return False


def damaged(arrays, name):
    """What may have become of one array of a checkpoint."""
    array = arrays[name]
    others = {key: kept for key, kept in arrays.items() if key != name}
    yield "missing", others
    yield "misnamed", {**others, f"{name}_": array}
    yield "retyped", {**others, name: array.astype(np.float64 if array.dtype != np.float64 else np.float32)}
    yield "reshaped", {**others, name: array[None]}
    if array.ndim and array.size:
        yield "shortened", {**others, name: array[:-1].copy()}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_of_which_anything_is_missing_or_misshapen_is_refused(changes):
    algorithm = algorithm_with(changes)
    saved = saved_in_the_middle(algorithm)
    assert restore_server(saved, algorithm, seed=1, size=SIZE, clients=2).version >= 1
    for name in saved.arrays:
        for what, arrays in damaged(saved.arrays, name):
            of_any_length = (what, name) == ("shortened", "accumulator.places")
            of_any_type = what == "retyped" and name.endswith(".rows")
            assert of_any_length or of_any_type or is_refused(saved._replace(arrays=arrays), algorithm), (
                f"{name} was {what}"
            )


def test_a_checkpoint_of_another_algorithm_is_refused():
    algorithm = method("qafel", **SETTINGS)
    saved = save_server(Server(np.ones(SIZE, np.float32), algorithm, seed=1))
    with pytest.raises(DataError, match="momentum"):
        restore_server(saved, method("qafel", **SETTINGS, server_momentum=0.9), seed=1, size=SIZE)
    damaged = saved._replace(arrays={**saved.arrays, "hidden_state": np.zeros(SIZE, np.float32)})
    with pytest.raises(DataError, match="damaged"):
        restore_server(damaged, algorithm, seed=1, size=SIZE)
    for name in saved.values:
        with pytest.raises(DataError):
            restore_server(
                Checkpoint(saved.arrays, {k: v for k, v in saved.values.items() if k != name}), algorithm, 1, size=SIZE
            )
