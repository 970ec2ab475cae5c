"""Intervals err as often as they say, and see what they say that they see: by simulation, with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from reproduction.statistics import (
    LEVEL,
    POWER,
    Interval,
    every,
    jointly,
    over_published,
    power,
    ratio,
    slope,
    student,
    unseen,
)

TRIALS = 1500
WITHIN = 3 * math.sqrt(0.05 * 0.95 / TRIALS)
"""Three standard deviations of a rate of 5 %: 1.7 %."""


def drawn(rng, factor, spread, seeds):
    """A figure that is `factor` times the reference's on the whole, seed by seed; what both share cancels."""
    luck = rng.normal(0, 0.3, seeds)
    return [(math.exp(ours), math.exp(theirs)) for ours, theirs in zip(
        luck + math.log(factor) + rng.normal(0, spread, seeds), luck, strict=True
    )]  # fmt: skip


def rate(decide, factor, spread=0.15, seeds=3, trials=TRIALS):
    """How often `decide` says yes of the interval of a true factor."""
    rng = np.random.default_rng(7)
    return sum(decide(ratio(drawn(rng, factor, spread, seeds))) is True for _ in range(trials)) / trials


def test_an_interval_that_excludes_1_states_how_much_more_or_less():
    assert Interval(1.09, 1.02, 1.18, 3).excess("uploads") == "2 to 18 % more uploads"
    assert Interval(0.88, 0.79, 0.99, 3).excess("uploads") == "1 to 21 % fewer uploads"
    assert Interval(1.03, 0.92, 1.16, 3).excess("uploads") == ""
    assert Interval(2.8, 2.2, math.inf, 3).excess("uploads") == ""


@pytest.mark.parametrize("seeds", [3, 5])
def test_at_least_passes_wrongly_once_in_twenty_times(seeds):
    assert rate(lambda found: found.at_least(6.0), 6.0, seeds=seeds) == pytest.approx(LEVEL, abs=WITHIN)
    assert rate(lambda found: found.at_most(6.0), 6.0, seeds=seeds) == pytest.approx(LEVEL, abs=WITHIN)


@pytest.mark.parametrize("factor", [1.25, 1 / 1.25, 1.5])
def test_what_is_not_similar_passes_as_similar_once_in_twenty_times_at_most(factor):
    assert rate(lambda found: found.similar(1.25), factor, spread=0.05) <= LEVEL + WITHIN


def test_ranges_that_overlap_would_have_passed_most_of_the_time():
    """What the equivalence test replaced: at a true ratio of 1.5, ranges of three seeds overlap more often than not."""
    rng = np.random.default_rng(7)
    overlaps = 0
    for _ in range(1000):
        ours, theirs = zip(*drawn(rng, 1.5, 0.15, 3), strict=True)
        overlaps += min(ours) <= max(theirs) and min(theirs) <= max(ours)
    assert overlaps > 500
    assert rate(lambda found: found.similar(1.25), 1.5) <= 0.02


@pytest.mark.parametrize("seeds", [3, 5, 11])
def test_power_is_what_is_stated(seeds):
    """At the factor that is visible for the true spread, the difference is seen four times in five."""
    spread = 0.15
    df = seeds - 1
    visible = math.exp((student(1 - LEVEL, df) + student(POWER, df)) * spread / math.sqrt(seeds))
    assert rate(lambda found: found.at_least(1.0), visible, spread, seeds) == pytest.approx(POWER, abs=0.03)


def test_an_interval_states_what_is_visible_with_its_own_spread():
    found = ratio([(math.exp(value), 1.0) for value in (-0.15, 0.0, 0.15)])
    error = 0.15 / math.sqrt(3)
    assert math.log(found.detectable) == pytest.approx((2.919986 + 1.060660) * error, rel=1e-5)
    assert (found.low, found.high) == pytest.approx((math.exp(-2.919986 * error), math.exp(2.919986 * error)))
    assert power([found]) == "detectable factor: 1.41"


@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.03), (2, 0.075), (3, 0.03)])
def test_figures_that_are_rounded_do_not_pass_because_they_agree(seeds, spread):
    """Uploads to the target, looked for every 100 of some 1,300: the ratio is the same with every seed quite often."""
    rng, wrong, agreed = np.random.default_rng(13), 0, 0
    for _ in range(TRIALS):
        pairs = [tuple(100 * math.ceil(13 * value) for value in pair) for pair in drawn(rng, 1.25, spread, seeds)]
        blur = math.sqrt(np.mean([(100 / ours) ** 2 + (100 / theirs) ** 2 for ours, theirs in pairs]) / 12)
        wrong += ratio(pairs, (), blur).similar(1.25) is True
        agreed += ratio(pairs).low == ratio(pairs).high
    assert agreed > (5 if seeds == 2 else 0)
    assert wrong / TRIALS <= LEVEL + 1.5 * WITHIN


def test_the_same_ratio_with_two_seeds_is_no_certainty():
    assert ratio([(1300.0, 1200.0)] * 2).similar(1.25) is True, "if the figures were exact"
    assert ratio([(1300.0, 1200.0)] * 2, (), 0.045).similar(1.25) is None


