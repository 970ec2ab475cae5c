"""A find is reported only with what it does on seeds that the search has not seen."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from qafel.config import load_recipe
from qafel.search.trials import CANDIDATES, Objective, RunOutcome, Trial, Tuning, next_to_check


def trial(number, cost, state="reached"):
    gap = 0.0 if state == "reached" else 0.5
    runs = [RunOutcome(0, state, cost, gap, 0.1, int(cost), 0.0)]
    return Trial(number, {"algorithm.server_lr": float(number)}).ended(runs, 1)


def checked(trials, unseen_costs):
    def run(best):
        cost, begin = unseen_costs[best.number], partial(trial, best.number)
        return begin(cost) if cost is not None else begin(999, "missed")

    checks = {}
    while (best := next_to_check(trials, checks, checks)) is not None:
        checks[best.number] = run(best)
    return checks


def best_checked(trials, checks):
    objective = Objective("uploads", 0.1, "min", "loss")
    return Tuning(Path("out"), load_recipe("mushrooms-qafel-4bit"), {}, objective, 1, tuple(trials), checks).best


def test_checks_end_when_no_score_is_below_the_best_on_unseen_seeds():
    trials = [trial(0, 500.0), trial(1, 100.0), trial(2, 120.0), trial(3, 190.0), trial(4, 130.0, "pruned")]
    checks = checked(trials, {1: 180.0, 2: 150.0})
    assert list(checks) == [1, 2]
    assert best_checked(trials, checks).number == 2


def test_a_lucky_trial_gives_way_to_one_that_holds():
    trials = [trial(0, 100.0), trial(1, 200.0), trial(2, 300.0)]
    checks = checked(trials, {0: None, 1: 210.0})
    assert list(checks) == [0, 1]
    assert best_checked(trials, checks).number == 1


def test_where_none_holds_not_all_are_tried_and_the_best_of_them_remains():
    trials = [trial(number, 100.0 + number) for number in range(CANDIDATES + 5)]
    checks = checked(trials, dict.fromkeys(range(20)))
    assert len(checks) == CANDIDATES
    assert best_checked(trials, checks).number == 0


def test_each_setting_is_checked_once():
    twins = [replace(trial(number, 100.0), settings={"algorithm.server_lr": 0.1}) for number in range(CANDIDATES)]
    checks = checked([*twins, trial(20, 110.0)], {0: None, 20: 120.0})
    assert list(checks) == [0, 20]


def test_without_a_check_or_a_good_trial():
    assert best_checked([trial(0, 100.0), trial(1, 50.0)], {}).number == 1
    assert best_checked([trial(0, 100.0, "pruned")], {}) is None
