"""Faulty custom parts: each gets an error that names the part and its method, or works as its author meant."""

import enum
import math
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest

from qafel import Accumulator, ClientRule, Kept, Needs, Rows, ServerRule, method
from qafel.algorithm import Batch, Direction, LocalTraining, Next, restore_server, save_server
from qafel.errors import ConfigError, UserError
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint
from tests.algorithm.test_custom import SIZE, driven
from tests.uploads import receive

SETTINGS = {"local": LocalTraining(0.5, 1), "buffer_size": 3}


class Table(Accumulator):
    """The mean of each client's last update."""

    def begin_(self, algorithm, size, clients):
        self.count, self.table = 0, Rows()

    @property
    def due(self):
        return self.count >= 3

    def add_(self, upload, quantizer):
        self.table[upload.client] = upload.vector(quantizer).copy()
        self.count += 1
        return Next.NEWEST

    def close_(self):
        self.count = 0
        return Batch(3, 0, {"total": np.mean(list(self.table.values()), axis=0)})

    def direction(self, batch, model):
        return self.made(batch.content["total"])

    def made(self, total):
        return Direction(total)


def returning(made):
    return type("Wrong", (Table,), {"made": lambda self, total: made(total)})()


def resumed(algorithm, path, cut=7):
    """The model of a run, and that of the same run from a checkpoint file after `cut` uploads."""
    whole, uploads = driven(algorithm)
    half, _ = driven(algorithm, cut)
    write_checkpoint(path / "checkpoint", save_server(half))
    restored = restore_server(read_checkpoint(path / "checkpoint"), algorithm, seed=1, size=SIZE)
    for upload in uploads[cut:]:
        receive(restored, upload)
    return whole, restored


WRONG_DIRECTIONS = {
    "none": lambda total: None,
    "vector": lambda total: total,
    "short": lambda total: Direction(total[:1].copy()),
    "double": lambda total: Direction(total.astype(np.float64)),
    "strided": lambda total: Direction(np.repeat(total, 2)[::2]),
    "total": lambda total: Direction(None),
    "memory": lambda total: Direction(total, memory=total[:1].copy()),
    "zero": lambda total: Direction(total, 0.0),
    "nan": lambda total: Direction(total, math.nan),
    "divisor": lambda total: Direction(total, None),
}


@pytest.mark.parametrize("name", ["fedbuff", "fedadam"])
@pytest.mark.parametrize("made", WRONG_DIRECTIONS.values(), ids=WRONG_DIRECTIONS)
def test_a_direction_is_checked_before_a_server_rule_reads_it(name, made):
    algorithm = method(name, accumulator=returning(made), client_quantizer="none", server_quantizer="none", **SETTINGS)
    with pytest.raises(UserError, match=r"Wrong\.direction returned"):
        driven(algorithm, 3)


class Columns(ServerRule):
    """Keeps the last updates as columns."""

    def begin_(self, algorithm, size, clients):
        self.last, self.steps = np.zeros((3, size), np.float32).T, 0

    def step_(self, model, direction):
        self.last[:, self.steps % 3] = direction.update(model)
        self.steps += 1
        return model - np.float32(0.1) * self.last.mean(axis=1)


class Phase(enum.IntEnum):
    FIRST = 0
    SECOND = 1


class Phased(ServerRule):
    def begin_(self, algorithm, size, clients):
        self.phase = Phase.FIRST

    def step_(self, model, direction):
        assert isinstance(self.phase, Phase)
        self.phase = Phase.SECOND
        return model - np.float32(0.1) * direction.update(model)


class Weighing(Kept):
    """Its own `weights` are not those of the uploads."""

    def begin_(self, algorithm, size, clients):
        self.weights = np.ones(2)
        super().begin_(algorithm, size, clients)

    def combine(self, uploads, updates, weights):
        for upload in uploads:
            self.weights[upload.client] *= 0.7
        return updates.mean(axis=0) * self.weights.mean()


class Views(Table):
    """Its rows are read-only views of a matrix that changes."""

    def begin_(self, algorithm, size, clients):
        super().begin_(algorithm, size, clients)
        self.matrix = np.zeros((2, size), np.float32)

    def add_(self, upload, quantizer):
        self.matrix[upload.client] = upload.vector(quantizer)
        if upload.client not in self.table:
            view = self.matrix[upload.client]
            view.flags.writeable = False
            self.table[upload.client] = view
        self.count += 1
        return Next.NEWEST


