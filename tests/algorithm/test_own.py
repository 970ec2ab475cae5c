"""A user's own staleness law, aggregation and server step: plain objects, held to the built-in ones as the oracle."""

import math

import numpy as np
import pytest

from qafel import AlwaysTraining, HalfNormal, Limits, Quadratic, Timing, simulate, wire
from qafel.algorithm import Client, LocalTraining, Message, Server, restore_server, save_server
from qafel.deployment.server.ledger import Ledger
from qafel.errors import ConfigError, PartFailed
from qafel.runs.directory import read_checkpoint, write_checkpoint

SIZE = 30
SETTINGS = {"local": LocalTraining(0.5, 1), "buffer_size": 3, "client_quantizer": "qsgd:4"}
LR, MOMENTUM = np.float32(0.2), np.float32(0.5)


class Mean:
    """The built-in mean again, from the rows."""

    def aggregate(self, updates, weights):
        total = np.zeros(updates.shape[1], np.float32)
        for update, weight in zip(updates, weights, strict=True):
            total += np.float32(weight) * update
        return total / np.float32(len(updates))


class Median:
    def aggregate(self, updates, weights):
        return np.median(updates, axis=0)


class Plain:
    def step(self, model, update):
        return model - LR * update


class Momentum:
    """The built-in momentum again, with state that it saves."""

    def __init__(self):
        self.velocity, self.steps = None, 0

    def step(self, model, update):
        self.steps += 1
        self.velocity = update if self.velocity is None else update + self.velocity * MOMENTUM
        return model - LR * self.velocity

    def state(self):
        return {"steps": self.steps} | ({} if self.velocity is None else {"velocity": self.velocity})

    def restore(self, state):
        self.velocity, self.steps = state.get("velocity"), int(state["steps"])


class Forgetful:
    """Counts its steps, and has no way to save the count."""

    count = 0

    def step(self, model, update):
        self.count += 1
        return model - LR / np.float32(self.count) * update


class Trimmed:
    """An aggregation with state that it saves: the norm that it last saw."""

    norm = 0.0

    def aggregate(self, updates, weights):
        found = updates.mean(axis=0) * np.float32(1 + self.norm)
        self.norm = min(1.0, float(np.linalg.norm(found)))
        return found

    def state(self):
        return {"norm": np.array(self.norm)}

    def restore(self, state):
        self.norm = float(state["norm"])


def noisy(start, stream):
    return (start * 0.9 + stream.generator().normal(scale=0.1, size=SIZE)).astype(np.float32)


def driven(algorithm, uploads=15):
    """A server after some uploads of two clients, half of them late; and those uploads."""
    server = Server(np.ones(SIZE, np.float32), algorithm, seed=1)
    clients, sent, waiting = [Client(number, server.hidden_state, algorithm, 1) for number in range(2)], [], []
    for _ in range(uploads):
        waiting = waiting or [client.update(noisy) for client in clients]
        sent.append(waiting.pop(0))
        if broadcast := server.receive(Message.from_bytes(sent[-1])).broadcast:
            for client in clients:
                client.receive(broadcast)
    return server, sent


@pytest.mark.parametrize("upload", ["update", "model"])
def test_the_mean_as_an_own_aggregation_is_the_mean(upload):
    settings = {**SETTINGS, "server_lr": 0.2, "staleness_exponent": 0.5, "upload": upload}
    built_in, _ = driven(wire("qafel", **settings))
    own, _ = driven(wire("qafel", **settings, aggregation=Mean()))
    assert own.version == built_in.version == 5
    np.testing.assert_allclose(own.model, built_in.model, rtol=1e-5, atol=1e-6)
    median, _ = driven(wire("qafel", **settings, aggregation=Median()))
    assert np.abs(median.model - own.model).max() > 1e-3


@pytest.mark.parametrize(("step", "changes"), [(Plain(), {}), (Momentum(), {"server_momentum": 0.5})])
@pytest.mark.parametrize("preset", ["qafel", "fedbuff"])
def test_the_built_in_step_as_an_own_one_gives_the_same_bits(preset, step, changes):
    settings = SETTINGS if preset == "qafel" else {**SETTINGS, "client_quantizer": "none"}
    built_in, _ = driven(wire(preset, **settings, server_lr=0.2, **changes))
    own, _ = driven(wire(preset, **settings, server_step=step))
    assert own.model.tobytes() == built_in.model.tobytes()


def test_no_run_hands_its_state_on_to_another():
    algorithm = wire("qafel", **SETTINGS, server_step=Momentum(), aggregation=Trimmed())
    first, _ = driven(algorithm)
    second, _ = driven(algorithm)
    assert first.model.tobytes() == second.model.tobytes()
    assert algorithm.server_step.steps == 0


@pytest.mark.parametrize("saved_after", [0, 1, 6, 7])
def test_state_comes_back_from_a_checkpoint_bit_for_bit(saved_after, tmp_path):
    algorithm = wire("qafel", **SETTINGS, server_step=Momentum(), aggregation=Trimmed())
    whole, uploads = driven(algorithm)
    half, _ = driven(algorithm, saved_after)
    write_checkpoint(tmp_path / "checkpoint", save_server(half))
    restored = restore_server(read_checkpoint(tmp_path / "checkpoint"), algorithm, seed=1, size=SIZE)
    for upload in uploads[saved_after:]:
        restored.receive(Message.from_bytes(upload))
    assert restored.model.tobytes() == whole.model.tobytes()
    assert restored.hidden_state.digest == whole.hidden_state.digest


