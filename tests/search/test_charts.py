"""The charts say what they seem to say, whichever way is better."""

import math
from pathlib import Path

import pytest

from qafel.config import load_recipe
from qafel.search import Objective, Range, RunOutcome, Tuning
from qafel.search.page import lead_sentence, search_panels
from qafel.search.trials import Trial

CONFIG = load_recipe("mushrooms-qafel-4bit")
SEARCH = {"algorithm.client_lr": Range(0.02, 200, log=True), "algorithm.server_lr": Range(0.01, 1, log=True)}
ACCURACY = Objective("metric", None, "max", "accuracy")
UPLOADS = Objective("uploads", 0.1, "min", "loss")


def trial(number, state, cost):
    settings = {"algorithm.client_lr": 2.0 + number, "algorithm.server_lr": 0.1}
    run = RunOutcome(0, state, cost, 0.0, 0.1, 10, 0.0)
    begun = Trial(number, settings)
    return begun.failed("no") if state == "failed" else begun.ended([run], 1)


def search_of(objective, *trials):
    return Tuning(Path("out"), CONFIG, SEARCH, objective, 1, trials, {}, {})


def drawn(tuning):
    return {panel.key: panel for panel in search_panels(tuning)}


ACCURACIES = (trial(0, "finished", -0.9), trial(1, "finished", -0.05), trial(2, "diverged", 0.0), trial(3, "failed", 0))
COSTS = (trial(0, "reached", 1000.0), trial(1, "reached", 9500.0), trial(2, "diverged", 0.0))


def test_the_best_accuracy_is_the_darkest():
    panel = drawn(search_of(ACCURACY, *ACCURACIES))["map"]
    assert panel.series[0].shade.tolist() == [0.0, 1.0]
    assert panel.note == "Dark is good: 0.900 to 0.0500. The ring is the best trial."


def test_the_least_cost_is_the_darkest():
    panel = drawn(search_of(UPLOADS, *COSTS))["map"]
    assert panel.series[0].shade.tolist() == [0.0, 1.0]
    assert panel.note == "Dark is good: 1,000 to 9,500. The ring is the best trial."


def test_lost_trials_are_drawn_below_the_least_accuracy_and_above_the_highest_cost():
    history = drawn(search_of(ACCURACY, *ACCURACIES))["history"]
    assert (history.y.log, history.y.fixed) == (False, True)
    lost = history.series[-1]
    assert lost.x.tolist() == [2, 3]
    assert (lost.y < 0.05).all()
    history = drawn(search_of(UPLOADS, *COSTS))["history"]
    assert (history.y.log, history.y.fixed) == (True, False)
    assert history.series[-1].y[0] > 9500


def test_the_best_so_far_goes_on_through_lost_trials():
    best = drawn(search_of(ACCURACY, trial(0, "failed", 0), trial(1, "finished", -0.5), *ACCURACIES[1:]))["history"]
    assert best.series[0].y.tolist() == pytest.approx([math.nan, 0.5, 0.5, 0.5, 0.5], nan_ok=True)


def test_only_trial_zero_is_the_recipes_own():
    assert "the recipe's settings take (1,000)" in lead_sentence(
        search_of(UPLOADS, COSTS[0], trial(1, "reached", 500.0))
    )
    assert "the recipe's" not in lead_sentence(
        search_of(UPLOADS, trial(1, "reached", 9500.0), trial(2, "reached", 500.0))
    )
