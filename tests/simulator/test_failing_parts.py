"""A user's part that raises, or returns what it must not: one sentence with the part, the exception and its place."""

import multiprocessing
from contextlib import nullcontext

import numpy as np
import pytest

from qafel import ClientRule, Kept, Layout, Limits, Needs, ServerRule, Timing, method, simulate
from qafel.errors import PartFailed
from tests.command import qafel_here
from tests.simulator.test_executors import no_shared_memory_is_left


class Task:
    """Sound, but for what `fails` names: an exception, or a value to return."""

    name, clients, metric_name, metric_goal = "fragile", 4, "distance", "min"
    layout = Layout.flat(8)

    def __init__(self, **fails):
        self.fails = fails

    def _or(self, method, value):
        found = self.fails.get(method, value)
        if isinstance(found, Exception):
            raise found
        return found

    def samples(self, client):
        return 1

    def initial_model(self, stream):
        return self._or("initial_model", np.ones(8, np.float32))

    def train(self, client, start, local, stream):
        return self._or("train", start.vector * np.float32(0.9))

    def evaluate(self, model):
        return self._or("evaluate", {"metric": float(model @ model)})


class Codec:
    def encode(self, vector, stream):
        if abs(vector - 0.1).max() < 0.01:  # what the task trains, and no probe
            raise IndexError("no level left")
        return vector.tobytes()

    def decode(self, payload, size):
        return np.frombuffer(payload, np.float32)


def late_is_wrong(staleness):
    if staleness:
        raise ArithmeticError("too late")
    return 1.0


class RaisesKept(Kept):
    def combine(self, uploads, updates, weights):
        raise RuntimeError("nothing to add")


class RaisesRule(ServerRule):
    def step_(self, model, direction):
        raise RuntimeError("nothing to add")


class Raises:
    def draw(self, client, number):
        raise RuntimeError("no time")


def arrivals():
    yield 0.0, 1
    raise LookupError("nobody else")


def attempt(task=None, timing=None, executor="inline", **algorithm):
    composed = method("qafel", client_lr=0.1, local_steps=1, buffer_size=2, **algorithm)
    timing = timing or Timing()
    with pytest.raises(PartFailed) as caught:
        simulate(task or Task(), composed, timing, limits=Limits(server_steps=5), executor=executor, workers=1)
    return caught.value


HERE = f"{__name__}:"


@pytest.mark.parametrize(
    ("failing", "words", "cause"),
    [
        ({"task": Task(train=ValueError("odd"))}, f"{HERE}Task.train raised ValueError: odd", ValueError),
        ({"task": Task(evaluate=KeyError("x"))}, f"{HERE}Task.evaluate raised KeyError: 'x'", KeyError),
        ({"task": Task(initial_model=OSError("gone"))}, f"{HERE}Task.initial_model raised OSError: gone", OSError),
        ({"client_quantizer": Codec()}, f"encode of {HERE}Codec raised IndexError: no level left", IndexError),
        ({"staleness": late_is_wrong}, f"{HERE}late_is_wrong raised ArithmeticError: too late", ArithmeticError),
        (
            {"accumulator": RaisesKept()},
            f"{HERE}RaisesKept.direction raised RuntimeError: nothing to add",
            RuntimeError,
        ),
        ({"server_rule": RaisesRule()}, f"{HERE}RaisesRule.step_ raised RuntimeError: nothing to add", RuntimeError),
        ({"timing": Timing(duration=Raises())}, f"{HERE}Raises.draw raised RuntimeError: no time", RuntimeError),
        ({"timing": Timing(arrivals=arrivals)}, "the arrival law raised LookupError: nobody", LookupError),
    ],
)
def test_an_exception_is_told_with_its_place_and_is_the_cause(failing, words, cause):
    error = attempt(**failing)
    assert str(error).startswith(words)
    assert f"({__file__}, line " in str(error)
    assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize(
    ("method", "returned", "words"),
    [
        ("train", None, "the training of client 3 returned NoneType, not a NumPy array of 8 floats"),
        ("train", np.ones(3, np.float32), "the training of client 3 returned float32[3], not"),
        ("train", np.float32(1), "the training of client 3 returned float32, not"),
        ("initial_model", np.ones(8, int), "Task.initial_model returned int64[8], not a NumPy array of 8 floats"),
        ("evaluate", None, '"metric"; it returned None'),
        ("evaluate", {"loss": 1.0}, '"metric"; it returned the names loss'),
        ("evaluate", {"metric": "good"}, "its metric is 'good'"),
    ],
)
def test_what_a_part_must_not_return_is_told(method, returned, words):
    assert words in str(attempt(Task(**{method: returned})))


def test_doubles_and_numpy_scalars_are_taken_as_they_are_meant(tmp_path):
    task = Task(train=np.full(8, 0.9), evaluate={"metric": np.float32(1.5)})
    algorithm = method("qafel", client_lr=0.1, local_steps=1, buffer_size=2)
    found = simulate(task, algorithm, Timing(), limits=Limits(server_steps=5), out=tmp_path / "run")
    assert found.history["metric"][-1] == 1.5


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_elsewhere_it_is_the_same_sentence_with_the_workers_traceback_and_nothing_is_left(executor):
    if executor == "ray":
        pytest.importorskip("ray")
    with no_shared_memory_is_left() if executor == "processes" else nullcontext():
        error = attempt(Task(train=ValueError("odd")), executor=executor)
    assert str(error).startswith(f"{HERE}Task.train raised ValueError: odd ({__file__}, line ")
    assert "Traceback" in error.__notes__[0]
    assert "ValueError: odd" in error.__notes__[0]
    assert not multiprocessing.active_children()


def test_the_command_line_says_how_to_see_the_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises_late.py").write_text("def law(staleness):\n    return 1 / (1 - staleness)\n")
    arguments = ("run", "mushrooms-qafel-4bit", "--set", "algorithm.staleness=raises_late:law", "-q")
    _, said = qafel_here(*arguments, expect=2)
    place = f"({tmp_path / 'raises_late.py'}, line 2)"
    sentence = f"raises_late:law raised ZeroDivisionError: division by zero {place}"
    assert said == f"qafel: {sentence}; QAFEL_TRACEBACK=1 shows the traceback\n"
    monkeypatch.setenv("QAFEL_TRACEBACK", "1")
    with pytest.raises(PartFailed):
        qafel_here(*arguments, "--overwrite")


class ChangesMemory(ClientRule):
    needs = Needs(client_memory=True)

    def new_memory(self, size):
        return {"sum": np.zeros(size, np.float32)}

    def vector(self, start, trained, memory):
        memory["sum"] += start.vector - trained.model
        return memory["sum"]

    def following(self, start, trained, memory, sent):
        return {"sum": memory["sum"] - sent}


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_rule_that_changes_its_memory_in_place_is_named(executor):
    with pytest.raises(PartFailed, match=r"ChangesMemory\.vector.*read-only"):
        simulate(Task(), method("qafel", client_rule=ChangesMemory()), server_steps=3, executor=executor, workers=1)
