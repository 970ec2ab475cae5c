"""Synthetic problems: their optimum and constants are what they claim."""

import numpy as np
import pytest

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.tasks import Quadratic, SyntheticLogistic
from qafel.tasks.protocol import train_from

STREAM = Stream.named(0, "test")


def client_gradient(task, client, x, stream=STREAM):
    """From one step of length 1/1024: exact in float32 but for the subtraction's rounding."""
    step = np.float32(2.0**-10)
    return (x - train_from(task, client, x, LocalTraining(float(step), 1), stream)).astype(np.float64) / step


def mean_gradient(task, x):
    return np.mean([client_gradient(task, client, x) for client in range(task.clients)], axis=0)


@pytest.mark.parametrize(
    "task",
    [Quadratic(20, 30, noise=0.0), Quadratic(7, 30, noise=0.0), SyntheticLogistic(20, 30), SyntheticLogistic(7, 30)],
)
def test_the_mean_gradient_vanishes_at_the_optimum_and_nowhere_near(task):
    assert np.linalg.norm(mean_gradient(task, task.optimum)) < 2e-3
    assert np.linalg.norm(mean_gradient(task, task.optimum + np.float32(0.5))) > 0.02
    assert abs(task.evaluate(task.optimum)["metric"]) < 1e-9
    assert task.evaluate(task.optimum + np.float32(0.1))["metric"] > 1e-4


def test_the_quadratics_heterogeneity_and_noise_are_exact():
    task = Quadratic(20, 30, heterogeneity=2.5, noise=0.0)
    x = np.random.default_rng(0).normal(size=30).astype(np.float32)
    mean = mean_gradient(task, x)
    for client in range(20):
        assert np.sum((client_gradient(task, client, x) - mean) ** 2) == pytest.approx(2.5, rel=0.02)
    noisy = Quadratic(20, 30, heterogeneity=2.5, noise=3.0)
    deviations = [
        np.sum((client_gradient(noisy, 0, x, Stream.named(0, "noise", 0, number)) - client_gradient(task, 0, x)) ** 2)
        for number in range(400)
    ]
    assert np.mean(deviations) == pytest.approx(9.0, rel=0.08)


def test_the_quadratics_smoothness_is_its_largest_curvature():
    task = Quadratic(2, 30, smoothness=4.0, strong_convexity=0.5, noise=0.0, heterogeneity=0.0)
    difference = client_gradient(task, 0, task.optimum + np.eye(30, dtype=np.float32)[-1])
    assert np.linalg.norm(difference) == pytest.approx(4.0, rel=1e-3)
    assert task.constants.smoothness == 4.0
    assert task.constants.initial_gap == task.evaluate(task.initial_model(STREAM))["metric"]
    x = task.initial_model(STREAM)
    assert task.evaluate(x)["gradient_norm_squared"] == pytest.approx(
        np.sum(client_gradient(task, 0, x) ** 2), rel=1e-3
    )


def test_the_logistic_bounds_hold():
    task = SyntheticLogistic(10, 20, heterogeneity=0.04)
    generator = np.random.default_rng(1)
    for _ in range(5):
        x, y = generator.normal(size=(2, 20)).astype(np.float32)
        mean = mean_gradient(task, x)
        for client in range(10):
            gradient = client_gradient(task, client, x)
            assert np.sum((gradient - mean) ** 2) <= task.constants.heterogeneity
            change = np.linalg.norm(gradient - client_gradient(task, client, y))
            assert change <= 1.01 * task.constants.smoothness * np.linalg.norm(x - y)


@pytest.mark.parametrize("make", [Quadratic, SyntheticLogistic])
def test_a_million_clients_cost_no_memory_and_no_time(make):
    task = make(1_000_000, 10)
    trained = train_from(task, 999_999, task.initial_model(STREAM), LocalTraining(0.1, 2), STREAM)
    assert np.isfinite(trained).all()
    assert task.samples(999_999) >= 1


@pytest.mark.parametrize("make", [Quadratic, SyntheticLogistic])
def test_impossible_problems_are_refused(make):
    with pytest.raises(ConfigError, match="at least one client"):
        make(0, 10)
    with pytest.raises(ConfigError, match="negative"):
        make(1, 10, noise=-1.0)


def test_what_a_convex_task_cannot_do_is_said():
    with pytest.raises(ConfigError, match="batch_size"):
        train_from(Quadratic(2, 5), 0, np.zeros(5, np.float32), LocalTraining(0.1, 1, batch_size=3), STREAM)
    with pytest.raises(ConfigError, match="strong_convexity"):
        Quadratic(2, 5, strong_convexity=2.0)


def test_gradients_are_clipped_and_weights_decay():
    task = Quadratic(2, 5, noise=0.0)
    x = np.full(5, 100, np.float32)
    moved = x - train_from(task, 0, x, LocalTraining(1.0, 1, clip_norm=0.5), STREAM)
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-4)
    plain = x - train_from(task, 0, x, LocalTraining(1.0, 1), STREAM)
    decayed = x - train_from(task, 0, x, LocalTraining(1.0, 1, weight_decay=0.1), STREAM)
    np.testing.assert_allclose(decayed - plain, 0.1 * x, rtol=1e-4)
