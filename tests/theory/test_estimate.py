"""L, σ_ℓ and B as measured, against tasks whose constants are known."""

import numpy as np
import pytest

from qafel import Mushrooms, Quadratic
from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.theory import (
    estimate_constants,
    estimate_gradient_noise,
    estimate_heterogeneity,
    estimate_smoothness,
)
from qafel.theory.estimate import gradient

SIZE, CLIENTS, STEPS, STALENESS = 64, 20, 1500, 4


TASK = Quadratic(CLIENTS, SIZE, heterogeneity=0.02, noise=0.1)


def test_a_local_step_of_rate_one_is_a_gradient():
    task = Quadratic(2, 8, heterogeneity=0.0, noise=0.0)
    model = task.initial_model(Stream.named(0, "start"))
    found = gradient(task, 0, model, Stream.named(0, "gradient"))
    assert found @ found == pytest.approx(task.evaluate(model)["gradient_norm_squared"], rel=1e-5)


@pytest.mark.parametrize(
    ("smoothness", "noise", "heterogeneity", "clients"),
    [(1.0, 1.0, 1.0, 40), (4.0, 0.5, 2.0, 64), (0.3, 0.2, 0.1, 501)],
)
def test_the_estimators_recover_the_quadratics_constants(smoothness, noise, heterogeneity, clients):
    """Within 3 % for L (from below), 6 % for σ_ℓ and 20 % for B, which are maxima over noisy clients."""
    task = Quadratic(
        clients, 100, smoothness=smoothness, strong_convexity=0.1, noise=noise, heterogeneity=heterogeneity
    )
    assert 0.97 * smoothness < estimate_smoothness(task, clients=4) < 1.001 * smoothness
    assert estimate_gradient_noise(task) == pytest.approx(noise, rel=0.06)
    assert estimate_heterogeneity(task) == pytest.approx(heterogeneity, rel=0.2)


def test_without_noise_and_heterogeneity_none_is_found():
    task = Quadratic(10, 30, noise=0.0, heterogeneity=0.0)
    assert estimate_gradient_noise(task) == pytest.approx(0, abs=1e-6)
    assert estimate_heterogeneity(task) == pytest.approx(0, abs=1e-10)


def test_the_constants_of_mushrooms_are_those_of_its_rows():
    """A client's L at x⁰ = 0 is a quarter of the largest eigenvalue of its rows' second moments, plus 1/8124."""
    task = Mushrooms(100)
    found = estimate_constants(task)
    rows = task._parts[0][0].astype(np.float64)
    exact = np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1] / 4 + 1 / 8124
    assert estimate_smoothness(task, clients=100) >= 0.99 * exact
    assert found.gradient_noise == 0
    assert found.initial_gap == pytest.approx(task.evaluate(np.zeros(113, np.float32))["metric"])


def test_points_of_ones_own_can_be_asked_for():
    task = Mushrooms(10)
    far = np.full(113, 10, np.float32)
    assert estimate_smoothness(task, points=[far], iterations=5) < estimate_smoothness(task, iterations=5)


def test_too_few_gradients_for_a_variance_are_an_error():
    with pytest.raises(ConfigError, match="at least two gradients"):
        estimate_gradient_noise(TASK, repeats=1)
