"""Figures over seeds, and groups of runs compared on the seeds that both have."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reproduction.comparison import NotComparable, diverges, end_ratio, has_settled, level_ratio, stalls, target_ratio
from reproduction.convex import HIDDEN_QSGD, UNQUANTIZED
from reproduction.neural import FEDBUFF, QAFEL
from tests.reproduction.made_up import by_seed, falling, made_up, measured, rising


def test_an_end_that_is_no_number_is_infinitely_far():
    gap = falling(1e-3)
    gap[-3] = math.nan
    found = measured(*by_seed(**{UNQUANTIZED: (falling(1e-3),) * 2, HIDDEN_QSGD: (falling(1e-3), gap)}))
    ratio = end_ratio(found, HIDDEN_QSGD, UNQUANTIZED)
    assert (ratio.estimate, ratio.at_most(100.0), ratio.at_least(2.0)) == (math.inf, False, None)
    with pytest.raises(NotComparable, match="diverged"):
        end_ratio(found, UNQUANTIZED, HIDDEN_QSGD)


def test_ratios_at_the_target_are_over_the_seeds_that_both_have():
    """FedBuff's second seed takes longer; QAFeL was not run with it yet."""
    options = {"target": 0.6, "metric_goal": "max"}
    ours, fast, slow = (
        made_up(QAFEL, rising(0.8), 0, upload_bytes=100, **options),
        made_up(FEDBUFF, rising(0.8), 0, upload_bytes=800, **options),
        made_up(FEDBUFF, rising(0.61), 1, upload_bytes=800, **options),
    )
    found = target_ratio("upload_bytes_total", measured(ours), measured(fast, slow))
    assert (found.inverse.estimate, found.count) == (pytest.approx(8.0), 1)
    with pytest.raises(NotComparable, match="share no seed"):
        target_ratio("upload_bytes_total", measured(ours), measured(slow))


def accuracy(values):
    return made_up(QAFEL, values, metric_goal="max", target=0.6)[1]


def test_a_run_diverges_if_it_ends_at_half_its_best_accuracy_or_twice_its_lowest_level():
    up, down = np.linspace(0.1, 0.5, 50), np.linspace(0.5, 0.1, 51)
    assert diverges(accuracy(np.concatenate((up, down))))
    assert not diverges(accuracy(np.concatenate((up, np.linspace(0.5, 0.4, 51))))), "worse, but not by half"
    assert not diverges(accuracy(np.full(101, 0.1))), "it never learned: that is stalling"
    assert diverges(accuracy(np.append(up, math.nan)))
    assert diverges(made_up(QAFEL, np.concatenate((falling(0.01)[:50], np.linspace(0.01, 0.1, 51))))[1])
    assert not diverges(made_up(QAFEL, falling(0.01))[1])


def test_noise_alone_diverges_less_than_once_in_a_hundred_times():
    """A plateau with a relative noise of a third, evaluated a hundred times."""
    rng = np.random.default_rng(2)
    gone = sum(diverges(made_up(QAFEL, falling(0.01) * rng.lognormal(sigma=0.3, size=101))[1]) for _ in range(400))
    assert gone < 4


def test_a_run_has_settled_if_its_second_half_brought_less_than_a_tenth():
    assert has_settled(accuracy(np.concatenate((np.linspace(0.1, 0.5, 50), np.full(51, 0.5)))))
    assert not has_settled(accuracy(np.linspace(0.1, 0.5, 101)))
    assert has_settled(made_up(QAFEL, falling(0.01))[1])
    assert not has_settled(made_up(QAFEL, np.geomspace(0.68, 8e-3, 101))[1])


def test_a_run_stalls_if_another_half_would_not_bring_it_to_its_target():
    assert stalls(accuracy(np.concatenate((np.linspace(0.1, 0.5, 50), np.full(51, 0.5)))))
    assert not stalls(accuracy(np.concatenate((np.linspace(0.1, 0.56, 50), np.linspace(0.56, 0.595, 51))))), "near it"
    assert not stalls(accuracy(np.linspace(0.1, 0.5, 101))), "rising"
    assert not stalls(accuracy(np.linspace(0.1, 0.7, 101))), "met"


def test_a_single_low_evaluation_at_the_end_is_no_divergence():
    """Eleven evaluations, as in a run that is cut short: a tenth of them would be one."""
    assert not diverges(accuracy(np.append(np.full(10, 0.2), 0.09)))
    assert diverges(accuracy(np.concatenate((np.full(8, 0.2), np.full(3, 0.05)))))


def test_a_reference_that_missed_the_target_with_any_seed_is_none():
    options = {"target": 0.6, "metric_goal": "max"}
    ours = [made_up(QAFEL, rising(0.8), seed, **options) for seed in (0, 1)]
    theirs = [made_up(FEDBUFF, rising(0.8 if seed < 2 else 0.5), seed, **options) for seed in (0, 1, 2)]
    with pytest.raises(NotComparable, match="did not meet the target with every seed"):
        target_ratio("uploads", measured(*ours), measured(*theirs))


def test_a_run_that_never_came_down_is_not_fast_because_it_was_short():
    low, short = [made_up(QAFEL, falling(1e-3), seed) for seed in (0, 1)], falling(1e-3)[:4]
    early = measured(*(made_up(FEDBUFF, short, seed) for seed in (0, 1)))
    found = level_ratio(0.05, early, measured(*low))
    assert (found.high, found.below(1.0)) == (math.inf, None)
    gone = measured(*(made_up(FEDBUFF, np.append(short, math.nan), seed, status="diverged") for seed in (0, 1)))
    assert level_ratio(0.05, gone, measured(*low)).below(1.0) is False
    neither = level_ratio(0.05, early, early)
    assert (neither.low, neither.below(1.0), neither.above(1.0)) == (0.0, None, None)


def test_a_run_that_came_down_and_diverged_later_did_come_down():
    slow, fast = falling(1e-3) ** 0.5, np.array([0.68, 0.01, 0.3, math.nan])
    ours = measured(*(made_up(FEDBUFF, fast, seed, status="diverged") for seed in (0, 1)))
    theirs = measured(*(made_up(QAFEL, slow, seed) for seed in (0, 1)))
    assert level_ratio(0.05, ours, theirs).below(1.0) is True
