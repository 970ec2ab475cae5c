"""Courses are measured where runs came, and extrapolated by laws that span the truth."""

import math

import numpy as np
import pytest

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.runs.reading import Run
from qafel.search.courses import LAWS, NEVER, Course, Curve, Scale

UPLOADS = np.arange(50.0, 8001.0, 50.0)
PHI = {"log u": np.log, "√u": np.sqrt, "u": lambda u: u}
RATE = {"log u": 1.0, "√u": 0.05, "u": 6e-4}
LOSS = Scale("min", log=True)


def curve(law, seed=0, noise=0.0, uploads=UPLOADS, speed=1.0):
    """Heights that follow a law, with correlated noise."""
    draws = np.random.default_rng(seed).standard_normal(len(uploads))
    smooth = np.convolve(draws, np.ones(4) / 2, mode="same")
    return Curve(uploads, RATE[law] * PHI[law](speed * uploads) + noise * smooth)


def course(law, seeds=3, noise=0.0, spread=0.0):
    speeds = np.exp(spread * np.random.default_rng(7).standard_normal(seeds))
    return Course(tuple(curve(law, seed, noise, speed=speeds[seed]) for seed in range(seeds)), LOSS)


def uploads_until(course, height, every=50):
    return course.uploads_until(height, every, Stream.named(0, "test"))


def run_of(metric):
    history = {"uploads": 10.0 * np.arange(len(metric)), "metric": np.array(metric, float)}
    return Run(None, "pilot", {}, {"metric_goal": "min"}, history)


@pytest.mark.parametrize("law", PHI)
def test_the_back_test_finds_the_law_that_a_run_follows(law):
    found = course(law, noise=0.01)
    assert found.laws[0].name == law
    assert abs(found.back_test[law]) < 0.05


@pytest.mark.parametrize("law", PHI)
@pytest.mark.parametrize("times", [1.5, 3.0])
def test_a_range_beyond_the_end_contains_the_truth_of_every_law(law, times):
    found = course(law, noise=0.01)
    truth = times * UPLOADS[-1]
    low, middle, high = uploads_until(found, RATE[law] * PHI[law](truth))
    assert low <= truth * 1.02
    assert truth <= high
    assert middle == pytest.approx(truth, rel=0.15)


def test_a_range_beyond_the_end_reaches_from_the_best_law_to_the_next_slower_one():
    root = course("√u")
    height = RATE["√u"] * math.sqrt(20_000)
    slower = root.curves[0].uploads_at(LAWS[0], height)
    low, middle, high = uploads_until(root, height)
    assert (low, high) == (pytest.approx(20_000, rel=0.02), pytest.approx(slower, rel=0.02))
    assert middle == pytest.approx(20_000, rel=0.01)


def test_a_level_that_was_reached_is_measured():
    found = course("√u", noise=0.02, spread=0.05)
    height = RATE["√u"] * math.sqrt(5000)
    hits = [one.first_hit(height) for one in found.curves]
    low, middle, high = uploads_until(found, height)
    assert found.reaches(height)
    assert middle == pytest.approx(np.exp(np.mean(np.log(hits))), rel=0.1)
    assert low < min(hits) < max(hits) < high


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_four_in_five_new_seeds_lie_in_the_range_of_a_level_that_was_reached(seeds):
    """The seeds of the pilot, too, are chance: s·√(1 + 1/n) with Student's t."""
    generator, inside, height = np.random.default_rng(1), [], RATE["√u"] * math.sqrt(3000)
    for _ in range(200):
        speeds = np.exp(0.1 * generator.standard_normal(seeds + 1))
        pilot = Course(tuple(curve("√u", speed=speed) for speed in speeds[1:]), LOSS)
        low, _, high = uploads_until(pilot, height)
        inside.append(low <= 3000 / speeds[0] <= high)
    assert 0.7 < np.mean(inside) < 0.9


def test_noisy_evaluations_meet_a_target_earlier():
    noisy, height = curve("√u", noise=0.2), RATE["√u"] * math.sqrt(16_000)
    hits = noisy.hits(LAWS[1], height, np.arange(0, 100_000, 997))
    assert np.median(hits) < 0.97 * noisy.uploads_at(LAWS[1], height)
    assert len(set(hits.tolist())) > 5


def test_evaluations_of_the_run_round_the_limits_outwards():
    low, _, high = uploads_until(course("√u"), RATE["√u"] * math.sqrt(5010), every=1000)
    assert (low, high) == (pytest.approx(4000, abs=1000), pytest.approx(6000, abs=1000))
    assert low % 1000 == high % 1000 == 0


def test_a_flat_or_diverged_course_has_no_prediction():
    flat = Course((Curve(UPLOADS, np.full(len(UPLOADS), 1.0)), curve("√u")), LOSS)
    assert uploads_until(flat, 99.0) == NEVER
    assert uploads_until(Course((curve("√u"),) * 2, LOSS, diverged=True), 1.0) == NEVER


def test_uploads_and_heights_are_inverses_within_the_runs():
    found = course("√u", noise=0.01)
    assert found.uploads_to(found.height_at(4000.0)) == pytest.approx(4000.0, rel=0.03)
    assert found.uploads_to(1e9) == math.inf


def test_the_height_beyond_the_end_has_the_limits_of_the_laws():
    low, middle, high = course("√u").height_after(20_000.0)
    assert low < middle <= high
    assert middle == pytest.approx(RATE["√u"] * math.sqrt(20_000), rel=0.01)


def test_heights_and_metrics_are_inverses():
    for scale, value in ((LOSS, 0.01), (Scale("min", log=False), -3.0), (Scale("max", log=False), 0.6)):
        assert scale.metric(float(scale.height(np.array(value)))) == pytest.approx(value)
    assert Scale.of([run_of([1.0, 0.5])], 0.1).log
    assert not Scale.of([run_of([1.0, -0.5])], 0.1).log


def test_a_course_ends_where_its_runs_were_last_finite():
    found = Course.of([run_of([1.0, *np.linspace(0.9, 0.1, 20), math.nan, 0.5])], LOSS, 220)
    assert found.end == 200
    assert not found.diverged
    assert Course.of([run_of([1.0, 0.9, 0.8, math.nan, math.nan])], LOSS, 40).diverged


def test_nothing_is_predicted_from_a_pilot_that_shows_nothing():
    with pytest.raises(ConfigError, match="diverged"):
        Course((curve("√u"),), LOSS, diverged=True).require_progress()
    with pytest.raises(ConfigError, match="no progress"):
        Course((Curve(UPLOADS, np.full(len(UPLOADS), 1.0)),), LOSS).require_progress()
