"""Theorem 3.1 and Corollary 3.2: by hand, in their limits, and in every argument."""

import math
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
    conditions,
    corollary,
    corollary_step_sizes,
    large_enough_horizon,
    largest_client_lr,
    largest_server_lr,
    max_staleness,
    require_admissible,
    steps_to_reach,
)

PROBLEM = Constants(smoothness=2.0, gradient_noise=3.0, heterogeneity=5.0, initial_gap=7.0)
SETTING = Setting(local_steps=2, buffer_size=4, server_steps=100, max_staleness=3, client_delta=0.5, server_delta=0.5)

positive = st.floats(1e-3, 1e3)
problems = st.builds(Constants, positive, positive, positive, positive)
settings_of_runs = st.builds(
    Setting,
    local_steps=st.integers(1, 50),
    buffer_size=st.integers(1, 1000),
    server_steps=st.integers(1, 10**6),
    max_staleness=st.integers(0, 1000),
    client_delta=st.floats(-10, 1),
    server_delta=st.floats(1e-3, 1),
)


def test_the_terms_are_those_computed_by_hand():
    found = bound(PROBLEM, SETTING, client_lr=0.01, server_lr=0.1)
    assert found.start == pytest.approx(140)  # 4·7 / (100·0.1·2·0.01)
    assert found.staleness == pytest.approx(8.856e-3)  # 8·4·0.01·2·1e-4·1.5·(9 + 32)·9/4
    assert found.drift == pytest.approx(1.792)  # 80·4·4·1e-4·(9 + 5)
    assert found.noise == pytest.approx(0.0135)  # 2·2·0.1·0.01·1.5·9/4
    assert found.total == pytest.approx(141.814356)


def test_the_conditions_are_those_computed_by_hand():
    server, staleness, local = conditions(PROBLEM, SETTING, client_lr=0.01, server_lr=0.1)
    assert (server.left, server.right) == (pytest.approx(0.41225), 0.5)  # 0.01·41 + 1.125·0.01·0.1·2, 1/2
    assert (staleness.left, staleness.right) == (pytest.approx(1e-4), pytest.approx(1 / 3840))
    assert (local.left, local.right) == (0.01, pytest.approx(1 / 24))
    assert admissible(PROBLEM, SETTING, 0.01, 0.1)


def test_a_failing_condition_is_named_with_the_factor_by_which_it_fails():
    with pytest.raises(
        ConfigError, match=r"η_ℓ ≤ 1/\(4L\(P \+ 1\)\): 0.0833 ≤ 0.04167 fails by a factor of 2"
    ) as caught:
        require_admissible(PROBLEM, SETTING, 0.0833, 0.01)
    assert "η_ℓ² ≤ 1/(80 L² P² τ)" in str(caught.value)
    assert "1/P" not in str(caught.value)
    require_admissible(PROBLEM, SETTING, 0.01, 0.1)


def test_without_staleness_only_two_conditions_bind():
    fresh = replace(SETTING, max_staleness=0)
    assert conditions(PROBLEM, fresh, 0.01, 0.1)[1].right == math.inf
    assert largest_client_lr(PROBLEM, fresh) == pytest.approx(1 / 24)


def test_the_condition_takes_the_smaller_delta_as_the_paper_has_both():
    left = [conditions(PROBLEM, replace(SETTING, client_delta=delta), 0.01, 0.1)[0].left for delta in (0.2, 0.5, 0.9)]
    assert left[0] > left[1] == left[2]


@given(problems, settings_of_runs, st.floats(1e-6, 1))
def test_the_largest_step_sizes_are_admissible_and_larger_ones_are_not(problem, setting, share):
    client_lr = share * largest_client_lr(problem, setting)
    server_lr = largest_server_lr(problem, setting, client_lr)
    assert admissible(problem, setting, client_lr, server_lr)
    assert not admissible(problem, setting, client_lr, 1.0001 * server_lr)
    assert largest_client_lr(problem, setting, 0.999 * server_lr) >= client_lr * (1 - 1e-9)
    assert largest_client_lr(problem, setting, 1e9) == 0


@given(problems, settings_of_runs, positive, positive)
def test_as_both_deltas_approach_one_the_bound_and_the_conditions_become_fedbuffs(problem, setting, client, server):
    fedbuff = setting.unquantized()
    close = replace(setting, client_delta=1 - 1e-9, server_delta=1 - 1e-9)
    assert bound(problem, close, client, server).total == pytest.approx(bound(problem, fedbuff, client, server).total)
    for found, limit in zip(
        conditions(problem, close, client, server), conditions(problem, fedbuff, client, server), strict=True
    ):
        assert found.left == pytest.approx(limit.left)
    assert corollary(problem, close).total == pytest.approx(corollary(problem, fedbuff).total)


