"""A wrong argument of `simulate`, `method` or `sweep` is a sentence that says what was expected."""

import math
import re

import numpy as np
import pytest

from qafel import (
    ClientRule,
    ConstantRate,
    Evaluation,
    HalfNormal,
    Limits,
    LocalTraining,
    Needs,
    Quadratic,
    Timing,
    method,
    simulate,
    sweep,
)
from qafel.errors import ConfigError

TASK, METHOD, TIMING = Quadratic(6, 5), method("qafel"), Timing()


def attempt(task=TASK, algorithm=METHOD, timing=TIMING, **options):
    return simulate(task, algorithm, timing, **{"limits": Limits(server_steps=2), **options})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": None}, "task is an object"),
        ({"task": Quadratic}, "task is an object such as Mushrooms()"),
        ({"task": object()}, "which lacks name"),
        ({"algorithm": "qafel"}, "algorithm is a method such as method(\"qafel\"); got 'qafel'"),
        ({"timing": HalfNormal(seed=0)}, 'timing is a Timing such as Timing(arrivals="poisson"); got HalfNormal('),
        ({"limits": 100}, "limits is a Limits(…)"),
        ({"evaluation": 10}, "evaluation is a Evaluation(…)"),
        ({"seed": True}, "seed is a whole number of 64 bits; got True"),
        ({"seed": 1.5}, "seed is a whole number of 64 bits; got 1.5"),
        ({"seed": 2**64}, "seed is a whole number of 64 bits"),
        ({"out": 7}, "out is the path of a run directory; got 7"),
        ({"out": ""}, "out is the path of a run directory; got ''"),
        ({"resume": True}, "resume needs the run directory: out="),
        ({"on_row": 5}, "on_row is a function that takes a row; got 5"),
        ({"checkpoint_every_s": "a"}, "checkpoint_every_s is a number of seconds"),
        ({"checkpoint_every_s": -1}, "checkpoint_every_s is a number of seconds"),
        ({"checkpoint_every_s": math.nan}, "checkpoint_every_s is a number of seconds"),
        ({"listeners": [3]}, "a listener has the methods on_row and on_end; got 3"),
        ({"listeners": 3}, "listeners is a list"),
        ({"say": 3}, "say is a function"),
        ({"pure": "no"}, "pure is True or False; got 'no'"),
        ({"resume": "no"}, "resume is True or False; got 'no'"),
        ({"executor": "thread"}, "unknown executor 'thread'"),
        ({"executor": "processes", "workers": "2"}, "workers"),
    ],
)
def test_simulate(arguments, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        attempt(**arguments)


class Corrected(ClientRule):
    needs = Needs(correction=True)

    def vector(self, start, trained, memory):
        return start.vector - trained.model


class NoCorrection(Quadratic):
    takes_correction = False


@pytest.mark.parametrize(
    ("algorithm", "timing", "sentence"),
    [
        (
            method("fedavg"),
            TIMING,
            'fedavg needs clients that start in rounds, which quadratic with timing.arrivals = "always-training"',
        ),
        (method("mcm"), Timing(arrivals=ConstantRate(rate=3.0)), "mcm needs clients that start in rounds"),
        (method("ringleader"), Timing(arrivals=ConstantRate(rate=3.0)), "ringleader needs clients that"),
        (method("qafel", client_rule=Corrected()), TIMING, "another client rule"),
    ],
)
def test_a_method_in_a_run_that_lacks_what_it_needs(algorithm, timing, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        attempt(NoCorrection(6, 5), algorithm, timing)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"buffer_size": "3"}, "buffer_size: input should be a valid integer, found '3'"),
        ({"buffer_size": 2.5}, "buffer_size: input should be a valid integer"),
        ({"client_lr": "a"}, "client_lr: input should be a valid number, found 'a'"),
        ({"server_lr": None}, "server_lr: input should be a valid number, found None"),
        ({"staleness_exponent": "x"}, "staleness_exponent: input should be a valid number, found 'x'"),
        ({"local": {"lr": 1}}, "local is a LocalTraining(lr, steps); got {'lr': 1}"),
        ({"local": LocalTraining(1.0, 2), "client_lr": 3.0}, "client_lr goes into local=LocalTraining("),
        ({"staleness": lambda tau: 1.0, "staleness_exponent": 1.0}, "in place of staleness_exponent"),
        ({"client_quantizer": "nowhere_at_all:Half"}, "module 'nowhere_at_all'"),
    ],
)
def test_method(settings, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        method("qafel", **settings)


@pytest.mark.parametrize("executor", ["inline", "processes", "ray"])
def test_more_workers_than_the_machine_can_use_are_refused_before_any_starts(executor, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("qafel.workers.Workers.__enter__", lambda self: pytest.fail("workers were started"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="17 workers"):
        attempt(executor=executor, workers=17)


def test_a_whole_number_may_be_written_as_a_float():
    assert repr(Limits(server_steps=1e3)) == repr(Limits(server_steps=1000))
    assert repr(method("qafel", buffer_size=np.float32(10)).buffer_size) == "10"
    assert repr(attempt(seed=3.0).summary["seed"]) == "3"
    for wrong in (1.5, math.inf, math.nan):
        with pytest.raises(ConfigError, match="uploads: input should be"):
            Limits(uploads=wrong)


def test_values():
    with pytest.raises(ConfigError, match="method: input should be a valid string, found None"):
        method(None)
    with pytest.raises(ConfigError, match="duration: a part is a name"):
        Timing(duration=1.0)
    with pytest.raises(ConfigError, match="duration law builtins:object .* draw"):
        attempt(timing=Timing(duration=object()))
    with pytest.raises(ConfigError, match="arrival law builtins:object .* __iter__"):
        attempt(timing=Timing(arrivals=object()))
    with pytest.raises(ConfigError, match="uploads: input should be greater than or equal to 1, found 0"):
        Limits(uploads=0)
    with pytest.raises(ConfigError, match="uploads: input should be a valid integer, found '5'"):
        Limits(uploads="5")
    with pytest.raises(ConfigError, match="unit: input should be 'server_steps' or 'uploads', found 'steps'"):
        Evaluation(unit="steps")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"recipes": None}, "recipes"),
        ({"recipes": TASK}, "recipes"),
        ({"seeds": "3"}, "seeds"),
        ({"seeds": 1.5}, "seeds"),
        ({"seeds": []}, "seeds"),
        ({"settings": ["a=1"]}, "settings"),
        ({"settings": {"stop.uploads": []}}, "stop.uploads"),
        ({"out": None}, "out"),
        ({"workers": 0}, "workers"),
        ({"workers": 10**6}, "workers"),
    ],
)
def test_sweep(arguments, word, tmp_path):
    with pytest.raises(ConfigError, match=word):
        sweep(**{"recipes": "mushrooms-qafel-4bit", "out": tmp_path, **arguments})


def test_method_takes_custom_parts_by_import_path_as_a_recipe_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_by_path.py").write_text(
        "class Half:\n"
        "    def encode(self, vector, stream):\n        return vector.astype('<f2').tobytes()\n"
        "    def decode(self, payload, size):\n        import numpy\n"
        "        return numpy.frombuffer(payload, '<f2').astype('f4')\n"
        "def law(staleness, power=1):\n    return (1 + staleness) ** -power\n"
    )
    found = method(
        "qafel",
        client_quantizer="made_by_path:Half",
        server_quantizer="qsgd:4",
        staleness={"name": "made_by_path:law", "power": 2},
    )
    assert (found.client_quantizer.spec, found.server_quantizer.spec) == ("made_by_path:Half", "qsgd:4")
    assert found.staleness(1) == 0.25
