"""The charts say what they seem to say, whichever way is better."""

from pathlib import Path

from qafel.config import load_recipe
from qafel.tuning import Objective, Range, RunOutcome, Tuning
from qafel.tuning.objective import combine, failure
from qafel.tuning.page import charts_of
from qafel.tuning.result import lead_sentence
from qafel.tuning.trial import Trial

CONFIG = load_recipe("mushrooms-qafel-4bit")
SEARCH = {"algorithm.client_lr": Range(0.02, 200, log=True), "algorithm.server_lr": Range(0.01, 1, log=True)}
ACCURACY = Objective("metric", None, "max", "accuracy")
UPLOADS = Objective("uploads", 0.1, "min", "loss")


def trial(number, state, cost):
    settings = {"algorithm.client_lr": 2.0 + number, "algorithm.server_lr": 0.1}
    run = RunOutcome(0, state, cost, 0.0, 0.1, 10, 0.0)
    return Trial(number, settings, float("inf"), failure("no") if state == "failed" else combine([run], 1))


def search_of(objective, *trials):
    return Tuning(Path("out"), CONFIG, SEARCH, objective, 1, trials, {}, {})


def drawn(tuning):
    return {chart.key: chart for chart in charts_of(tuning)}


ACCURACIES = (trial(0, "finished", -0.9), trial(1, "finished", -0.05), trial(2, "diverged", 0.0), trial(3, "failed", 0))
COSTS = (trial(0, "reached", 1000.0), trial(1, "reached", 9500.0), trial(2, "diverged", 0.0))


def test_the_best_accuracy_is_the_darkest():
    chart = drawn(search_of(ACCURACY, *ACCURACIES))["map"]
    marker = chart.traces[0]["marker"]
    assert (marker["reversescale"], marker["cmin"], marker["cmax"]) == (True, 0.05, 0.9)
    assert list(marker["color"]) == [0.9, 0.05]
    assert chart.notes == ("Dark is good: 0.900 to 0.0500. The ring is the best trial.",)


def test_the_least_cost_is_the_darkest():
    chart = drawn(search_of(UPLOADS, *COSTS))["map"]
    marker = chart.traces[0]["marker"]
    assert (marker["reversescale"], marker["cmin"]) == (False, 3.0)
    assert chart.notes == ("Dark is good: 1,000 to 9,500. The ring is the best trial.",)


def test_lost_trials_are_drawn_below_the_least_accuracy_and_above_the_highest_cost():
    history = drawn(search_of(ACCURACY, *ACCURACIES))["history"]
    assert history.layout["yaxis"]["type"] == "linear"
    assert history.toggles == ()
    lost = history.traces[-1]
    assert list(lost["x"]) == [2, 3]
    assert all(height < 0.05 for height in lost["y"])
    history = drawn(search_of(UPLOADS, *COSTS))["history"]
    assert history.layout["yaxis"]["type"] == "log"
    assert history.traces[-1]["y"][0] > 9500


def test_an_axis_that_can_be_switched_has_ticks_for_both_scales():
    for chart in drawn(search_of(UPLOADS, *COSTS)).values():
        for axis in chart.toggles:
            assert "dtick" not in chart.layout[f"{axis}axis"]


def test_only_trial_zero_is_the_recipes_own():
    assert "the recipe's own settings take (1,000)" in lead_sentence(
        search_of(UPLOADS, COSTS[0], trial(1, "reached", 500.0))
    )
    assert "own" not in lead_sentence(search_of(UPLOADS, trial(1, "reached", 9500.0), trial(2, "reached", 500.0)))
