"""Plans: what they recommend keeps to the budget, and a run of it costs what was forecast."""

from dataclasses import replace

import pytest

from qafel import (
    HalfNormal,
    Mushrooms,
    Quadratic,
)
from qafel.errors import ConfigError
from qafel.planning import (
    DurationLaw,
    Fleet,
    MessageSizes,
    PlanRequest,
    affordable_steps,
    forecast,
    make_plan,
    plan_json,
)
from qafel.theory import Constants, admissible, estimate_constants
from tests.planning.cases import FLEET, NOISY, REQUEST, SLOW_FLEET, SLOW_REQUEST, assert_as_forecast, said, summary_of


@pytest.mark.parametrize("task", [Quadratic(50, 200), Mushrooms(100)], ids=["quadratic", "mushrooms"])
@pytest.mark.parametrize("budget", [{"budget_bytes": 2e6}, {"budget_s": 60.0}], ids=["bytes", "time"])
def test_a_run_of_the_recommendation_costs_what_the_plan_forecast(task, budget):
    fleet = replace(FLEET, clients=task.clients, latency=0.01)
    constants = estimate_constants(task)
    made = make_plan(PlanRequest(size=task.layout.size, fleet=fleet, constants=constants, local_steps=2, **budget))
    chosen, settings = made.recommended, plan_json(made)["recommended"]["algorithm"]
    settings.pop("preset")
    summary = summary_of(task, settings, fleet, HalfNormal(0), chosen.setting.server_steps)
    assert_as_forecast(chosen.forecast, summary)
    # The stalest update of a run is a matter of chance: what the theorem was told is near it, or above.
    assert summary["staleness_max"] <= 1.3 * chosen.setting.max_staleness + 1


@pytest.mark.parametrize("every_copy", [False, True])
@pytest.mark.parametrize("budget", [{"budget_bytes": 1e8}, {"budget_s": 1e4}, {"budget_bytes": 1e8, "budget_s": 1e3}])
def test_a_plan_keeps_to_its_budget_and_one_step_more_would_not(budget, every_copy):
    request = replace(REQUEST, **{"budget_bytes": None, **budget}, every_copy=every_copy)
    for choice in (made := make_plan(request)).recommended, made.fedbuff, *made.alternatives:
        size, steps = choice.setting.buffer_size, choice.setting.server_steps

        def cost(steps, choice=choice, size=size):
            expected = forecast(choice.message_sizes, request.fleet, size, steps)
            counted = expected.crossing_bytes if every_copy else expected.traffic_bytes
            return {"budget_bytes": counted, "budget_s": expected.duration_s}

        assert all(cost(steps)[name] <= limit * (1 + 1e-9) for name, limit in budget.items())
        assert any(cost(steps + 1)[name] > limit for name, limit in budget.items())


def test_the_step_sizes_of_a_plan_are_admissible_and_its_bound_no_worse_than_fedbuffs():
    made = make_plan(REQUEST)
    for choice in (made.recommended, made.fedbuff, *made.alternatives):
        sizes = choice.step_sizes
        assert admissible(REQUEST.constants, choice.setting, sizes.client_lr, sizes.server_lr)
        assert made.recommended.bound.total <= choice.bound.total
    assert made.matching.traffic_bytes < 0.5 * made.fedbuff.forecast.traffic_bytes


def test_a_larger_budget_never_has_a_larger_bound():
    bounds = [make_plan(replace(REQUEST, budget_bytes=10.0**power)).recommended.bound.total for power in (6, 7, 8, 9)]
    assert bounds == sorted(bounds, reverse=True)


def test_where_only_time_counts_and_messages_travel_at_once_quantizing_costs_next_to_nothing_and_saves_bytes():
    instant = Fleet(clients=100, durations=DurationLaw("half-normal"))
    made = make_plan(replace(REQUEST, fleet=instant, budget_bytes=None, budget_s=1e5))
    assert made.recommended.bound.total <= 1.06 * made.fedbuff.bound.total
    assert made.recommended.forecast.crossing_bytes < 0.5 * made.fedbuff.forecast.crossing_bytes


