"""A user's staleness law, accumulator, client rule and server rule, with the built-in ones as the oracle."""

import math
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from qafel import Accumulator, ClientRule, Kept, Limits, Quadratic, Rows, ServerRule, Timing

from qafel import method, simulate  # isort: skip
from qafel.algorithm import Batch, Client, Direction, LocalTraining, Message, Next, Server, restore_server, save_server
from qafel.deployment.server.ledger import Ledger
from qafel.errors import ConfigError, DataError, PartFailed
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint
from tests.uploads import receive

SIZE = 30
SETTINGS = {"local": LocalTraining(0.5, 1), "buffer_size": 3, "client_quantizer": "qsgd:4"}
LR, MOMENTUM = np.float32(0.2), np.float32(0.5)
TIMING = Timing()


class Mean(Kept):
    """The built-in mean again, from the rows."""

    def combine(self, uploads, updates, weights):
        total = np.zeros(updates.shape[1], np.float32)
        for update, weight in zip(updates, weights, strict=True):
            total += np.float32(weight) * update
        return total / np.float32(len(updates))


class Median(Kept):
    def combine(self, uploads, updates, weights):
        return np.median(updates, axis=0)


class Plain(ServerRule):
    def step_(self, model, direction):
        return model - LR * direction.update(model)


class Momentum(ServerRule):
    """The built-in momentum again: its velocity and its count are saved as they are."""

    def __init__(self):
        self.steps = 0

    def begin_(self, algorithm, size, clients):
        self.velocity = np.zeros(size, np.float32)

    def step_(self, model, direction):
        self.steps += 1
        self.velocity = direction.update(model) + self.velocity * MOMENTUM
        return model - LR * self.velocity


class Trimmed(Kept):
    """An accumulator with state of its own: the norm that it last saw, and each sender's."""

    def __init__(self):
        self.norm, self.senders = 0.0, Rows()

    def combine(self, uploads, updates, weights):
        found = updates.mean(axis=0) * np.float32(1 + self.norm + 0.01 * sum(row[0] for row in self.senders.values()))
        self.norm = min(1.0, float(np.linalg.norm(found)))
        for upload, update in zip(uploads, updates, strict=True):
            self.senders[upload.client] = np.array([np.linalg.norm(update)], np.float32)
        return found


class Sums(Accumulator):
    """A whole accumulator: a step is due once two clients have sent something."""

    def begin_(self, algorithm, size, clients):
        self.total, self.count, self.senders = np.zeros(size, np.float32), 0, Rows()

    @property
    def due(self):
        return len(self.senders) == 2

    def add_(self, upload, quantizer):
        upload.add_to_(self.total, quantizer, upload.staleness_weight)
        self.senders[upload.client] = bytes([upload.staleness])
        self.count += 1
        return Next.NEWEST

    def close_(self):
        batch = Batch(self.count, 0, {"total": self.total})
        self.total, self.count, self.senders = np.zeros_like(self.total), 0, Rows()
        return batch

    def direction(self, batch, model):
        return Direction(batch.content["total"], divisor=batch.uploads)


class Sign(ClientRule):
    """Sends the sign of the update."""

    def vector(self, start, trained, memory):
        return np.sign(start.vector - trained.model)


def noisy(start, local, stream):
    return (start.vector * 0.9 + stream.generator().normal(scale=0.1, size=SIZE)).astype(np.float32)


def driven(algorithm, uploads=15):
    """A server after some uploads of two clients, half of them late; and those uploads."""
    server = Server(np.ones(SIZE, np.float32), algorithm, seed=1)
    clients, sent, waiting = [Client(number, server.hidden_state, algorithm, 1) for number in range(2)], [], []
    for _ in range(uploads):
        waiting = waiting or [client.update(noisy).upload for client in clients]
        sent.append(waiting.pop(0))
        if (broadcast := receive(server, sent[-1])) is not None:
            for client in clients:
                client.receive(broadcast)
    return server, sent


