"""A neural run is the same to the bit, evaluations too, wherever it is trained and evaluated and whoever dies."""

import os
import signal
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from qafel.algorithm import method  # noqa: E402
from qafel.errors import WorkerLost  # noqa: E402
from qafel.rng import Stream  # noqa: E402
from qafel.runs.progress import Progress  # noqa: E402
from qafel.simulator import Evaluation, Limits, Timing, simulate  # noqa: E402
from qafel.simulator.executors.jobs import spans  # noqa: E402
from qafel.simulator.executors.processes import Processes  # noqa: E402
from qafel.simulator.run import drive  # noqa: E402
from qafel.simulator.simulation import Simulation  # noqa: E402
from qafel.tasks.datasets.partition import split  # noqa: E402
from qafel.tasks.datasets.samples import ArraySamples  # noqa: E402
from qafel.tasks.neural.published import Cnn, Normalise  # noqa: E402
from qafel.tasks.neural.task import TorchTask  # noqa: E402

ALGORITHM = method(
    "qafel",
    buffer_size=3,
    server_lr=0.5,
    client_lr=0.05,
    local_epochs=1,
    batch_size=8,
    client_quantizer="qsgd:4",
    server_quantizer="qsgd:4,bucket=128",
)
TIMING = Timing()
LIMITS = Limits(uploads=30)
EVALUATION = Evaluation(every=6, unit="uploads")


def make_task():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (50, 3, 32, 32), np.uint8)
    data = ArraySamples(images, generator.integers(0, 10, len(images)))
    partition = split("iid", data.labels, 5, Stream.named(0, "partition"))
    prepare = Normalise((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    return TorchTask("noise", partial(Cnn, 10, 0.1), data, data, partition, prepare=prepare, evaluation_batch=7)


def figures(rows):
    return [(row.uploads, row.metric, row.figures["loss"], row.hidden_state_lag) for row in rows]


@pytest.fixture(scope="module")
def expected():
    task = make_task()
    simulation = Simulation(task, ALGORITHM, TIMING, 0)
    rows = list(drive(simulation, Progress(EVALUATION, "max"), LIMITS))
    return figures(rows), simulation.server.model


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "workers"), [("processes", 3), ("processes", 1), ("ray", 2)])
def test_evaluations_shared_among_workers_are_those_of_one_thread(expected, executor, workers):
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    result = simulate(
        make_task(),
        ALGORITHM,
        TIMING,
        limits=LIMITS,
        evaluation=EVALUATION,
        executor=executor,
        workers=workers,
    )
    assert list(zip(result.history["uploads"], result.history["metric"], result.history["loss"], strict=True)) == [
        row[:3] for row in expected[0]
    ]
    np.testing.assert_array_equal(result.model, expected[1])


@pytest.mark.slow
def test_workers_killed_in_training_and_before_an_evaluation_change_nothing(expected):
    task = make_task()
    with Processes(2, make_task, ALGORITHM, 0, task.layout.size) as pool:
        simulation = Simulation(task, ALGORITHM, TIMING, 0, pool)
        rows = []
        for row in drive(simulation, Progress(EVALUATION, "max"), LIMITS):
            rows.append(row)
            if row.uploads in (6, 18):
                os.kill(pool._pool._workers[row.uploads % 4 // 2].process.pid, signal.SIGKILL)
        assert pool.evaluate(task, simulation.server.model)["metric"] == rows[-1].metric
        os.kill(pool._pool._workers[0].process.pid, signal.SIGKILL)
        assert pool.evaluate(task, simulation.server.model)["metric"] == rows[-1].metric
    assert figures(rows) == expected[0]
    np.testing.assert_array_equal(simulation.server.model, expected[1])


class DiesInEvaluations:
    """A task whose evaluation kills its worker."""

    evaluation_parts = 3

    def __init__(self):
        self._task = make_task()

    def __getattr__(self, name):
        return getattr(self._task, name)

    def __reduce__(self):
        return DiesInEvaluations, ()

    def evaluate_part(self, model, part):
        os._exit(9)

    def combine(self, parts):
        return {"metric": 0.0}


@pytest.mark.slow
def test_workers_that_die_at_an_evaluation_are_reported():
    with pytest.raises(WorkerLost, match=r"exit code 9.* at an evaluation"):
        simulate(DiesInEvaluations(), ALGORITHM, TIMING, limits=LIMITS, executor="processes", workers=1)


def test_every_part_is_evaluated_once():
    for parts in range(1, 9):
        for workers in range(1, 5):
            covered = [part for span in spans(parts, workers) for part in span]
            assert covered == list(range(parts))