def test_a_client_quantizer_whose_error_exceeds_what_it_sends_can_be_asked_for():
    """An unbiased Q_c with ω > 1 has no δ by the paper's definition; its proof holds with 2 − δ_c = 1 + ω."""
    chosen = make_plan(replace(REQUEST, client_specs=["rand_k:0.1"])).recommended
    assert chosen.setting.client_delta == pytest.approx(-8)


def test_a_budget_that_pays_for_nothing_is_an_error():
    with pytest.raises(ConfigError, match="does not pay for one server step"):
        make_plan(replace(REQUEST, budget_bytes=100.0))
    assert affordable_steps(MessageSizes(100, 100, 100), FLEET, 1, budget_s=1e-9) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"server_specs": ["qsgd:2"]}, "no δ > 0"),
        ({"client_specs": ["sign"]}, "is biased"),
        ({"client_specs": ["qsgd:4", "sign"]}, "is biased"),
        ({"budget_bytes": None}, "needs a budget"),
        ({"budget_bytes": -1.0}, "is positive"),
        ({"size": 0}, "at least one parameter"),
    ],
)
def test_an_impossible_request_is_an_error_that_says_why(change, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(replace(REQUEST, **change))


@pytest.mark.parametrize("clients", [20_000, 10**6])
def test_k_is_searched_up_to_the_number_of_clients(clients):
    request = replace(SLOW_REQUEST, fleet=replace(SLOW_FLEET, clients=clients, download_rate=None), constants=NOISY)
    assert request.searched[:4] == (1, 2, 5, 10)
    assert request.searched[-1] == clients
    made = make_plan(request)
    assert made.recommended.setting.buffer_size > 1000
    sizes = [choice.setting.buffer_size for choice in made.other_buffers]
    assert sorted([*sizes, made.recommended.setting.buffer_size]) == list(request.searched)


@pytest.mark.parametrize("given", [None, 10**6])
def test_staleness_is_no_larger_than_the_run_is_long(given):
    made = make_plan(replace(SLOW_REQUEST, budget_s=None, budget_bytes=1e6, max_staleness=given))
    for choice in (made.recommended, made.fedbuff, *made.alternatives):
        assert choice.setting.max_staleness <= choice.setting.server_steps - 1
    assert "no update can be staler" in said(made)


def test_messages_too_long_for_the_arrivals_are_not_recommended_and_arrivals_beyond_all_an_error():
    fleet = replace(SLOW_FLEET, durations=DurationLaw("constant", 0.1), arrival_rate=1000.0)
    made = make_plan(replace(SLOW_REQUEST, fleet=fleet))  # 117 kB each way take 2.4 s, 15 kB 0.4 s
    assert made.recommended.pair == ("rotated:4", "rotated:4")
    with pytest.raises(ConfigError, match="clients training at a time"):
        make_plan(replace(SLOW_REQUEST, fleet=fleet, client_specs=["none"]))


@pytest.mark.parametrize(("sizes", "remedy"), [(None, "raise it$"), ([10], "raise it, or lower K$")])
def test_a_budget_that_pays_for_nothing_says_what_would_help(sizes, remedy):
    with pytest.raises(ConfigError, match=remedy):
        make_plan(replace(SLOW_REQUEST, budget_s=None, budget_bytes=10.0, buffer_sizes=sizes))


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
        make_plan(replace(SLOW_REQUEST, **change))


def test_even_the_largest_numbers_that_are_taken_make_a_plan():
    fleet = Fleet(clients=50, durations=DurationLaw("log-normal", 1.0, 11.0), upload_rate=1e-60, latency=1e60)
    constants = Constants(1e60, 1e60, 1e60, 1e60)
    request = replace(
        SLOW_REQUEST, fleet=fleet, constants=constants, budget_s=None, budget_bytes=1e60, local_steps=10**18
    )
    made = make_plan(request)
    assert made.recommended.forecast.duration_s > 0
    assert affordable_steps(made.recommended.message_sizes, fleet, 1, budget_s=1e60) == 0