@pytest.mark.parametrize("rule", ["update", "model"])
def test_the_mean_as_a_custom_accumulator_is_the_mean(rule):
    settings = {**SETTINGS, "server_lr": 0.2, "staleness_exponent": 0.5, "client_rule": rule}
    built_in, _ = driven(method("qafel", **settings))
    own, _ = driven(method("qafel", **settings, accumulator=Mean()))
    assert own.version == built_in.version == 5
    np.testing.assert_allclose(own.model, built_in.model, rtol=1e-5, atol=1e-6)
    median, _ = driven(method("qafel", **settings, accumulator=Median()))
    assert np.abs(median.model - own.model).max() > 1e-3


@pytest.mark.parametrize(("rule", "changes"), [(Plain(), {}), (Momentum(), {"server_momentum": 0.5})])
@pytest.mark.parametrize("name", ["qafel", "fedbuff"])
def test_the_built_in_step_as_a_custom_rule_gives_the_same_bits(name, rule, changes):
    settings = SETTINGS if name == "qafel" else {**SETTINGS, "client_quantizer": "none"}
    built_in, _ = driven(method(name, **settings, server_lr=0.2, **changes))
    own, _ = driven(method(name, **settings, server_rule=rule))
    assert own.model.tobytes() == built_in.model.tobytes()


def test_a_whole_accumulator_decides_when_a_step_is_due():
    server, uploads = driven(method("qafel", **SETTINGS, accumulator=Sums()), 10)
    assert len(uploads) == 10
    assert server.version == 5, "two clients that send by turns"


def test_a_client_rule_decides_what_is_sent():
    algorithm = method("fedbuff", server_lr=1.0, local=SETTINGS["local"], buffer_size=1, client_rule=Sign())
    server, _ = driven(algorithm, 1)
    assert set(np.unique(server.model - 1)) <= {-1.0, 0.0, 1.0}
    assert server.version == 1


def test_an_accumulator_knows_sender_version_and_staleness_of_each_upload():
    seen = []

    class Spy(Kept):
        def combine(self, uploads, updates, weights):
            seen.extend((upload.client, upload.sequence, upload.version, upload.staleness) for upload in uploads)
            return updates.mean(axis=0)

        def __deepcopy__(self, _):
            return self

    driven(method("qafel", **SETTINGS, accumulator=Spy()), 9)
    assert [client for client, *_ in seen] == [0, 1] * 4 + [0]
    assert [sequence for _, sequence, *_ in seen] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert {staleness for *_, staleness in seen} == {0, 1}


PARTS = {"server_rule": Momentum(), "accumulator": Trimmed()}


def test_no_run_hands_its_state_on_to_another():
    algorithm = method("qafel", **SETTINGS, **PARTS)
    first, _ = driven(algorithm)
    second, _ = driven(algorithm)
    assert first.model.tobytes() == second.model.tobytes()
    assert algorithm.server_rule.steps == 0
    assert first.server_rule.steps == second.server_rule.steps == 5


@pytest.mark.parametrize("parts", [PARTS, {"accumulator": Sums()}], ids=["kept", "whole"])
@pytest.mark.parametrize("saved_after", [0, 1, 6, 7])
def test_state_comes_back_from_a_checkpoint_bit_for_bit(saved_after, parts, tmp_path):
    algorithm = method("qafel", **SETTINGS, **parts)
    whole, uploads = driven(algorithm)
    half, _ = driven(algorithm, saved_after)
    write_checkpoint(tmp_path / "checkpoint", save_server(half))
    restored = restore_server(read_checkpoint(tmp_path / "checkpoint"), algorithm, seed=1, size=SIZE)
    for upload in uploads[saved_after:]:
        receive(restored, upload)
    assert restored.model.tobytes() == whole.model.tobytes()
    assert restored.hidden_state.digest == whole.hidden_state.digest


class Listing(ServerRule):
    """Keeps its steps in a list, which nothing saves."""

    def __init__(self):
        self.steps = []

    def step_(self, model, direction):
        self.steps.append(direction.uploads)
        return model - LR / np.float32(len(self.steps)) * direction.update(model)


class Late(ServerRule):
    """Has a count only once it has counted: a new one does not know that there is something to restore."""

    count = 0

    def step_(self, model, direction):
        self.count += 1
        return model - LR / np.float32(self.count) * direction.update(model)


class Retyped(Late):
    """Begins with a whole number, and goes on with a fraction."""

    def __init__(self):
        self.count = 0

    def step_(self, model, direction):
        self.count += 0.5
        return model


