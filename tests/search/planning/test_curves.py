"""A metric's course: smoothed, carried on, met by chance, and slowed down as known processes are."""

import math

import numpy as np
import pytest

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.runs.reading import Run
from qafel.search.planning.curves import LAG, Curve, correction, first_hit, fitted_cost, slowed

UPLOADS = np.arange(100.0, 20_001.0, 100.0)
FAST = 1e-3
"""How fast the gap e^(−FAST·u) closes."""


def gap(uploads, floor=0.0):
    """m' = −FAST·(m − floor), from m = 1."""
    return (1 - floor) * np.exp(-FAST * uploads) + floor


def falling(floor=0.0, noise=0.0, uploads=UPLOADS):
    draws = Stream.named(0, "curve-noise").generator().standard_normal(len(uploads))
    return Curve(uploads, gap(uploads, floor) * np.exp(noise * draws), "min")


def rising(uploads, noise=0.0, seed=0):
    draws = Stream.named(seed, "curve-noise").generator().standard_normal(len(uploads))
    return Curve(uploads, 0.1 + 0.07 * np.log(uploads / 100) + noise * draws, "max")


def height(curve, level):
    return float(curve.height(np.array([level]))[0])


def run_of(metric):
    history = {"uploads": 10.0 * np.arange(len(metric)), "metric": np.array(metric, float)}
    return Run(None, "pilot", {}, {"metric_goal": "min"}, history)


def test_a_smooth_curve_lies_within_the_noise():
    curve = rising(UPLOADS, noise=0.02)
    exact = rising(UPLOADS).metric
    assert np.abs(curve.smooth(UPLOADS) - exact).max() < 0.02
    assert curve.noise == pytest.approx(0.02, rel=0.2)


def test_a_curve_goes_on_beyond_its_end_as_it_went():
    curve = rising(UPLOADS, noise=0.005)
    far = np.array([60_000.0])
    assert curve.smooth(far) == pytest.approx(rising(far).metric, abs=0.02)


def test_a_noisy_metric_meets_its_target_sooner_than_a_smooth_one():
    target = float(rising(np.array([10_000.0])).metric[0])
    smooth = first_hit(rising(UPLOADS), target, 100, Stream.named(0, "hits"))
    noisy = first_hit(rising(UPLOADS, noise=0.02), target, 100, Stream.named(0, "hits"))
    assert smooth[1] == pytest.approx(10_000, rel=0.05)
    assert noisy[0] < noisy[1] < noisy[2]
    assert noisy[1] < 0.9 * smooth[1]
    # The median of many such runs.
    runs = [rising(UPLOADS, noise=0.02, seed=seed).metric >= target for seed in range(1, 60)]
    assert noisy[1] == pytest.approx(np.median([UPLOADS[np.argmax(met)] for met in runs]), rel=0.25)


def test_a_target_that_the_course_does_not_lead_to_is_never_met():
    flat = Curve(UPLOADS, np.full(len(UPLOADS), 0.1) + 1e-9 * UPLOADS, "max")
    assert first_hit(flat, 0.9, 100, Stream.named(0, "hits"))[1] == math.inf


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
def test_noise_that_stays_makes_a_floor_in_proportion_to_its_strength(share):
    # m' = −FAST·m + c·s has the floor c·s/FAST: the anchor's, of strength 4, is 0.02.
    base, anchor = falling(noise=0.01), falling(floor=0.02, noise=0.01)
    cost = fitted_cost(base, anchor, 4.0)
    course, exact = slowed(base, {"client": cost}, {"client": 4.0 * share}), falling(floor=0.02 * share)
    for level in (0.3, 0.1, 0.05, 0.03):
        truth = -math.log((level - 0.02 * share) / (1 - 0.02 * share)) / FAST
        assert course.at(height(exact, level)) == pytest.approx(truth, rel=0.12)


def test_a_level_below_the_floor_is_never_reached():
    base, anchor = falling(noise=0.01), falling(floor=0.02, noise=0.01)
    cost = fitted_cost(base, anchor, 4.0)
    assert slowed(base, {"client": cost}, {"client": 4.0}).at(height(base, 0.01)) == math.inf
    assert slowed(base, {"client": cost}, {"client": 8.0}).at(height(base, 0.03)) == math.inf


