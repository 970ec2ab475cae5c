"""Forecasts are what a run then does: short runs, heavy tails, arrivals, and runs that the downlink holds back."""

from dataclasses import replace

import pytest

from qafel import (
    Constant,
    ConstantRate,
    Evaluation,
    HalfNormal,
    Limits,
    LogNormal,
    Quadratic,
    Timing,
    method,
    simulate,
)
from qafel.errors import ConfigError
from qafel.quantizers import parse
from qafel.search.planning import (
    DurationLaw,
    Fleet,
    MessageSizes,
    affordable_steps,
    forecast,
)
from tests.search.planning.cases import LAWS, SLOW_FLEET, assert_as_forecast, summary_of

PLAIN = parse("none")


SMALL = MessageSizes.of(PLAIN, PLAIN, 4)


def simulated(clients, durations, buffer_size, steps):
    algorithm = method("fedbuff", buffer_size=buffer_size, local_steps=1, client_lr=0.01, server_lr=0.01)
    summary = simulate(
        Quadratic(clients, 4),
        algorithm,
        Timing(duration=durations),
        limits=Limits(server_steps=steps),
        evaluation=Evaluation(every=steps),
    ).summary
    return summary["virtual_time"]


@pytest.mark.parametrize(
    ("law", "durations", "clients", "buffer_size", "steps", "tolerance"),
    [
        (DurationLaw("constant", 1.0), Constant(1.0), 100, 10, 10, 1e-9),
        (DurationLaw("constant", 1.0), Constant(1.0), 100, 10, 51, 1e-9),
        # One run's time is chance: at most three of its standard deviations.
        (DurationLaw("half-normal"), HalfNormal(seed=0), 1000, 10, 1, 0.9),
        (DurationLaw("half-normal"), HalfNormal(seed=0), 1000, 10, 10, 0.3),
        (DurationLaw("log-normal", 1.0, 1.5), LogNormal(seed=0, scale=1.0, spread=1.5), 100, 10, 40, 0.3),
        (DurationLaw("log-normal", 1.0, 2.0), LogNormal(seed=0, scale=1.0, spread=2.0), 40, 8, 50, 0.4),
        (DurationLaw("log-normal", 1.0, 2.0), LogNormal(seed=0, scale=1.0, spread=2.0), 40, 8, 200, 0.3),
    ],
)
def test_the_time_of_a_short_or_heavy_tailed_run_is_forecast(law, durations, clients, buffer_size, steps, tolerance):
    fleet = Fleet(clients=clients, durations=law)
    expected = forecast(SMALL, fleet, buffer_size, steps).duration_s
    assert expected == pytest.approx(simulated(clients, durations, buffer_size, steps), rel=tolerance)
    assert affordable_steps(SMALL, fleet, buffer_size, budget_s=expected) >= steps
    if law.name != "constant":
        assert affordable_steps(SMALL, fleet, buffer_size, budget_s=0.999 * expected) == steps - 1


MODEL = MessageSizes.of(PLAIN, PLAIN, 29_282)


def test_steps_follow_each_other_no_faster_than_a_client_hears_their_broadcasts():
    cost, longer = (forecast(MODEL, SLOW_FLEET, 10, steps) for steps in (1000, 2000))
    assert cost.limited_by_downlink
    assert longer.duration_s - cost.duration_s == pytest.approx(1000 * MODEL.broadcast_bytes / 1e5)
    assert longer.duration_s >= longer.broadcast_bytes / SLOW_FLEET.download_rate
    steps = affordable_steps(MODEL, SLOW_FLEET, 10, budget_s=3600)
    assert (
        forecast(MODEL, SLOW_FLEET, 10, steps).duration_s
        <= 3600
        < forecast(MODEL, SLOW_FLEET, 10, steps + 1).duration_s
    )


def test_a_first_step_waits_for_no_broadcast_and_slow_steps_for_none_either():
    assert not forecast(MODEL, SLOW_FLEET, 10, 1).limited_by_downlink
    assert not forecast(MODEL, SLOW_FLEET, 1000, 100).limited_by_downlink


def test_no_more_can_arrive_than_there_are_clients():
    with pytest.raises(ConfigError, match="keep 800 clients training at a time, and there are 100: .* at most 125"):
        Fleet(clients=100, durations=DurationLaw("constant", 0.8), arrival_rate=1000.0)


def test_updates_that_take_no_time_but_on_the_wire_can_be_planned_for():
    fleet = Fleet(clients=10, durations=DurationLaw("constant", 0.0), upload_rate=1000.0)
    assert forecast(MessageSizes(500, 500, 500), fleet, 10, 4).duration_s == pytest.approx(2.0)
    with pytest.raises(ConfigError, match="duration above zero"):
        Fleet(clients=10, durations=DurationLaw("constant", 0.0))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("client", "server"),
    [("none", "none"), ("qsgd:4", "top_k:0.1"), ("rotated:3", "scaled:rotated:2"), ("rand_k:0.1", "sign")],
)
def test_bytes_and_time_are_forecast_for_every_law_and_kind_of_quantizer(law, client, server):
    task, (durations, drawn) = Quadratic(40, 300), LAWS[law]
    fleet = Fleet(clients=40, durations=durations, upload_rate=300.0, download_rate=1000.0, latency=0.1)
    exchange = MessageSizes.of(parse(client), parse(server), 300, missed=40 / 8)
    settings = {"client_quantizer": client, "server_quantizer": server, "buffer_size": 8}
    summary = summary_of(task, {**settings, "local_steps": 1, "client_lr": 0.01, "server_lr": 0.01}, fleet, drawn, 250)
    assert_as_forecast(forecast(exchange, fleet, 8, 250), summary)


def test_time_is_forecast_for_clients_that_arrive_at_a_rate():
    task = Quadratic(40, 300)
    fleet = Fleet(clients=40, durations=DurationLaw("half-normal"), arrival_rate=50.0)
    settings = {"buffer_size": 8, "local_steps": 1, "client_lr": 0.01, "server_lr": 0.01}
    settings |= {"client_quantizer": "none", "server_quantizer": "none"}
    plain = parse("none")
    summary = summary_of(task, settings, fleet, HalfNormal(seed=0), 250, arrivals=ConstantRate(rate=50.0))
    assert_as_forecast(forecast(MessageSizes.of(plain, plain, 300, missed=40 / 8), fleet, 8, 250), summary)


@pytest.mark.parametrize(
    "change", [{"upload_rate": 1e-300}, {"latency": 1e300}, {"clients": 10**80}, {"arrival_rate": 1e300}]
)
def test_a_fleet_beyond_reason_is_an_error(change):
    with pytest.raises(ConfigError, match="1e"):
        replace(SLOW_FLEET, **change)