def censored(rng, factor, limit, seeds=3, spread=0.25):
    """Ours over a reference of 1, known only up to a limit."""
    values = np.exp(math.log(factor) + rng.normal(0, spread, seeds))
    return ratio([(min(value, limit), 1.0) for value in values.tolist()], (values > limit).tolist())


def test_runs_that_ended_before_the_target_never_pass_as_similar_and_seldom_fail_wrongly():
    """Cut off at three times the reference, as the runs are, with the truth at the margin of 1.5 or at 1.25."""
    rng = np.random.default_rng(11)
    for factor, margin in ((1.5, 1.5), (1.25, 1.25), (1.0, 1.25)):
        found = [censored(rng, factor, 3.0) for _ in range(TRIALS)]
        assert sum(one.similar(margin) is False for one in found) / TRIALS <= LEVEL + 2 * WITHIN
    cut = [one for one in (censored(rng, 2.0, 2.0) for _ in range(500)) if math.isinf(one.high)]
    assert len(cut) > 300
    assert not any(one.similar(1.25) or one.at_most(100.0) for one in cut)


def test_three_runs_that_never_met_the_target_need_more_than_the_margin():
    found = ratio([(120.0, 40.0), (120.0, 35.0), (120.0, 45.0)], (True, True, True))
    assert (found.similar(1.25), found.at_most(1.5), found.at_least(2.0)) == (False, False, True)
    assert "∞" in str(found)
    partly = ratio([(120.0, 40.0), (50.0, 35.0), (45.0, 45.0)], (True, False, False))
    assert (partly.similar(1.25), partly.inverse.at_least(1.0)) == (None, None)


def test_a_run_that_diverged_is_infinitely_far():
    found = ratio([(math.inf, 1.0)] * 3)
    assert (found.similar(1.25), found.at_least(1e9), found.inverse.at_least(1.0)) == (False, True, False)
    assert (str(found), power([found]), power([found.inverse])) == ("∞", "a run diverged", "a run diverged")
    lost = ratio([(1.0, math.inf), (1.0, math.inf)])
    assert (lost.estimate, lost.inverse.estimate, lost.below(1.0)) == (0.0, math.inf, True)


def test_a_run_that_diverged_fails_a_joint_claim_about_the_inverse_as_well():
    found = ratio([(math.inf, 1.0), (2.0, 1.0), (2.2, 1.0)])
    assert (found.corrected(2), found.inverse.corrected(2)) == (found, found.inverse)
    parts = (found.inverse, lambda it: it.at_least(25.0)), (found, lambda it: it.at_most(1.15))
    assert jointly(parts) is False


def test_unknown_figures_and_open_ends_are_printed_as_such():
    assert str(ratio([])) == "–"
    assert str(Interval(-0.5, -math.inf, math.inf, 1, additive=True)) == "-0.5 [-∞, ∞]"


def test_one_run_of_three_that_diverged_is_not_close_and_does_not_show_that_all_are_far():
    found = ratio([(math.inf, 1.0), (1.0, 1.0), (1.1, 1.0)])
    assert (found.at_most(1.25), found.similar(1.25), found.below(9.0)) == (False, False, False)
    assert (found.at_least(2.0), found.above(2.0)) == (None, None)
    assert (found.inverse.at_least(1.0), found.inverse.at_most(0.5)) == (False, None)
    assert ratio([(math.inf, 1.0), (3.0, 1.0), (3.1, 1.0)]).at_least(2.0) is True, "the others are far as well"
    assert ratio([(math.inf, 1.0)]).at_least(2.0) is None, "one seed decides nothing"
    assert math.isnan(ratio([(math.inf, 1.0), (1.0, math.inf)]).estimate), "each diverged once"


def test_one_seed_decides_nothing_and_equal_ratios_everything():
    alone = ratio([(10.0, 1.0)])
    assert (alone.at_least(6.0), alone.similar(1.25), power([alone])) == (None, None, "one seed detects nothing")
    equal = ratio([(7.5, 1.0), (75.0, 10.0), (750.0, 100.0)])
    assert equal.low == equal.high == pytest.approx(7.5)
    assert (str(equal), power([equal])) == ("7.5", "all seeds agree")


def test_what_no_seed_showed_may_still_be_common():
    """Three good seeds are no surprise where a third of all fail."""
    assert "63 %" in unseen(3)
    assert "45 %" in unseen(5)


def test_the_parts_of_a_claim_are_joined():
    assert every((True, True)) is True
    assert every((True, None)) is None
    assert every((None, False)) is False


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_joint_claim_fails_wrongly_once_in_twenty_times_at_most(seeds):
    """Nine comparisons, each exactly at its bound: by itself, one of them fails far oftener."""
    rng, joint, alone, trials = np.random.default_rng(17), 0, 0, 600
    for _ in range(trials):
        found = [ratio(drawn(rng, 6.0, 0.15, seeds)) for _ in range(9)]
        joint += jointly((one, lambda it: it.at_least(6.0)) for one in found) is False
        alone += every(one.at_least(6.0) for one in found) is False
    assert joint / trials <= LEVEL + 1.7 * WITHIN
    assert alone / trials > 0.25


