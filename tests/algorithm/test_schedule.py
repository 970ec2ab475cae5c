"""The clients' learning rate follows the version of their start."""

import math

import numpy as np
import pytest

from qafel import Quadratic, method, simulate
from qafel.algorithm.algorithm import Schedule
from qafel.config import Config
from qafel.errors import ConfigError, PartFailed

SETTINGS = {"buffer_size": 2, "local_steps": 2}


def falling(version):
    return 0.05 if version < 3 else 0.01


class Noting(Quadratic):
    """Notes the learning rate of each version."""

    def __init__(self):
        super().__init__(clients=4, dimension=5)
        self.seen = {}

    def train(self, client, start, local, stream):
        self.seen.setdefault(start.version, local.lr)
        return super().train(client, start, local, stream)


def test_a_function_of_the_version_sets_the_rate():
    task = Noting()
    simulate(task, method("qafel", client_lr=falling, **SETTINGS), server_steps=6, pure=False)
    assert {version: falling(version) for version in task.seen} == task.seen
    assert set(task.seen) >= {0, 3, 5}


def test_executors_give_equal_bits():
    task, algorithm = Quadratic(clients=4, dimension=5), method("qafel", client_lr=falling, **SETTINGS)
    one = simulate(task, algorithm, server_steps=6)
    many = simulate(task, algorithm, server_steps=6, executor="processes", workers=2)
    np.testing.assert_array_equal(one.model, many.model)


def test_schedules_of_a_recipe_fall_as_they_say():
    cosine, step = Schedule(2.0, cosine=100), Schedule(2.0, step=10, factor=0.5)
    assert [cosine(version) for version in (0, 50, 100, 1000)] == pytest.approx([2.0, 1.1, 0.2, 0.2])
    assert [step(version) for version in (0, 9, 10, 25)] == [2.0, 2.0, 1.0, 0.5]
    assert step(10**6) > 0
    table = {"algorithm": {"client_lr": 2.0, "client_lr_schedule": {"cosine": 100}}}
    config = Config.from_dict(table)
    assert Config.from_toml(config.to_toml(), "again") == config
    assert config.algorithm.compose().local.at(50).lr == pytest.approx(1.1)
    assert math.isclose(config.algorithm.compose().local.lr, 2.0)


@pytest.mark.parametrize(
    "schedule", [{"linear": 3}, {"cosine": 0}, {"cosine": 3, "step": 3}, {}, 3, {"step": 3, "factor": 2}]
)
def test_a_schedule_that_cannot_be_is_refused(schedule):
    with pytest.raises(ConfigError, match="schedule"):
        Config.from_dict({"algorithm": {"client_lr_schedule": schedule}})


def test_a_rate_of_zero_or_a_failing_function_ends_the_run():
    for rate, kind in ((lambda version: 0.1 - version, ConfigError), (lambda version: 1 / (1 - version), PartFailed)):
        with pytest.raises(kind, match=r"learning rate|client_lr"):
            simulate(Quadratic(clients=4, dimension=5), method("qafel", client_lr=rate, **SETTINGS), server_steps=6)
