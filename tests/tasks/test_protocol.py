"""What a task is given, and what it may return."""

import numpy as np
import pytest

from qafel import Constant, HiddenState, Layout, Limits, LocalTraining, Stream, Timing, Trained, method, simulate
from qafel.deployment.client.training import training_in
from qafel.errors import PartFailed
from qafel.tasks.protocol import train_from


class Told:
    """Moves a model by the version of its start, and remembers all versions."""

    name, metric_name, metric_goal, clients, layout = "told", "sum", "min", 3, Layout.flat(2)

    def __init__(self):
        self.versions = []

    def samples(self, client):
        return 1

    def initial_model(self, stream):
        return np.zeros(2, np.float32)

    def train(self, client, start, local, stream):
        self.versions.append(start.version)
        return start.vector - np.float32(start.version)

    def evaluate(self, model):
        return {"metric": float(model.sum())}


class Counting(Told):
    """Returns the steps that it did and a figure beside its model."""

    def train(self, client, start, local, stream):
        return Trained(super().train(client, start, local, stream), steps=3, metrics={"loss": 0.5})


def run(task, **options):
    algorithm = method("fedbuff", buffer_size=2, server_lr=1.0)
    return simulate(task, algorithm, Timing(duration=Constant(1.0)), limits=Limits(server_steps=4), **options)


def test_training_knows_the_version_that_its_start_has():
    task = Told()
    run(task)
    assert task.versions[:3] == [0, 0, 0], "all three begin before the first step"
    assert task.versions == sorted(task.versions)
    assert task.versions[-1] >= 2


def test_every_executor_tells_the_same():
    ours = run(Told()).summary["model_sha256"]
    assert run(Told(), executor="processes", workers=2).summary["model_sha256"] == ours


def test_a_task_may_return_the_model_or_more():
    assert run(Counting()).summary["model_sha256"] == run(Told()).summary["model_sha256"]


def test_a_start_is_not_to_be_changed():
    class Changing(Told):
        def train(self, client, start, local, stream):
            start.vector[:] = 0
            return start.vector

    with pytest.raises(PartFailed, match="Changing.train raised ValueError: .*read-only"):
        run(Changing())


def test_training_from_a_model_that_belongs_to_no_run_leaves_the_model_as_it_is():
    model, local, stream = np.ones(2, np.float32), LocalTraining(0.1, 1), Stream.named(0, "train")
    for task in (Told(), Counting()):
        np.testing.assert_array_equal(train_from(task, 0, model, local, stream), [1, 1])
    assert model.flags.writeable


def moved(start, local, stream):
    return start.vector + np.float32(start.version)


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_deployed_clients_function_knows_its_start_in_a_thread_and_in_a_process(worker):
    start = HiddenState.of(np.ones(2, np.float32), 5)
    with training_in(worker, moved) as train:
        found = train(start, LocalTraining(0.1, 1), Stream.named(0, "train"))
    np.testing.assert_array_equal(found, [6, 6])
