"""Plans at their edges: a narrow downlink, the smallest and the largest K, short runs, and numbers beyond reason."""

from dataclasses import replace

import pytest

from qafel.errors import ConfigError
from qafel.planning import DurationLaw, Fleet, PlanRequest, affordable_steps, make_plan, plan_json, reasons
from qafel.theory import Constants

FLEET = Fleet(clients=1000, durations=DurationLaw("half-normal", 5.0), upload_rate=1e5, download_rate=1e5)
REQUEST = PlanRequest(
    size=29_282,
    fleet=FLEET,
    constants=Constants(1.0, 1.0, 1.0, 1.0),
    budget_s=1e5,
    client_specs=["none", "rotated:4"],
    server_specs=["none", "rotated:4"],
)
NOISY = Constants(1.0, 1e5, 0.0, 1.0)


def said(made):
    return " ".join(reasons(made))


def test_a_plan_whose_pace_the_downlink_limits_says_so():
    made = make_plan(replace(REQUEST, buffer_sizes=[10]))
    for choice in (made.recommended, made.fedbuff, *made.alternatives):
        assert choice.forecast.limited_by_downlink
        assert choice.forecast.broadcast_bytes <= 1e5 * (choice.forecast.duration_s + 2)
    assert "the downlink limits the pace" in said(made)
    assert plan_json(made)["recommended"]["forecast"]["limited_by_downlink"]
    wide = replace(FLEET, download_rate=None)
    assert "downlink" not in said(make_plan(replace(REQUEST, fleet=wide, buffer_sizes=[10])))


@pytest.mark.parametrize("clients", [20_000, 10**6])
def test_k_is_searched_up_to_the_number_of_clients(clients):
    request = replace(REQUEST, fleet=replace(FLEET, clients=clients, download_rate=None), constants=NOISY)
    assert request.searched[:4] == (1, 2, 5, 10)
    assert request.searched[-1] == clients
    made = make_plan(request)
    assert made.recommended.setting.buffer_size > 1000
    sizes = [choice.setting.buffer_size for choice in made.other_buffers]
    assert sorted([*sizes, made.recommended.setting.buffer_size]) == list(request.searched)


def test_the_reason_for_k_gives_the_figures_of_its_neighbours():
    made = make_plan(replace(REQUEST, budget_s=None, budget_bytes=1e12))
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
        ({"fleet": replace(FLEET, clients=1)}, 1, "no other K is possible"),
    ],
)
def test_a_k_at_the_edge_is_said_to_be(change, size, words):
    made = make_plan(replace(REQUEST, **{"budget_s": None, "budget_bytes": 1e10, **change}))
    assert made.recommended.setting.buffer_size == size
    assert words in said(made)


@pytest.mark.parametrize("given", [None, 10**6])
def test_staleness_is_no_larger_than_the_run_is_long(given):
    made = make_plan(replace(REQUEST, budget_s=None, budget_bytes=1e6, max_staleness=given))
    for choice in (made.recommended, made.fedbuff, *made.alternatives):
        assert choice.setting.max_staleness <= choice.setting.server_steps - 1
    assert "no update can be staler" in said(made)


def test_what_staleness_means_is_said():
    request = replace(REQUEST, budget_s=None, budget_bytes=1e11)
    assert "what one cycle of the run exceeds on average" in said(make_plan(request))
    assert "from the 500 updates given" in said(make_plan(replace(request, max_staleness=500)))


def test_a_plan_stands_where_the_comparison_has_too_many_steps_to_count():
    made = make_plan(replace(REQUEST, budget_s=None, budget_bytes=1e42))
    assert made.matching is None
    assert plan_json(made)["to_reach_fedbuffs_bound"] is None
    assert "too many steps to count" in said(made)


def test_messages_too_long_for_the_arrivals_are_not_recommended_and_arrivals_beyond_all_an_error():
    fleet = replace(FLEET, durations=DurationLaw("constant", 0.1), arrival_rate=1000.0)
    made = make_plan(replace(REQUEST, fleet=fleet))  # 117 kB each way take 2.4 s, 15 kB 0.4 s
    assert made.recommended.pair == ("rotated:4", "rotated:4")
    with pytest.raises(ConfigError, match="clients training at a time"):
        make_plan(replace(REQUEST, fleet=fleet, client_specs=["none"]))


@pytest.mark.parametrize(("sizes", "remedy"), [(None, "raise it$"), ([10], "raise it, or lower K$")])
def test_a_budget_that_pays_for_nothing_says_what_would_help(sizes, remedy):
    with pytest.raises(ConfigError, match=remedy):
        make_plan(replace(REQUEST, budget_s=None, budget_bytes=10.0, buffer_sizes=sizes))


def test_the_share_of_the_bound_that_client_quantization_enters_is_that_of_its_two_terms():
    made = make_plan(replace(REQUEST, constants=NOISY))
    bound = made.recommended.bound
    share = (bound.noise + bound.staleness) / bound.total
    assert f"together they make {100 * share:.2g} % of the bound" in said(made)


def test_a_codec_of_varying_length_is_said_to_be_counted_at_its_longest():
    assert "longest payload" in said(make_plan(replace(REQUEST, client_specs=["qsgd:4+zstd"])))
    assert "longest payload" not in said(make_plan(REQUEST))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 3 * 10**9}, "no quantizer takes a model of this size"),
        ({"budget_s": 1e61}, "time budget is positive, from 1e-60 to 1e\\+60"),
        ({"constants": Constants(1e200, 1.0, 1.0, 1.0)}, "smoothness L is positive, from 1e-60"),
        ({"constants": Constants(1.0, 1e200, 1.0, 1.0)}, "gradient noise σ_ℓ is zero or more, and at most"),
    ],
)
def test_a_number_beyond_reason_is_an_error_that_names_it(change, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(replace(REQUEST, **change))


@pytest.mark.parametrize(
    "change", [{"upload_rate": 1e-300}, {"latency": 1e300}, {"clients": 10**80}, {"arrival_rate": 1e300}]
)
def test_a_fleet_beyond_reason_is_an_error(change):
    with pytest.raises(ConfigError, match="1e"):
        replace(FLEET, **change)


def test_even_the_largest_numbers_that_are_taken_make_a_plan():
    fleet = Fleet(clients=50, durations=DurationLaw("log-normal", 1.0, 11.0), upload_rate=1e-60, latency=1e60)
    constants = Constants(1e60, 1e60, 1e60, 1e60)
    request = replace(REQUEST, fleet=fleet, constants=constants, budget_s=None, budget_bytes=1e60, local_steps=10**18)
    made = make_plan(request)
    assert made.recommended.forecast.duration_s > 0
    assert affordable_steps(made.recommended.message_sizes, fleet, 1, budget_s=1e60) == 0