def test_fedbuff_is_the_default():
    assert Setting(local_steps=2, buffer_size=4, server_steps=100, max_staleness=3) == SETTING.unquantized()


WORSE = [
    ("smoothness", 2.0),
    ("gradient_noise", 2.0),
    ("heterogeneity", 2.0),
    ("initial_gap", 2.0),
]
WORSE_SETTING = [
    ("server_steps", 0.5),
    ("buffer_size", 0.5),
    ("client_delta", 0.5),
    ("server_delta", 0.5),
    ("max_staleness", 2),
]


@pytest.mark.parametrize(("name", "factor"), WORSE)
@pytest.mark.parametrize("asked", [best_bound, corollary, lambda c, s: bound(c, s, 0.01, 0.1)])
def test_the_bound_grows_with_every_constant(name, factor, asked):
    worse = replace(PROBLEM, **{name: factor * getattr(PROBLEM, name)})
    assert asked(worse, SETTING).total > asked(PROBLEM, SETTING).total


@pytest.mark.parametrize(("name", "factor"), WORSE_SETTING)
@pytest.mark.parametrize("asked", [best_bound, corollary, lambda c, s: bound(c, s, 0.01, 0.1)])
def test_the_bound_grows_with_fewer_steps_smaller_buffers_coarser_quantizers_and_staleness(name, factor, asked):
    worse = replace(SETTING, **{name: type(getattr(SETTING, name))(factor * getattr(SETTING, name))})
    assert asked(PROBLEM, worse).total > asked(PROBLEM, SETTING).total


def test_more_local_steps_help_the_start_and_add_drift():
    few, many = (bound(PROBLEM, replace(SETTING, local_steps=steps), 0.01, 0.1) for steps in (2, 4))
    assert many.start < few.start
    assert many.drift > few.drift
    assert many.noise == few.noise


@given(problems, settings_of_runs, st.floats(0.01, 10), st.floats(0.01, 10))
def test_the_corollary_is_the_theorem_at_its_step_sizes(problem, setting, client_factor, server_factor):
    sizes = corollary_step_sizes(setting, client_factor, server_factor)
    inserted = bound(problem, setting, sizes.client_lr, sizes.server_lr)
    stated = corollary(problem, setting, client_factor, server_factor)
    for term in ("start", "staleness", "drift", "noise"):
        assert getattr(stated, term) == pytest.approx(getattr(inserted, term), rel=1e-9)


def test_the_corollarys_terms_are_those_computed_by_hand():
    unit = Constants(1.0, 1.0, 1.0, 1.0)
    setting = Setting(local_steps=4, buffer_size=2, server_steps=10**6, max_staleness=2, server_delta=0.5)
    found = corollary(unit, setting)
    assert found.start == pytest.approx(4 / 2000)
    assert found.noise == pytest.approx(2 / (2 * 2000))
    assert found.drift == pytest.approx(80 * 4 * 2 / (4 * 10**4))
    assert found.staleness == pytest.approx(8 * (4 + 32) / (2 * 10**6))


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
    with pytest.raises(ConfigError, match="positive for every T"):
        steps_to_reach(PROBLEM, SETTING, 0.0)


def test_no_update_is_staler_than_the_steps_before_it():
    assert [SETTING.of_length(steps).max_staleness for steps in (1, 2, 4, 100)] == [0, 1, 3, 3]
    stale = replace(SETTING, max_staleness=10**6)
    target = best_bound(PROBLEM, replace(SETTING, server_steps=2, max_staleness=1)).total
    assert steps_to_reach(PROBLEM, stale, target) == 2


@pytest.mark.parametrize(
    ("updates", "size", "steps"), [(0, 10, 0), (1, 10, 1), (100, 10, 10), (101, 10, 11), (7, 1, 7)]
)
def test_staleness_is_divided_by_the_buffer_size_and_rounded_up(updates, size, steps):
    assert max_staleness(updates, size) == steps


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"server_delta": 0.0}, "δ_s in"),
        ({"server_delta": 1.1}, "δ_s in"),
        ({"client_delta": 1.1}, "δ_c is at most one"),
        ({"client_delta": -math.inf}, "δ_c is at most one"),
        ({"buffer_size": 0}, "at least one"),
        ({"max_staleness": -1}, "zero or more"),
        ({"server_steps": 10**61}, "at most 1e\\+60"),
    ],
)
def test_an_impossible_setting_is_an_error(change, words):
    with pytest.raises(ConfigError, match=words):
        replace(SETTING, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"smoothness": 0.0},
        {"gradient_noise": -1.0},
        {"initial_gap": math.inf},
        {"smoothness": 1e200},
        {"gradient_noise": 1e200},
    ],
)
def test_impossible_constants_are_an_error(change):
    with pytest.raises(ConfigError):
        bound(replace(PROBLEM, **change), SETTING, 0.01, 0.1)
