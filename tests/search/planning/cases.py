"""Fleets and runs that several tests of planning share."""

import pytest

from qafel import Constant, Evaluation, HalfNormal, Limits, LogNormal, Network, Timing, Uniform, method, simulate
from qafel.search.planning import DurationLaw, Fleet

LAWS = {
    "constant": (DurationLaw("constant", 2.0), Constant(2.0)),
    "half-normal": (DurationLaw("half-normal", 2.0), HalfNormal(seed=0, scale=2.0)),
    "log-normal": (DurationLaw("log-normal", 2.0, 0.7), LogNormal(seed=0, scale=2.0, spread=0.7)),
    "uniform": (DurationLaw("uniform", 2.0, 0.5), Uniform(seed=0, scale=2.0, spread=0.5)),
}

SLOW_FLEET = Fleet(clients=1000, durations=DurationLaw("half-normal", 5.0), upload_rate=1e5, download_rate=1e5)


def summary_of(task, settings, fleet, durations, steps, **timing):
    """The summary of a run of these settings on the fleet."""
    network = Network()
    if fleet.upload_rate is not None:
        network = Network(upload_rate=fleet.upload_rate, download_rate=fleet.download_rate, latency=fleet.latency)
    return simulate(
        task,
        method("qafel", **settings),
        Timing(duration=durations, network=network, **timing),
        limits=Limits(server_steps=steps),
        evaluation=Evaluation(every=steps),
    ).summary


def assert_as_forecast(expected, summary, tolerance=0.05):
    assert expected.uploads == summary["uploads"]
    assert expected.upload_bytes == pytest.approx(summary["upload_bytes_total"], rel=tolerance)
    assert expected.broadcast_bytes == pytest.approx(summary["broadcast_bytes_total"], rel=tolerance)
    assert expected.received_by_all_bytes == pytest.approx(summary["received_by_all_bytes_total"], rel=tolerance)
    assert expected.duration_s == pytest.approx(summary["virtual_time"], rel=tolerance)
