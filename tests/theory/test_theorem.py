"""Theorem 3.1: by hand, in its limits, in every argument, and against runs of a quadratic with known constants."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qafel import Constant, Quadratic, Uniform
from qafel.errors import ConfigError
from qafel.quantizers import parse
from qafel.theory import (
    Setting,
    admissible,
    best_bound,
    best_step_sizes,
    bound,
    conditions,
    corollary,
    largest_client_lr,
    largest_server_lr,
    max_staleness,
    require_admissible,
    steps_to_reach,
    trivial_bound,
)
from tests.theory.problems import PROBLEM, SETTING, positive, problems, run, settings_of_runs


def test_the_terms_are_those_computed_by_hand():
    found = bound(PROBLEM, SETTING, client_lr=0.01, server_lr=0.1)
    theta = 1 / 24
    variance = (1 + 3 * theta) * 9 + 2 * (25 / 23) * 2 * 5  # (1 + 3θ)σ_ℓ² + 2(1 + θ)/(1 − θ)·PB
    assert found.start == pytest.approx(140)  # 4·7 / (100·0.1·2·0.01)
    assert found.staleness == pytest.approx(8 * 4 * 0.01 * 2 * 1e-4 * 1.5 * (9 + 48) * variance / 4)
    assert found.drift == pytest.approx(1.792)  # 80·4·4·1e-4·(9 + 5)
    assert found.noise == pytest.approx(2 * 2 * 0.1 * 0.01 * 1.5 * variance / 4)
    assert found.total == pytest.approx(140 + 1.792 + 0.0435901 + 0.0477962)


def test_the_conditions_are_those_computed_by_hand():
    server, staleness, local, quantizer = conditions(PROBLEM, SETTING, client_lr=0.01, server_lr=0.1)
    assert (server.left, server.right) == (pytest.approx(0.573), 0.5)  # 0.01·57 + 1.5·0.01·0.1·2, 1/2
    assert (staleness.left, staleness.right) == (pytest.approx(1e-4), pytest.approx(1 / 3840))
    assert (local.left, local.right) == (0.01, pytest.approx(1 / 24))
    assert (quantizer.left, quantizer.right) == (pytest.approx(3.6e-3), 1)  # 4·2·1e-4·4·(1 + 0.5/4)
    assert not admissible(PROBLEM, SETTING, 0.01, 0.1)
    assert admissible(PROBLEM, SETTING, 0.01, 0.09)


def test_a_failing_condition_is_named_with_the_factor_by_which_it_fails():
    with pytest.raises(ConfigError, match=r"4L\(P \+ 1\).* factor of 2") as caught:
        require_admissible(PROBLEM, SETTING, 0.0833, 0.01)
    assert "η_ℓ² ≤ 1/(80 L² P² max(τ, ½))" in str(caught.value)
    assert "1/P" not in str(caught.value)
    require_admissible(PROBLEM, SETTING, 0.01, 0.09)


def test_without_staleness_a_fresh_updates_own_gradient_is_still_counted():
    fresh = replace(SETTING, max_staleness=0)
    assert conditions(PROBLEM, fresh, 0.01, 0.1)[1].right == pytest.approx(1 / (40 * 4 * 4))
    assert largest_client_lr(PROBLEM, fresh) == pytest.approx(1 / (math.sqrt(40) * 2 * 2))
    assert largest_client_lr(PROBLEM, replace(fresh, local_steps=1)) == pytest.approx(1 / 16)


def test_the_first_condition_covers_either_delta_that_the_paper_prints_in_it():
    """The theorem has 1 − δ_s, its appendix 1 − δ_c; 1 + 2ω_c is above both."""
    left = [conditions(PROBLEM, replace(SETTING, client_delta=delta), 0.01, 0.1)[0].left for delta in (-1, 0.5, 1)]
    assert left[0] > left[1] > left[2] > 0.01 * 57 + (1 + 1 / 4 - 0.5 / 4) * 0.01 * 0.1 * 2


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
    assert many.noise > few.noise


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
        ({"server_delta": 0.0}, "δ_s"),
        ({"server_delta": 1.1}, "δ_s"),
        ({"client_delta": 1.1}, "δ_c"),
        ({"client_delta": -math.inf}, "δ_c"),
        ({"buffer_size": 0}, "buffer size"),
        ({"max_staleness": -1}, "staleness"),
        ({"server_steps": 10**61}, "server steps"),
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


SIZE, CLIENTS, STEPS, STALENESS = 64, 20, 1500, 4


TASK = Quadratic(CLIENTS, SIZE, heterogeneity=0.02, noise=0.1)


@pytest.mark.parametrize(
    ("client", "server"),
    [
        ("rotated:3", "rotated:4"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (("none", "none"), ("qsgd:8", "qsgd:8"))),
        pytest.param("qsgd:4", "top_k:0.1", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("sizes", ["best", "largest"])
def test_the_measured_gradient_norm_stays_below_the_bound_for_admissible_step_sizes(client, server, sizes):
    setting = Setting(
        local_steps=2,
        buffer_size=10,
        server_steps=STEPS,
        max_staleness=STALENESS,
        client_delta=parse(client).delta(SIZE),
        server_delta=parse(server).delta(SIZE),
    )
    if sizes == "best":
        best = best_step_sizes(TASK.constants, setting)
        chosen = best.client_lr, best.server_lr
    else:
        most = largest_client_lr(TASK.constants, setting)
        chosen = most, largest_server_lr(TASK.constants, setting, most)
    require_admissible(TASK.constants, setting, *chosen)
    mean, summary = run(setting, chosen, client, server, task=TASK, duration=Uniform(seed=0))
    assert summary["staleness_max"] <= STALENESS
    promised = bound(TASK.constants, setting, *chosen).total
    assert mean <= promised
    if server != "top_k:0.1":
        assert promised < trivial_bound(TASK.constants)  # so that the bound says something here


def test_the_bound_fails_where_some_clients_never_arrive():
    """The paper claims its theorem without uniform arrivals; its proof drops 2B (docs/reproduction-theorem.md)."""
    task = Quadratic(2, 16, heterogeneity=1.0, noise=0.0, strong_convexity=1.0)
    setting = Setting(local_steps=1, buffer_size=1, server_steps=4000)
    chosen = 0.02, 0.28
    require_admissible(task.constants, setting, *chosen)
    only_the_first = [(float(number), 0) for number in range(setting.server_steps + 1)]
    mean, summary = run(setting, chosen, task=task, duration=Constant(0.5), arrivals=only_the_first)
    assert summary["staleness_max"] == 0
    assert mean > 0.8 * task.constants.heterogeneity > 5 * bound(task.constants, setting, *chosen).total