def test_noise_that_shrinks_with_the_progress_stretches_a_run_evenly():
    base = rising(UPLOADS, noise=0.003)
    slower = Curve(UPLOADS, rising(UPLOADS / 1.5).metric, "max")
    cost = fitted_cost(base, slower, 3.0)
    course = slowed(base, {"client": cost}, {"client": 1.5})
    # Two thirds of the progress are left at strength 3, so five sixths at 1.5.
    for uploads in (3_000.0, 10_000.0):
        level = float(rising(np.array([uploads])).metric[0])
        assert course.at(level) == pytest.approx(uploads * 6 / 5, rel=0.12)


def test_a_lag_counts_for_less_the_slower_a_run_goes():
    # Late by 1,000 uploads: twice the uploads to where 1,000 led, a tenth more to where 10,000 did.
    base = rising(UPLOADS, noise=0.001)
    late = Curve(UPLOADS[11:], rising(UPLOADS[11:] - 1000).metric, "max")
    course = slowed(base, {"server": fitted_cost(base, late, 2.0, LAG)}, {"server": 2.0})
    for uploads in (20_000.0, 60_000.0):
        level = float(rising(np.array([uploads])).metric[0])
        assert course.at(level) == pytest.approx(uploads + 1000, rel=0.05)


def test_what_noise_hides_is_foretold_in_between():
    # A run that took 1.3 times the uploads: without noise clearly in proportion, with noise perhaps a floor to come.
    def slowdown(noise):
        base, slower = rising(UPLOADS, noise), Curve(UPLOADS, rising(UPLOADS / 1.3, noise, seed=1).metric, "max")
        cost = fitted_cost(base, slower, 1.0)
        return cost.proportional, slowed(base, {"client": cost}, {"client": 1.0}).at(rising(np.array([4e4])).metric[0])

    (clear, exact), (doubtful, between) = slowdown(0.0005), slowdown(0.02)
    assert clear == pytest.approx(1 - 1 / 1.3, rel=0.1)
    assert exact == pytest.approx(1.3 * 4e4, rel=0.05)
    assert doubtful < 0.9 * clear
    assert 1.1 * 4e4 < between < 2 * 4e4


def test_two_runs_make_one_curve_between_them_as_far_as_both_go():
    low, high = (
        Curve(UPLOADS, rising(UPLOADS).metric - 0.01, "max"),
        Curve(UPLOADS, rising(UPLOADS).metric + 0.01, "max"),
    )
    both = low.beside(Curve(high.uploads[:150], high.metric[:150], "max"))
    assert both.end == UPLOADS[149]
    assert np.abs(both.smooth(UPLOADS[2:150]) - rising(UPLOADS[2:150]).metric).max() < 0.012


def test_costs_of_several_causes_add_up():
    base = falling()
    costs = {
        "client": fitted_cost(base, falling(floor=0.02), 1.0),
        "server": fitted_cost(base, falling(floor=0.01), 1.0),
    }
    both = slowed(base, costs, {"client": 1.0, "server": 1.0})
    truth = -math.log((0.1 - 0.03) / (1 - 0.03)) / FAST
    assert both.at(height(base, 0.1)) == pytest.approx(truth, rel=0.1)


def test_what_costs_nothing_changes_nothing():
    base = falling(noise=0.01)
    cost = fitted_cost(base, base, 1.0)
    assert cost.proportional < 0.01
    free = slowed(base, {"client": cost}, {"client": 1.0})
    assert free.at(height(base, 0.05)) == pytest.approx(-math.log(0.05) / FAST, rel=0.05)


def test_a_check_corrects_by_how_much_longer_it_took():
    base = rising(UPLOADS, noise=0.003)
    foretold = slowed(base, {}, {})
    slower = Curve(UPLOADS, rising(UPLOADS / 1.3).metric, "max")
    assert correction(foretold, base, slower) == pytest.approx(1.3, rel=0.05)


def test_after_so_many_uploads_is_the_inverse_of_uploads_to_a_level():
    base = falling()
    course = slowed(base, {}, {})
    assert course.height_after(course.at(height(base, 0.2))) == pytest.approx(height(base, 0.2), abs=1e-6)


def test_a_curve_ends_where_its_run_was_last_finite():
    assert Curve.of(run_of([1.0, *np.linspace(0.9, 0.1, 20), math.nan, 0.5])).end == 200.0


def test_few_evaluations_say_nothing():
    with pytest.raises(ConfigError, match="make the pilot longer"):
        Curve.of(run_of([1.0, 0.9, 0.8, math.nan, math.nan]))
