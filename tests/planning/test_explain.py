"""What a plan says of its reasons."""

from dataclasses import replace

import pytest

from qafel.planning import (
    make_plan,
    plan_json,
    reasons,
)
from qafel.theory import Constants
from tests.planning.cases import NOISY, REQUEST, SLOW_FLEET, SLOW_REQUEST, said


def test_a_budget_too_small_for_fedbuff_is_said_to_be():
    made = make_plan(replace(REQUEST, budget_bytes=2000.0))
    assert not made.fedbuff_fits
    assert any("does not pay for a single server step" in reason for reason in reasons(made))


def test_a_plan_whose_pace_the_downlink_limits_says_so():
    made = make_plan(replace(SLOW_REQUEST, buffer_sizes=[10]))
    for choice in (made.recommended, made.fedbuff, *made.alternatives):
        assert choice.forecast.limited_by_downlink
        assert choice.forecast.broadcast_bytes <= 1e5 * (choice.forecast.duration_s + 2)
    assert "the downlink limits the pace" in said(made)
    assert plan_json(made)["recommended"]["forecast"]["limited_by_downlink"]
    wide = replace(SLOW_FLEET, download_rate=None)
    assert "downlink" not in said(make_plan(replace(SLOW_REQUEST, fleet=wide, buffer_sizes=[10])))


def test_the_reason_for_k_gives_the_figures_of_its_neighbours():
    made = make_plan(replace(SLOW_REQUEST, budget_s=None, budget_bytes=1e12))
    size, tried = made.recommended.setting.buffer_size, made.request.searched
    at = tried.index(size)
    assert 0 < at < len(tried) - 1
    for near in (tried[at - 1], tried[at + 1]):
        other = next(it for it in made.other_buffers if it.setting.buffer_size == near)
        assert other.bound.total >= made.recommended.bound.total
        assert f"with {near} the bound would be {other.bound.total:.4g}" in said(made)


@pytest.mark.parametrize(
    ("change", "size", "words"),
    [
        ({}, 1000, "no larger one was tried, as it holds an update of every client"),
        ({"constants": Constants(1.0, 0.0, 0.0, 1.0), "max_staleness": 0}, 1, "a buffer cannot be smaller"),
        ({"buffer_sizes": [7]}, 7, "K = 7 as asked for"),
        ({"fleet": replace(SLOW_FLEET, clients=1)}, 1, "no other K is possible"),
    ],
)
def test_a_k_at_the_edge_is_said_to_be(change, size, words):
    made = make_plan(replace(SLOW_REQUEST, **{"budget_s": None, "budget_bytes": 1e10, **change}))
    assert made.recommended.setting.buffer_size == size
    assert words in said(made)


def test_what_staleness_means_is_said():
    request = replace(SLOW_REQUEST, budget_s=None, budget_bytes=1e11)
    assert "what one cycle of the run exceeds on average" in said(make_plan(request))
    assert "from the 500 updates given" in said(make_plan(replace(request, max_staleness=500)))


def test_a_plan_stands_where_the_comparison_has_too_many_steps_to_count():
    made = make_plan(replace(SLOW_REQUEST, budget_s=None, budget_bytes=1e42))
    assert made.matching is None
    assert plan_json(made)["to_reach_fedbuffs_bound"] is None
    assert "too many steps to count" in said(made)


def test_the_share_of_the_bound_that_client_quantization_enters_is_that_of_its_two_terms():
    made = make_plan(replace(SLOW_REQUEST, constants=NOISY))
    bound = made.recommended.bound
    share = (bound.noise + bound.staleness) / bound.total
    assert f"together they make {100 * share:.2g} % of the bound" in said(made)


def test_a_codec_of_varying_length_is_said_to_be_counted_at_its_longest():
    assert "longest payload" in said(make_plan(replace(SLOW_REQUEST, client_specs=["qsgd:4+zstd"])))
    assert "longest payload" not in said(make_plan(SLOW_REQUEST))