PARTS = {
    "columns": {"server_rule": Columns()},
    "phase": {"server_rule": Phased()},
    "weights": {"accumulator": Weighing()},
    "views": {"accumulator": Views()},
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("cut", [6, 7])
def test_state_of_any_form_comes_back_bit_for_bit(parts, cut, tmp_path):
    whole, restored = resumed(method("qafel", **SETTINGS, **parts), tmp_path, cut)
    assert restored.model.tobytes() == whole.model.tobytes()


def test_a_row_does_not_change_with_the_array_it_was_taken_from():
    matrix, rows = np.ones((2, 3), np.float32), Rows()
    view = matrix[0]
    view.flags.writeable = False
    rows[0] = view
    matrix[:] = 2
    assert rows[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("key", [-1, 0.5, 1.0, "avg", (0, 1), True])
def test_the_key_of_a_row_is_a_clients_number(key):
    rows = Rows()
    rows[np.int64(3)] = np.ones(1)
    with pytest.raises(ConfigError, match="client"):
        rows[key] = np.ones(1)
    assert list(rows) == [3]


def raising(*args):
    raise KeyError("z")


@pytest.mark.parametrize("name", ["begin_", "add_", "close_", "direction", "stepped_", "due"])
def test_an_accumulator_that_raises_is_named(name):
    failing = type("Failing", (Table,), {name: property(raising) if name == "due" else raising})
    with pytest.raises(UserError, match=rf"Failing\.{name} raised KeyError"):
        driven(method("fedbuff", accumulator=failing(), **SETTINGS), 3)


def test_an_accumulator_that_forgets_to_return_its_batch_is_named():
    forgetful = type("Forgetful", (Table,), {"close_": lambda self: None})
    with pytest.raises(UserError, match=r"Forgetful\.close_ returned NoneType"):
        driven(method("fedbuff", accumulator=forgetful(), **SETTINGS), 3)


class Scale(ServerRule):
    """Its scale begins as a Python number, and becomes one of NumPy: then `scale * update` is in double precision."""

    def begin_(self, algorithm, size, clients):
        self.scale, self.half, self.best, self.on = 1.0, np.float32(0.5), math.inf, True

    def step_(self, model, direction):
        update = direction.update(model)
        following = model - self.half * self.scale * update / 3
        self.scale = np.sqrt(0.9 * self.scale**2 + 0.03)
        self.half = self.half * np.float32(0.9)
        return following


def test_numbers_come_back_with_their_types(tmp_path):
    whole, restored = resumed(method("qafel", **SETTINGS, server_rule=Scale()), tmp_path)
    assert restored.model.tobytes() == whole.model.tobytes()
    for name in ("scale", "half", "best", "on"):
        assert type(getattr(restored.server_rule, name)) is type(getattr(whole.server_rule, name))


class Changing(ServerRule):
    def __init__(self, first, change):
        self.first, self.change = first, change

    def begin_(self, algorithm, size, clients):
        self.value = self.first

    def step_(self, model, direction):
        self.value = self.change[0] if isinstance(self.change, list) else np.append(self.value, 1.0)
        return model - np.float32(0.1) * direction.update(model)

    def state(self):
        return {"value": self.value}


@pytest.mark.parametrize(
    ("first", "change"),
    [(np.zeros(1), "grow"), (0.0, [math.nan]), (1, [2**70]), (np.zeros(2), [np.zeros(2, np.longdouble)])],
    ids=["grows", "nan", "long", "longdouble"],
)
def test_state_that_could_not_be_restored_is_refused_when_it_is_saved(first, change):
    algorithm = method("fedbuff", **SETTINGS, server_rule=Changing(first, change))
    save_server(driven(algorithm, 2)[0])
    with pytest.raises(ConfigError, match=r"Changing"):
        save_server(driven(algorithm, 3)[0])


class CountingLaw:
    def __init__(self):
        self.calls = 0

    def __call__(self, staleness):
        self.calls += 1
        return 1 / (1 + self.calls)

    @cached_property
    def cache(self):
        return 1

    def still(self, staleness):
        return float(self.cache)


class CountingRule(ClientRule):
    def __init__(self):
        self.calls = 0

    def vector(self, start, trained, memory):
        self.calls += 1
        return start.vector - trained.model


class CountingCodec:
    def __init__(self):
        self._calls = 0

    def encode(self, vector, stream):
        self._calls += 1
        return vector.tobytes()

    def decode(self, payload, size):
        return np.frombuffer(payload, np.float32, size)


@pytest.mark.parametrize(
    "parts",
    [{"staleness": CountingLaw()}, {"client_rule": CountingRule()}, {"client_quantizer": CountingCodec()}],
    ids=["law", "rule", "codec"],
)
def test_a_part_without_saved_state_that_changes_makes_no_checkpoint(parts):
    with pytest.raises(ConfigError, match="Counting.* has changed"):
        save_server(driven(method("qafel", **SETTINGS, **parts))[0])


def test_a_cached_property_is_no_state():
    assert save_server(driven(method("qafel", **SETTINGS, staleness=CountingLaw().still))[0])


class Remembering(ClientRule):
    needs = Needs(client_memory=True, correction=True)

    def new_memory(self, size):
        return {"a": np.zeros(size, np.float32)}

    def vector(self, start, trained, memory):
        return start.vector - trained.model


def test_a_client_rule_that_raises_or_returns_nonsense_is_named():
    def failing(name, result):
        rule = type("Failing", (Remembering,), {name: lambda self, *args: result(*args)})()
        with pytest.raises(UserError, match=rf"Failing\.{name}"):
            driven(method("fedbuff", client_rule=rule, **SETTINGS), 1)

    for name in ("new_memory", "local", "vector", "following"):
        failing(name, raising)
        failing(name, lambda *args: None)
    failing("new_memory", lambda size: [1])
    failing("local", lambda local, *args: replace(local, correction=np.ones(1, np.float32)))
    for memory in ({}, {"b": np.zeros(SIZE, np.float32)}, {"a": 1.0}, {"a": np.zeros(3, np.float32)}):
        failing("following", lambda *args, memory=memory: memory)


class Private(ServerRule):
    def __init__(self, lr):
        self._lr = lr

    def step_(self, model, direction):
        return model - np.float32(self._lr) * direction.update(model)


IGNORED = {
    "lr": ("fedbuff", {"server_lr": 0.7, "server_rule": {"name": "sgd", "lr": 0.2}}),
    "momentum": ("fedbuff", {"server_momentum": 0.7, "server_rule": {"name": "sgd", "momentum": 0.2}}),
    "ringleader": ("ringleader", {"staleness_exponent": 0.5}),
    "buffer": ("ringleader", {"buffer_size": 3}),
    "mcm": ("mcm", {"staleness": lambda staleness: 0.5, "client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}),
    "beta1": ("fedadam", {"server_rule": {"name": "adam", "beta1": "a"}}),
    "epsilon": ("fedadam", {"server_rule": {"name": "adam", "epsilon": True}}),
}


@pytest.mark.parametrize(("name", "settings"), IGNORED.values(), ids=IGNORED)
def test_settings_that_would_be_ignored_are_refused(name, settings):
    with pytest.raises(ConfigError) as caught:
        method(name, **settings)
    assert "TypeError" not in str(caught.value)


def test_a_rule_may_keep_its_learning_rate_under_any_name():
    rule = method("fedbuff", server_lr=0.7, server_rule=f"{__name__}:Private").server_rule
    assert rule._lr == 0.7


def test_an_accumulator_without_a_count_is_refused():
    uncounted = type("Uncounted", (Table,), {"begin_": lambda self, *args: None})
    with pytest.raises(ConfigError, match="Uncounted has no count"):
        driven(method("fedbuff", accumulator=uncounted(), **SETTINGS), 1)


def test_a_memory_that_no_checkpoint_could_hold_is_refused():
    class Bytes(Remembering):
        def new_memory(self, size):
            return {"a": np.zeros(size, np.uint8)}

    with pytest.raises(ConfigError, match="new_memory"):
        method("fedbuff", client_rule=Bytes(), **SETTINGS)
