"""Who starts when."""

from itertools import islice

import numpy as np
import pytest

from qafel.algorithm import method
from qafel.errors import ConfigError, DataError
from qafel.simulator import (
    Constant,
    ConstantRate,
    HalfNormal,
    Limits,
    LogNormal,
    Poisson,
    Rounds,
    Timing,
    Trace,
    Uniform,
    simulate,
)
from qafel.tasks import Quadratic


def test_constant_arrivals_are_even():
    arrivals = list(islice(ConstantRate(seed=0, clients=10, rate=4.0), 100))
    np.testing.assert_allclose([time for time, _ in arrivals], np.arange(100) / 4)
    assert {client for _, client in arrivals} == set(range(10))


def test_poisson_arrivals_have_their_rate():
    """20,000 gaps of mean 1/5: the sum is within 4 % but for odds of one in 10⁷."""
    times = np.array([time for time, _ in islice(Poisson(seed=0, clients=10, rate=5.0), 20_000)])
    assert (np.diff(times) >= 0).all()
    assert times[-1] == pytest.approx(4000, rel=0.04)
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_without_replacement_everyone_comes_once_in_every_pass():
    law = ConstantRate(seed=3, clients=50, rate=1.0, draw="without-replacement")
    clients = [client for _, client in islice(law, 150)]
    passes = np.array(clients).reshape(3, 50)
    assert all(sorted(one) == list(range(50)) for one in passes.tolist())
    assert passes[0].tolist() != passes[1].tolist()


def test_arrivals_start_afresh_each_time():
    arrivals = Poisson(seed=1, clients=10, rate=2.0)
    assert list(islice(arrivals, 50)) == list(islice(arrivals, 50))


def test_a_trace_is_read(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time,client,duration\n0,3,1.5\n0.5,1,\n")
    assert list(Trace(path, 4)) == [(0.0, 3, 1.5), (0.5, 1)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "the first line names the columns"),
        ("time,client\n1,x\n", "line 2: expected time,client"),
        ("time,client\n1,0\n0.5,0\n", "line 3: times ascend"),
        ("time,client\nnan,0\n", "times ascend"),
        ("time,client\n1,4\n", "clients are 0 to 3, found 4"),
        ("time,client,duration\n1,0,-1\n", "a duration is zero or more"),
        ("time,client\n1\n", "line 2: expected"),
    ],
)
def test_a_damaged_trace_says_where(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        list(Trace(path, 4))


def test_a_missing_trace_says_which(tmp_path):
    with pytest.raises(DataError, match="gone.csv cannot be read"):
        list(Trace(tmp_path / "gone.csv", 4))


def test_draws_are_numbered():
    for law in (HalfNormal, LogNormal, Uniform):
        once, again = law(seed=3), law(seed=3)
        forwards = [once.draw(0, number) for number in range(5000)]
        assert [again.draw(0, number) for number in (4999, 0, 4096)] == [forwards[4999], forwards[0], forwards[4096]]
        assert min(forwards) >= 0


def test_laws_have_their_shape():
    """Means and medians of 5,000 draws, within five standard errors."""
    laws = (
        HalfNormal(seed=0, scale=2.0),
        LogNormal(seed=0, scale=3.0, spread=0.5),
        Uniform(seed=0, scale=2.0, spread=0.25),
    )
    half, heavy, flat = ([law.draw(0, number) for number in range(5000)] for law in laws)
    assert np.mean(half) == pytest.approx(2 * np.sqrt(2 / np.pi), abs=0.09)
    assert np.median(heavy) == pytest.approx(3, rel=0.05)
    assert 1.5 <= min(flat) < 1.51
    assert 2.49 < max(flat) <= 2.5
    assert Constant(4.0).draw(0, 7) == 4.0


def test_impossible_times_are_refused():
    with pytest.raises(ConfigError, match="spread"):
        Uniform(seed=0, scale=1.0, spread=2.0)
    with pytest.raises(ConfigError, match="dropout"):
        Timing(dropout=1.0)
    with pytest.raises(ConfigError, match="arrivals: a part is a name"):
        Timing(arrivals=5)
    with pytest.raises(ConfigError, match="over-selection"):
        Rounds(over_selection=-1)
    with pytest.raises(ConfigError, match="timeout"):
        Rounds(timeout=0)


def test_cohorts_are_drawn_without_replacement_and_differ_between_rounds():
    rounds = Rounds(over_selection=0.5)
    first, second = (rounds.cohort(0, number, 30, 10) for number in (1, 2))
    assert len(set(first)) == len(first) == 15
    assert set(first) != set(second)


class _Draws:
    def __init__(self, value):
        self.value = value

    def draw(self, client, number):
        return self.value


@pytest.mark.parametrize(
    ("arrivals", "durations", "sentence"),
    [
        ([(0.0, 0), (1.0, 9)], Constant(), r"arrival 1 is \(1\.0, 9\): .* clients are 0 to 4"),
        ([(0.0, 0), (1.0, -1)], Constant(), r"arrival 1 is \(1\.0, -1\)"),
        ([(1.0, 0), (0.5, 1)], Constant(), r"arrival 1 is \(0\.5, 1\): .* ascend from 0 \(now 1\)"),
        ([(float("nan"), 0)], Constant(), "arrival 0 is"),
        ([(0.0, 0, -1.0)], Constant(), "arrival 0 is"),
        ([(0.0, 0, 1.0, 2.0)], Constant(), "arrival 0 is"),
        ([3], Constant(), "arrival 0 is 3"),
        ([(0.0, 0)], _Draws(-1.0), r"draw\(0, 0\) of the duration law is -1.0"),
        ([(0.0, 0)], _Draws(float("nan")), r"draw\(0, 0\) of the duration law is nan"),
        ([(0.0, 0)], _Draws(None), r"draw\(0, 0\) of the duration law is None"),
    ],
)
def test_a_users_law_that_gives_no_time_or_client_is_one_sentence(arrivals, durations, sentence):
    algorithm = method("fedbuff", server_lr=0.1, client_lr=0.1, local_steps=1)
    with pytest.raises(ConfigError, match=sentence):
        simulate(
            Quadratic(5, 3), algorithm, Timing(duration=durations, arrivals=arrivals), limits=Limits(server_steps=3)
        )


def test_clients_may_come_at_the_same_time():
    algorithm = method("fedbuff", server_lr=0.1, client_lr=0.1, local_steps=1, buffer_size=2)
    arrivals = [(0.1 * (number // 3), number % 5) for number in range(3000)]
    found = simulate(
        Quadratic(5, 3), algorithm, Timing(duration=Constant(0.3), arrivals=arrivals), limits=Limits(server_steps=500)
    )
    assert found.summary["server_steps"] == 500
