"""The loops without Numba do what the compiled ones do, within float32's rounding."""

import inspect

import numpy as np
import pytest

from qafel.algorithm import LocalTraining
from qafel.rng import Stream
from qafel.tasks import Mushrooms, Quadratic, SyntheticLogistic, convex
from qafel.tasks.convex import steps as plain
from qafel.tasks.protocol import train_from

kernels = pytest.importorskip("qafel.tasks.convex.kernels", exc_type=ImportError)
ROUNDING = 32 * np.finfo(np.float32).eps
NAMES = [name for name, kernel in vars(kernels).items() if hasattr(kernel, "py_func")]
LOCALS = {
    "plain steps": LocalTraining(0.5, 10),
    "a proximal term": LocalTraining(0.5, 10, proximal=0.3),
    "weight decay": LocalTraining(0.5, 10, weight_decay=0.1),
    "clipped": LocalTraining(0.5, 10, clip_norm=0.05),
    "all of them": LocalTraining(0.5, 10, proximal=0.3, weight_decay=0.1, clip_norm=0.05),
}
TASKS = [Mushrooms(20), Quadratic(5, 40, noise=0.2), Quadratic(5, 40, noise=0.0), SyntheticLogistic(5, 40)]


def test_every_compiled_loop_has_a_plain_one_with_the_same_arguments():
    assert len(NAMES) == 5
    for name in NAMES:
        compiled = inspect.signature(getattr(kernels, name).py_func)
        assert list(inspect.signature(getattr(plain, name)).parameters) == list(compiled.parameters), name


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_client_trains_to_the_same_model_and_measures_the_same(task, local, monkeypatch):
    start = np.random.default_rng(1).normal(size=task.layout.size).astype(np.float32)
    found = []
    for loops in (kernels, plain):
        monkeypatch.setattr(convex, "kernels", loops, raising=False)
        trained = train_from(task, 3, start, local, Stream.named(1, "train"))
        found.append((trained, task.evaluate(trained)["metric"]))
    (compiled, metric), (slow, other) = found
    assert slow.dtype == compiled.dtype == np.float32
    assert np.abs(compiled - start).max() > 1000 * ROUNDING, "nothing was trained"
    assert np.abs(slow - compiled).max() <= ROUNDING * np.abs(compiled).max()
    assert other == pytest.approx(metric, rel=1e-4, abs=1e-6)


def test_margins_that_overflow_an_exponential_are_no_trouble():
    rows = np.array([[200.0], [-200.0], [0.0]], np.float32)
    targets, start = np.array([0.0, 1.0, 1.0], np.float32), np.array([1.0], np.float32)
    nothing, noise = np.empty(0, np.float32), np.empty((0, 0), np.float32)
    terms = (np.float32(0.001), 3, np.float32(0), np.float32(0), 0.0, nothing)
    columns = np.ascontiguousarray(rows.T)
    models = [loops.train_logistic(rows, columns, targets, start, nothing, noise, *terms) for loops in (kernels, plain)]
    assert models[0] == pytest.approx(1 - 3 * 0.001 * 400 / 3, rel=1e-5)
    assert models[1] == pytest.approx(models[0], rel=1e-5)
    losses = [loops.mean_loss(columns, targets, 10 * start, 0.1) for loops in (kernels, plain)]
    assert losses[0] == pytest.approx((2000 + 2000 + np.log(2)) / 3 + 5)
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