def test_one_comparison_is_judged_as_it_is_and_many_pass_as_they_are():
    far, near = ratio([(5.0, 1.0), (5.1, 1.0), (4.9, 1.0)]), ratio([(5.0, 1.0), (5.6, 1.0), (5.3, 1.0)])
    assert near.high < 6.0 < near.corrected(9).high
    assert jointly([(near, lambda it: it.at_least(6.0))]) is False
    assert jointly((near, lambda it: it.at_least(6.0)) for _ in range(9)) is None
    assert jointly([(near, lambda it: it.at_least(6.0)), (far, lambda it: it.at_least(6.0))]) is False
    assert jointly((one, lambda it: it.at_most(6.0)) for one in (near, far)) is True


@pytest.mark.parametrize(("seeds", "comparisons"), [(3, 3), (5, 9)])
def test_power_of_a_joint_claim_is_what_is_stated(seeds, comparisons):
    """All that far within their bounds pass, and one that far beyond fails, four times in five at least."""
    rng, spread, passed, failed, trials = np.random.default_rng(19), 0.15, 0, 0, 600
    t = [stats.t.ppf(p, seeds - 1) for p in (1 - LEVEL, POWER)]
    known = Interval(1.0, 0.9, 1.1, seeds, math.exp(sum(t) * spread / math.sqrt(seeds)))
    factor = known.detectable_among(comparisons)
    for _ in range(trials):
        good = [ratio(drawn(rng, factor, spread, seeds)) for _ in range(comparisons)]
        bad = ratio(drawn(rng, 1 / factor, spread, seeds))
        passed += jointly((one, lambda it: it.at_least(1.0)) for one in good) is True
        failed += jointly((one, lambda it: it.at_least(1.0)) for one in (*good[1:], bad)) is False
    assert min(passed, failed) / trials >= POWER - 0.07
    assert known.detectable_among(1) == known.detectable
    assert power([known] * comparisons) == f"detectable factor: {factor:.3g}"


def test_a_published_figure_is_compared_by_both_spreads():
    """With published seeds from the same distribution, the interval holds 1 nine times in ten or more."""
    rng, held = np.random.default_rng(23), 0
    for _ in range(1000):
        ours, theirs = (np.exp(rng.normal(3.0, 0.25, 3)) for _ in range(2))
        found = over_published(ours.tolist(), float(theirs.mean()), float(theirs.std(ddof=1)), 3)
        held += found.low <= 1.0 <= found.high
    assert held / 1000 >= 0.88
    assert over_published([40.0, 41.0, 42.0], 20.0, 1.0, 3).similar(1.5) is False


def test_an_interval_among_others_is_wider_by_students_t():
    found = ratio([(math.exp(value), 1.0) for value in (-0.15, 0.0, 0.15)])
    reach = stats.t.ppf(1 - LEVEL / 4, 2) * 0.15 / math.sqrt(3)
    assert (found.corrected(4).low, found.corrected(4).high) == pytest.approx((math.exp(-reach), math.exp(reach)))
    assert found.corrected(1) is found
    assert found.inverse.corrected(4).low == pytest.approx(math.exp(-reach))
    line = Interval(-0.5, -0.6, -0.4, 3, additive=True).corrected(4)
    assert (line.low, line.high) == pytest.approx((-0.5 - 0.1 * line_widening(4), -0.5 + 0.1 * line_widening(4)))
    cut = ratio([(120.0, 40.0), (50.0, 35.0)], (True, False))
    assert (cut.corrected(3).low < cut.low, cut.corrected(3).high) == (True, math.inf)
    alone = ratio([(10.0, 1.0)])
    assert alone.corrected(3) == alone


def line_widening(comparisons):
    """How many times wider the interval of three seeds is among so many."""
    return stats.t.ppf(1 - LEVEL / comparisons, 2) / stats.t.ppf(1 - LEVEL, 2)


def test_a_slopes_interval_holds_the_truth_nine_times_in_ten():
    x, rng, held = [128.0, 256.0, 512.0, 1024.0], np.random.default_rng(5), 0
    for _ in range(1000):
        draws = [np.exp(-0.5 * math.log(place)) * rng.normal(1, 0.05, 6) for place in x]
        errors = [draw.std(ddof=1) / math.sqrt(6) for draw in draws]
        found = slope(x, [float(draw.mean()) for draw in draws], errors, [6] * 4)
        held += found.low <= -0.5 <= found.high
    assert held / 1000 == pytest.approx(0.9, abs=0.025)


def test_a_slope_of_single_seeds_or_of_no_positive_values_decides_nothing():
    alone = slope([1.0, 2.0], [1.0, 0.5], [math.nan] * 2, [1, 1])
    assert (alone.estimate, alone.within(-1.3, -0.7)) == (pytest.approx(-1.0), None)
    assert math.isnan(slope([1.0, 2.0], [1.0, -0.5], [0.1] * 2, [3, 3]).estimate)
    assert Interval(1.0, 0.9, 1.1, 3).inverse.low == pytest.approx(1 / 1.1)
