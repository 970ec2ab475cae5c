"""What a task is told."""

from functools import partial

import numpy as np
import pytest

from qafel import Constant, Layout, Limits, Timing, simulate, wire
from qafel.deployment.client.client import training_in
from qafel.tasks.protocol import takes_version, told_version


class Told:
    """Moves a model by the version that it was told, and remembers all versions."""

    name, metric_name, metric_goal, clients, layout = "told", "sum", "min", 3, Layout.flat(2)

    def __init__(self):
        self.versions = []

    def samples(self, client):
        return 1

    def initial_model(self, stream):
        return np.zeros(2, np.float32)

    def train(self, client, start, local, stream, version=0):
        self.versions.append(version)
        return start - np.float32(version)

    def evaluate(self, model):
        return {"metric": float(model.sum())}


class NotTold(Told):
    def train(self, client, start, local, stream):
        return start - np.float32(1)


def run(task, **options):
    method = wire("fedbuff", buffer_size=2, server_lr=1.0)
    return simulate(task, method, Timing(Constant(1.0)), limits=Limits(server_steps=4), **options)


def test_training_is_told_the_version_that_its_start_has():
    task = Told()
    run(task)
    assert task.versions[:3] == [0, 0, 0], "all three begin before the first step"
    assert task.versions == sorted(task.versions)
    assert task.versions[-1] >= 2


def test_a_task_that_does_not_ask_for_the_version_is_not_told():
    assert run(NotTold()).summary["status"] == "finished"


def test_every_executor_tells_the_same():
    ours = run(Told()).summary["model_sha256"]
    assert run(Told(), executor="processes", workers=2).summary["model_sha256"] == ours


def own(start, stream, version):
    return start + version


def plain(start, stream):
    return start


def test_only_a_parameter_of_that_name_counts():
    assert takes_version(own)
    assert takes_version(partial(own, 1))
    assert not takes_version(plain)
    assert not takes_version(lambda *given, **more: None)
    assert not takes_version(min), "states no signature"
    assert told_version(own, 7)(1, None) == 8
    assert told_version(plain, 7)(1, None) == 1


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_deployed_clients_function_is_told_in_a_thread_and_in_a_process(worker):
    for function, expected in ((own, 6), (plain, 1)):
        with training_in(worker, function) as train:
            assert told_version(train, 5)(1, None) == expected