class ListingMedian(Median):
    """Inherits a `state` that does not know its list."""

    def __init__(self):
        self.seen = []

    def combine(self, uploads, updates, weights):
        self.seen.append(len(uploads))
        return super().combine(uploads, updates, weights)


FORGETFUL = {
    "list": {"server_rule": Listing()},
    "late": {"server_rule": Late()},
    "retyped": {"server_rule": Retyped()},
    "inherited": {"accumulator": ListingMedian()},
}


@pytest.mark.parametrize("parts", FORGETFUL.values(), ids=FORGETFUL)
def test_a_part_that_changes_what_it_does_not_save_makes_no_checkpoint(parts, tmp_path):
    algorithm = method("qafel", **SETTINGS, **parts)
    server, _ = driven(algorithm, 2)
    assert save_server(server), "it has not worked yet"
    server, _ = driven(algorithm, 3)
    name = type(next(iter(parts.values()))).__name__
    with pytest.raises(ConfigError, match=f"{name} has state that a checkpoint does not save"):
        save_server(server)
    run = {"limits": Limits(server_steps=3)}
    task = Quadratic(clients=4, dimension=5)
    assert simulate(task, algorithm, TIMING, **run).summary["server_steps"] == 3, "without a checkpoint all is well"
    with pytest.raises(ConfigError, match="checkpoint"):
        simulate(task, algorithm, TIMING, **run, out=tmp_path / "run")


class Unpicklable(Momentum):
    def __init__(self):
        super().__init__()
        self.scale = lambda value: value


def test_what_cannot_be_saved_is_refused_at_the_start_of_a_run_with_checkpoints(tmp_path):
    algorithm = method("qafel", **SETTINGS, server_rule=Unpicklable())
    run = {"limits": Limits(server_steps=3)}
    task = Quadratic(clients=4, dimension=5)
    assert simulate(task, algorithm, TIMING, **run).summary["server_steps"] == 3
    rows = []
    with pytest.raises(ConfigError, match="Unpicklable has state"):
        simulate(task, algorithm, TIMING, **run, out=tmp_path / "run", on_row=rows.append)
    assert not rows
    with (
        pytest.raises(ConfigError, match="Unpicklable has state"),
        Ledger.open(tmp_path / "state", lambda: np.ones(SIZE, np.float32), algorithm, 1, size=SIZE),
    ):
        pass


class Hidden(ServerRule):
    """Keeps its setting in an attribute that no configuration shows."""

    def __init__(self, beta):
        self._beta = beta

    def step_(self, model, direction):
        return model - np.float32(self._beta) * direction.update(model)


def test_a_checkpoint_of_other_settings_of_a_part_is_refused(tmp_path):
    algorithms = [method("qafel", **SETTINGS, server_rule=Hidden(beta)) for beta in (0.5, 0.25)]
    task = Quadratic(clients=4, dimension=5)
    simulate(task, algorithms[0], TIMING, limits=Limits(server_steps=3), out=tmp_path / "run")
    for algorithm, fits in zip(algorithms, (True, False), strict=True):
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        shutil.copytree(tmp_path / "run", tmp_path / "again")
        go_on = {"limits": Limits(server_steps=6), "out": tmp_path / "again", "resume": True}
        with nullcontext() if fits else pytest.raises(DataError, match="_beta is 0.25, and was 0.5"):
            simulate(task, algorithm, TIMING, **go_on)
    _, uploads = driven(algorithms[0])
    for number, algorithm in enumerate(algorithms):
        with (
            pytest.raises(DataError, match="_beta") if number else nullcontext(),
            Ledger.open(tmp_path / "state", lambda: np.ones(SIZE, np.float32), algorithm, 1, size=SIZE) as ledger,
        ):
            for upload in uploads:
                ledger.take(upload, Message.from_bytes(upload))
                ledger.step_if_due()
                if (write := ledger.begin_checkpoint(4)) is not None:
                    ledger.journal.sync()
                    write()
                    ledger.drop_old_journal()


def test_an_accumulator_that_keeps_updates_saves_their_numbers_exactly():
    algorithm = method("qafel", **SETTINGS, accumulator=Median())
    server, _ = driven(algorithm, 2)
    odd = server.accumulator.uploads[0]._replace(version=2**53 + 1, sequence=2**32 - 1)
    server.accumulator.uploads[0] = odd
    restored = restore_server(save_server(server), algorithm, seed=1, size=SIZE)
    assert restored.accumulator.uploads == server.accumulator.uploads