def test_a_part_that_changes_and_cannot_be_saved_makes_no_checkpoint(tmp_path):
    algorithm = wire("qafel", **SETTINGS, server_step=Forgetful())
    server, _ = driven(algorithm, 2)
    assert save_server(server), "it has not worked yet"
    server, _ = driven(algorithm, 3)
    with pytest.raises(ConfigError, match=r"Forgetful changes as it works, and has no state\(\) and restore"):
        save_server(server)
    timing = Timing(HalfNormal(0), AlwaysTraining())
    run = {"limits": Limits(server_steps=3)}
    task = Quadratic(clients=4, dimension=5)
    assert simulate(task, algorithm, timing, **run).summary["server_steps"] == 3, "without a checkpoint all is well"
    with pytest.raises(ConfigError, match="no checkpoint"):
        simulate(task, algorithm, timing, **run, out=tmp_path / "run")
    with (
        pytest.raises(ConfigError, match="no checkpoint"),
        Ledger.open(tmp_path, lambda: np.ones(SIZE, np.float32), algorithm, 1, size=SIZE),
    ):
        pass


def test_a_simulation_with_own_state_resumes_to_the_same_bits(tmp_path):
    algorithm = wire("qafel", **SETTINGS, server_step=Momentum(), aggregation=Trimmed())
    task, timing = Quadratic(clients=4, dimension=5), Timing(HalfNormal(0), AlwaysTraining())
    whole = simulate(task, algorithm, timing, limits=Limits(server_steps=9))
    simulate(task, algorithm, timing, limits=Limits(uploads=13), out=tmp_path / "run")
    resumed = simulate(task, algorithm, timing, limits=Limits(server_steps=9), out=tmp_path / "run", resume=True)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]


def test_a_deployed_server_with_own_state_goes_on_from_checkpoint_and_journal(tmp_path):
    algorithm = wire("qafel", **SETTINGS, server_step=Momentum(), aggregation=Trimmed())
    whole, uploads = driven(algorithm)

    def initial():
        return np.ones(SIZE, np.float32)

    with Ledger.open(tmp_path, initial, algorithm, 1, size=SIZE) as ledger:
        for number, upload in enumerate(uploads[:8]):
            ledger.take(upload, Message.from_bytes(upload))
            if number == 4:
                write = ledger.begin_checkpoint(1)
                ledger.journal.sync()
                write()
    with Ledger.open(tmp_path, initial, algorithm, 1, size=SIZE) as ledger:
        for upload in uploads[8:]:
            ledger.take(upload, Message.from_bytes(upload))
        assert ledger.server.model.tobytes() == whole.model.tobytes()


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, None, "1", [1.0]])
def test_a_staleness_law_returns_a_weight_or_gets_a_sentence(weight):
    with pytest.raises(ConfigError, match="finite weight of zero or more, .*law.* is"):
        wire("qafel", **SETTINGS, staleness=_law(lambda tau: weight))
    late = wire("qafel", **SETTINGS, staleness=_law(lambda tau: weight if tau else 1.0))
    with pytest.raises(ConfigError, match="finite weight"):
        driven(late, 15)


def _law(law):
    return law


def test_a_staleness_law_weighs_as_the_built_in_one():
    built_in, _ = driven(wire("qafel", **SETTINGS, server_lr=0.2, staleness_exponent=0.5))
    own, _ = driven(wire("qafel", **SETTINGS, server_lr=0.2, staleness=lambda tau: np.float64((1 + tau) ** -0.5)))
    assert own.model.tobytes() == built_in.model.tobytes()
    zero, _ = driven(wire("qafel", **SETTINGS, server_lr=0.2, staleness=lambda tau: 0))
    assert zero.model.tobytes() == np.ones(SIZE, np.float32).tobytes()


class Wrong:
    def __init__(self, found):
        self.found = found

    def step(self, model, update):
        return self.found

    aggregate = step


@pytest.mark.parametrize("found", [None, 3.0, np.zeros(SIZE - 1), np.zeros((1, SIZE)), np.zeros(SIZE, int)], ids=repr)
@pytest.mark.parametrize("part", ["server_step", "aggregation"])
def test_what_is_no_vector_gets_a_sentence(part, found):
    method = {"server_step": "step", "aggregation": "aggregate"}[part]
    with pytest.raises(PartFailed, match=rf"Wrong.{method} returned .*, not a NumPy array of {SIZE} floats"):
        driven(wire("qafel", **SETTINGS, **{part: Wrong(found)}))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"server_step": object()}, "an object with a method step"),
        ({"server_step": Plain}, "an object with a method step"),
        ({"aggregation": Plain()}, "an object with a method aggregate"),
        ({"aggregation": "mode"}, "aggregation is one of mean"),
        ({"server_step": Plain(), "server_lr": 0.1}, "leave server_lr out"),
        ({"server_step": Plain(), "server_momentum": 0.1}, "leave server_momentum out"),
        ({"staleness": 0.5}, "a staleness law is a function"),
    ],
)
def test_mistakes_get_a_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        wire("qafel", **SETTINGS, **settings)


def test_a_state_that_is_not_arrays_is_refused():
    class Odd(Momentum):
        def state(self):
            return {"velocity": object()}

    server, _ = driven(wire("qafel", **SETTINGS, server_step=Odd()), 3)
    with pytest.raises(ConfigError, match="'velocity', which is not an array of numbers"):
        save_server(server)
