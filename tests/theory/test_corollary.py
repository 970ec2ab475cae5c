"""Corollary 3.2, and the step sizes with the least bound."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qafel.errors import ConfigError
from qafel.theory import (
    Constants,
    Setting,
    admissible,
    best_bound,
    best_step_sizes,
    bound,
    corollary,
    corollary_step_sizes,
    large_enough_horizon,
    largest_client_lr,
    largest_server_lr,
    steps_to_reach,
)
from tests.theory.problems import PROBLEM, SETTING, problems, settings_of_runs


@given(problems, settings_of_runs, st.floats(0.01, 10), st.floats(0.01, 10))
def test_the_theorem_at_the_corollarys_step_sizes_has_the_corollarys_terms(problem, setting, a, b):
    found = corollary(problem, setting, a, b)
    steps, size, horizon, smoothness = (
        setting.local_steps,
        setting.buffer_size,
        setting.server_steps,
        problem.smoothness,
    )
    theta = (steps - 1) / (8 * (steps + 1))
    variance = (1 + 3 * theta) * problem.gradient_noise**2
    variance += 2 * (1 + theta) / (1 - theta) * steps * problem.heterogeneity
    sent, root = (2 - setting.client_delta) * variance, (steps * horizon) ** 0.5
    lag = setting.max_staleness**2 + 12 / setting.server_delta**2
    assert found.start == pytest.approx(4 / (a * b) * problem.initial_gap / root, rel=1e-9)
    assert found.noise == pytest.approx(2 * a * b * smoothness * sent / (size * root), rel=1e-9)
    drift = 80 * (a * smoothness) ** 2 * steps * (problem.gradient_noise**2 + problem.heterogeneity)
    assert found.drift == pytest.approx(drift / (size**2 * horizon ** (2 / 3)), rel=1e-9)
    assert found.staleness == pytest.approx(8 * (a * b * smoothness) ** 2 * lag * sent / (size * horizon), rel=1e-9)


def test_the_corollarys_terms_are_those_computed_by_hand():
    unit, theta = Constants(1.0, 1.0, 1.0, 1.0), 3 / 40
    variance = (1 + 3 * theta) + 8 * (1 + theta) / (1 - theta)
    setting = Setting(local_steps=4, buffer_size=2, server_steps=10**6, max_staleness=2, server_delta=0.5)
    found = corollary(unit, setting)
    assert found.start == pytest.approx(4 / 2000)
    assert found.noise == pytest.approx(2 * variance / (2 * 2000))
    assert found.drift == pytest.approx(80 * 4 * 2 / (4 * 10**4))
    assert found.staleness == pytest.approx(8 * (4 + 48) * variance / (2 * 10**6))


def test_the_terms_of_the_corollary_fall_at_the_rates_it_states():
    shorter, longer = (corollary(PROBLEM, replace(SETTING, server_steps=steps)) for steps in (10**6, 64 * 10**6))
    assert shorter.start / longer.start == pytest.approx(8)
    assert shorter.noise / longer.noise == pytest.approx(8)
    assert shorter.drift / longer.drift == pytest.approx(16)
    assert shorter.staleness / longer.staleness == pytest.approx(64)


def test_from_a_large_enough_horizon_on_the_corollarys_step_sizes_are_admissible():
    enough = large_enough_horizon(PROBLEM, SETTING, 1.0, 0.1)

    def suits(steps):
        setting = replace(SETTING, server_steps=steps)
        sizes = corollary_step_sizes(setting, 1.0, 0.1)
        return admissible(PROBLEM, setting, sizes.client_lr, sizes.server_lr)

    assert not suits(enough - 1)
    assert all(suits(enough * factor) for factor in (1, 2, 1000))


@given(problems, settings_of_runs, st.floats(0.05, 1), st.floats(0.05, 1))
def test_no_admissible_step_sizes_have_a_smaller_bound_than_the_best(problem, setting, first, second):
    best = best_step_sizes(problem, setting)
    least = bound(problem, setting, best.client_lr, best.server_lr).total
    assert admissible(problem, setting, best.client_lr, best.server_lr)
    client_lr = first * largest_client_lr(problem, setting)
    for client in (client_lr, first * best.client_lr, best.client_lr):
        server_lr = second * largest_server_lr(problem, setting, client)
        assert bound(problem, setting, client, server_lr).total >= least * (1 - 1e-6)


def test_the_steps_to_reach_a_bound_reach_it_and_fewer_do_not():
    steps = steps_to_reach(PROBLEM, SETTING, 20.0)
    assert best_bound(PROBLEM, replace(SETTING, server_steps=steps)).total <= 20
    assert best_bound(PROBLEM, replace(SETTING, server_steps=int(0.99 * steps))).total > 20
    with pytest.raises(ConfigError, match="positive"):
        steps_to_reach(PROBLEM, SETTING, 0.0)