def test_cached_updates_are_saved_with_a_quantizer_that_cannot_be_pickled():
    class Local:
        def encode(self, vector, stream):
            return vector.tobytes()

        def decode(self, payload, size):
            return np.frombuffer(payload, np.float32)

    algorithm = method("ca2fl", client_quantizer=Local(), buffer_size=3, local=SETTINGS["local"])
    server = Server(np.ones(SIZE, np.float32), algorithm, 1, clients=2)
    assert save_server(server).rows.keys() == {"accumulator.cached", "accumulator.waiting"}


def test_a_part_that_says_how_to_save_itself_is_believed():
    class Saved(Listing):
        def state(self):
            return {"steps": np.array(self.steps, np.int64)}

        def restore_(self, state):
            self.steps = state["steps"].tolist()

    algorithm = method("qafel", **SETTINGS, server_rule=Saved())
    whole, uploads = driven(algorithm)
    half, _ = driven(algorithm, 7)
    restored = restore_server(save_server(half), algorithm, seed=1, size=SIZE)
    for upload in uploads[7:]:
        receive(restored, upload)
    assert restored.server_rule.steps == whole.server_rule.steps == [3] * 5
    assert restored.model.tobytes() == whole.model.tobytes()


def test_a_simulation_with_custom_state_resumes_to_the_same_bits(tmp_path):
    algorithm = method("qafel", **SETTINGS, **PARTS)
    task = Quadratic(clients=4, dimension=5)
    whole = simulate(task, algorithm, TIMING, limits=Limits(server_steps=9))
    simulate(task, algorithm, TIMING, limits=Limits(uploads=13), out=tmp_path / "run")
    resumed = simulate(task, algorithm, TIMING, limits=Limits(server_steps=9), out=tmp_path / "run", resume=True)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]


def test_a_deployed_server_with_custom_state_continues_from_checkpoint_and_journal(tmp_path):
    algorithm = method("qafel", **SETTINGS, **PARTS)
    whole, uploads = driven(algorithm)

    def initial():
        return np.ones(SIZE, np.float32)

    with Ledger.open(tmp_path, initial, algorithm, 1, size=SIZE) as ledger:
        for number, upload in enumerate(uploads[:8]):
            ledger.take(upload, Message.from_bytes(upload))
            ledger.step_if_due()
            if number == 4:
                write = ledger.begin_checkpoint(1)
                ledger.journal.sync()
                write()
    with Ledger.open(tmp_path, initial, algorithm, 1, size=SIZE) as ledger:
        for upload in uploads[8:]:
            ledger.take(upload, Message.from_bytes(upload))
            ledger.step_if_due()
        assert ledger.server.model.tobytes() == whole.model.tobytes()


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, "1", [1.0]])
def test_a_staleness_law_returns_a_weight_or_gets_a_sentence(weight):
    with pytest.raises(ConfigError, match="finite weight of zero or more, .*law.* is"):
        method("qafel", **SETTINGS, staleness=_law(lambda tau: weight))
    late = method("qafel", **SETTINGS, staleness=_law(lambda tau: weight if tau else 1.0))
    with pytest.raises(ConfigError, match="finite weight"):
        driven(late, 15)


def _law(law):
    return law


def test_a_staleness_law_weighs_as_the_built_in_one():
    built_in, _ = driven(method("qafel", **SETTINGS, server_lr=0.2, staleness_exponent=0.5))
    own, _ = driven(method("qafel", **SETTINGS, server_lr=0.2, staleness=lambda tau: np.float64((1 + tau) ** -0.5)))
    assert own.model.tobytes() == built_in.model.tobytes()
    zero, _ = driven(method("qafel", **SETTINGS, server_lr=0.2, staleness=lambda tau: 0))
    assert zero.model.tobytes() == np.ones(SIZE, np.float32).tobytes()


class WrongRule(ServerRule):
    def __init__(self, found):
        self.found = found

    def step_(self, model, direction):
        return self.found


