"""Laws of training times, and how many updates have come by a time: against clients drawn many times over."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.errors import ConfigError
from qafel.search.planning import (
    DurationLaw,
)
from qafel.search.planning.updates import always_training, arriving
from tests.search.planning.cases import LAWS


@pytest.mark.parametrize("name", LAWS)
def test_a_laws_moments_and_extremes_are_those_of_the_simulators_draws(name):
    law, durations = LAWS[name]
    draws = [durations.draw(0, number) for number in range(20_000)]
    mean = sum(draws) / len(draws)
    assert law.mean == pytest.approx(mean, rel=0.02)
    assert law.variance == pytest.approx(sum((draw - mean) ** 2 for draw in draws) / len(draws), rel=0.08)
    assert law.largest(len(draws)) == pytest.approx(max(draws), rel=0.25)


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("1.5", DurationLaw("constant", 1.5)),
        ("constant:3", DurationLaw("constant", 3.0)),
        ("half-normal", DurationLaw("half-normal")),
        ("log-normal:2,0.7", DurationLaw("log-normal", 2.0, 0.7)),
    ],
)
def test_a_law_is_read_from_text(text, law):
    assert DurationLaw.parse(text) == law


@pytest.mark.parametrize(
    "text", ["gaussian:1", "uniform:1,2", "half-normal:1,2,3", "half-normal:1,7", "constant:-1", "nan", ""]
)
def test_a_law_that_is_none_is_an_error(text):
    with pytest.raises(ConfigError):
        DurationLaw.parse(text)


VARYING = [
    DurationLaw("half-normal", 2.0),
    DurationLaw("log-normal", 1.0, 0.5),
    DurationLaw("log-normal", 1.0, 2.0),
    DurationLaw("uniform", 3.0, 1.0),
    DurationLaw("uniform", 3.0, 0.2),
]


def drawn(law, generator, shape):
    if law.name == "uniform":
        return law.scale * (1 + law.spread * (2 * generator.random(shape) - 1))
    normal = generator.normal(size=shape)
    return law.scale * (abs(normal) if law.name == "half-normal" else np.exp(law.spread * normal))


def measured(law, transfer, clients, updates, repeats=60):
    """The mean time of the so-many-th update of all clients, and its standard error."""
    generator, times = np.random.default_rng(0), []
    for _ in range(repeats):
        ends = np.cumsum(drawn(law, generator, (clients, 20 + 12 * updates // clients)) + transfer, axis=1)
        times.append(np.partition(ends.ravel(), updates - 1)[updates - 1])
        assert ends[:, -1].min() >= times[-1]  # no client has run out of draws
    return np.mean(times), np.std(times) / math.sqrt(repeats)


@pytest.mark.parametrize("law", VARYING, ids=str)
def test_shares_and_means_within_a_duration_are_those_of_the_draws(law):
    """Each within four standard errors of 100,000 draws."""
    draws = drawn(law, np.random.default_rng(1), 100_000)
    for duration in (0.1, 1.0, 2.5, 3.1, 20.0):
        assert law.share_within(duration) == pytest.approx(np.mean(draws <= duration), abs=0.007)
        capped = np.minimum(draws, duration)
        assert law.mean_within(duration) == pytest.approx(np.mean(capped), abs=1e-6 + 4 * np.std(capped) / 316)


@pytest.mark.parametrize(
    ("law", "transfer", "clients", "updates"),
    [
        *((DurationLaw("log-normal", 1.0, 2.0), 0.0, 40, updates) for updates in (40, 400, 800)),
        *((DurationLaw("log-normal", 1.0, 1.5), 0.0, 100, updates) for updates in (10, 400, 1000)),
        *((DurationLaw("half-normal"), 0.0, 1000, updates) for updates in (10, 100, 1000, 5000)),
        *((DurationLaw("half-normal"), 10.0, 100, updates) for updates in (10, 50, 105, 550, 1000)),
        *((DurationLaw("uniform", 1.0, 0.5), 0.0, 100, updates) for updates in (10, 100, 150, 1000)),
        *((DurationLaw("uniform", 1.0, 0.01), 0.0, 100, updates) for updates in (10, 150, 1050)),
    ],
)
def test_an_update_comes_when_drawn_clients_send_it(law, transfer, clients, updates):
    """Within 3 %, and four standard errors of 60 runs, and of the half update by which the U-th is rounded."""
    time, error = measured(law, transfer, clients, updates)
    found = always_training(law, transfer, clients)
    half = found.time(updates) - found.time(updates - 0.5)
    assert found.time(updates - 0.5) == pytest.approx(time, abs=0.03 * time + 4 * error + half)


def test_constant_cycles_come_all_at_once():
    updates = always_training(DurationLaw("constant", 0.6), 0.1, 100)
    assert [updates.time(count - 0.5) for count in (1, 100, 101, 200)] == pytest.approx([0.7, 0.7, 1.4, 1.4])
    assert [updates.count(time) for time in (0.0, 0.69, 0.7, 2.1)] == [0, 0, 100, 300]


@settings(deadline=None)
@given(
    st.sampled_from(["half-normal", "log-normal", "uniform"]),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.01, 1.0, 100.0]),
    st.sampled_from([1, 30, 10**6]),
)
def test_updates_only_grow_and_a_times_count_leads_back_to_it(name, spread, transfer, clients):
    updates = always_training(DurationLaw(name, 1.0, spread * (4 if name == "log-normal" else 1)), transfer, clients)
    counts = sorted([0.5, *(share * clients for share in (0.3, 0.97, 2.5, 30.4, 1e7))])
    times = [updates.time(count) for count in counts]
    assert times == sorted(times)
    assert times[0] > 0
    assert all(
        updates.count(time * (1 + 1e-9)) >= count * (1 - 1e-6) for time, count in zip(times, counts, strict=True)
    )


def test_of_arrivals_the_first_comes_after_its_cycle_and_the_others_at_their_rate():
    constant = arriving(DurationLaw("constant", 2.0), 0.5, 10.0)
    assert [constant.time(count - 0.5) for count in (1, 2, 101)] == pytest.approx([2.5, 2.6, 12.5])
    assert [constant.count(time) for time in (2.4, 2.5)] == [0, 0.5]
    generator, law = np.random.default_rng(0), DurationLaw("log-normal", 1.0, 1.5)
    times = [np.sort(np.arange(2000) / 10 + drawn(law, generator, 2000)) for _ in range(40)]
    for updates in (10, 100, 1000):
        found = arriving(law, 0.0, 10.0).time(updates - 0.5)
        assert found == pytest.approx(np.mean([it[updates - 1] for it in times]), rel=0.06)