class WrongClientRule(ClientRule):
    def __init__(self, found):
        self.found = found

    def vector(self, start, trained, memory):
        return self.found


class WrongAccumulator(Kept):
    def __init__(self, found):
        self.found = found

    def combine(self, uploads, updates, weights):
        return self.found


@pytest.mark.parametrize("found", [None, 3.0, np.zeros(SIZE - 1), np.zeros((1, SIZE)), np.zeros(SIZE, int)], ids=repr)
@pytest.mark.parametrize(
    ("role", "kind", "said"),
    [
        ("server_rule", WrongRule, "step_"),
        ("accumulator", WrongAccumulator, "combine"),
        ("client_rule", WrongClientRule, "vector"),
    ],
)
def test_what_is_no_vector_gets_a_sentence(role, kind, said, found):
    with pytest.raises(PartFailed, match=rf"Wrong.*.{said} returned .*, not a NumPy array of {SIZE} floats"):
        driven(method("qafel", **SETTINGS, **{role: kind(found)}))


class Raising(ServerRule):
    def step_(self, model, direction):
        raise RuntimeError("out of luck")


class RaisingAccumulator(Kept):
    def combine(self, uploads, updates, weights):
        raise RuntimeError("out of luck")


class RaisingClientRule(ClientRule):
    def vector(self, start, trained, memory):
        raise RuntimeError("out of luck")


@pytest.mark.parametrize(
    "part",
    [{"server_rule": Raising()}, {"accumulator": RaisingAccumulator()}, {"client_rule": RaisingClientRule()}],
    ids=lambda part: next(iter(part)),
)
def test_what_a_part_raises_names_the_part(part):
    task = Quadratic(clients=4, dimension=5)
    with pytest.raises(PartFailed, match="Raising.* raised RuntimeError: out of luck"):
        simulate(task, method("qafel", **SETTINGS, **part), TIMING, limits=Limits(server_steps=3))


def test_a_client_rule_with_a_memory_says_so():
    class Secretive(Sign):
        def new_memory(self, size):
            return {"error": np.zeros(size, np.float32)}

    with pytest.raises(ConfigError, match="keeps a memory: declare"):
        method("qafel", **SETTINGS, client_rule=Secretive())


class WithRate(Plain):
    def __init__(self, lr=0.2):
        self.lr = lr


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"server_rule": object()}, "subclass of qafel.ServerRule"),
        ({"server_rule": Plain}, "subclass of qafel.ServerRule"),
        ({"accumulator": Plain()}, "subclass of qafel.Accumulator"),
        ({"client_rule": Plain()}, "subclass of qafel.ClientRule"),
        ({"downlink": Plain()}, "subclass of qafel.Downlink"),
        ({"catch_up": Plain()}, "subclass of qafel.CatchUp"),
        ({"accumulator": "mode"}, "unknown accumulator 'mode'"),
        ({"server_rule": Plain(), "server_lr": 0.3}, "server_lr: leave it out"),
        ({"server_rule": Plain(), "server_momentum": 0.3}, "server_momentum: leave it out"),
        ({"server_rule": WithRate(), "server_lr": 0.3}, "server_lr: leave it out"),
        ({"staleness": 0.5}, "staleness"),
    ],
)
def test_mistakes_get_a_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        method("qafel", **SETTINGS, **settings)


def test_a_method_that_suggests_a_learning_rate_takes_a_rule_without_one():
    assert isinstance(method("fedavg", server_rule=Plain()).server_rule, Plain)


def test_a_rule_that_cannot_be_copied_is_refused():
    class Locked(Plain):
        def __deepcopy__(self, _):
            raise TypeError("locked")

    with pytest.raises(ConfigError, match="cannot be copied, and each server needs its own: locked"):
        driven(method("qafel", **SETTINGS, server_rule=Locked()))


@pytest.mark.parametrize(
    "state", [None, {"velocity": object()}, {1: 2.0}, {"v": np.array(["a"])}], ids=["none", "object", "number", "text"]
)
def test_a_state_that_is_not_arrays_is_refused(state):
    class Odd(Momentum):
        def state(self):
            return state

    with pytest.raises(ConfigError, match="Odd.state.*Rows"):
        save_server(Server(np.ones(SIZE, np.float32), method("qafel", **SETTINGS, server_rule=Odd()), 1))
