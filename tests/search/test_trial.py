"""Scores: measured where the target was reached, a slope where it was not. Runs: what is damaged is run anew."""

import json

import pytest

from qafel.config import load_recipe
from qafel.runs.directory import CHECKPOINT
from qafel.search.trial import Objective, RunOutcome, Trial, TrialWork, combine, estimate, failure, run_trial, together

AIMED = load_recipe("mushrooms-fedavg", ["stop.uploads=2000", "evaluation.target=0.1"])


def outcome(state="reached", cost=100.0, gap=0.0):
    return RunOutcome(0, state, cost, gap, metric=0.1, uploads=int(cost), wall_s=0.0)


def test_the_gap_is_one_at_the_start_and_zero_at_the_target():
    loss = Objective("uploads", 0.01, "min", "loss")
    assert loss.gap(1.0, 1.0) == 1
    assert loss.gap(1.0, 0.1) == pytest.approx(0.5)
    assert loss.gap(1.0, 0.01) == 0
    assert loss.gap(1.0, 10.0) == pytest.approx(1.5)
    assert loss.gap(1.0, 1e307) == 100
    accuracy = Objective("uploads", 0.9, "max", "accuracy")
    assert accuracy.gap(0.1, 0.1) == 1
    assert accuracy.gap(0.1, 0.5) == pytest.approx(0.5)


def test_an_estimate_follows_the_pace_and_grows_with_the_gap():
    gaps = (0.0, 0.1, 0.5, 0.9, 0.95, 1.0, 2.0, 100.0)
    estimates = [estimate(outcome("cut off", 100, gap)) for gap in gaps]
    assert estimates == sorted(set(estimates))
    assert estimates[2] == 200
    assert estimates[0] == 100


def test_the_reached_come_before_the_cut_off_the_missed_the_diverged_and_the_failed():
    scores = [
        combine([outcome(cost=100.0)], 1).score,
        combine([outcome("cut off", 100.0, 0.01)], 1).score,
        combine([outcome("cut off", 100.0, 100.0)], 1).score,
        combine([outcome("missed", 10.0, 0.01)], 1).score,
        combine([outcome("missed", 10.0, 1.0)], 1).score,
        combine([outcome("missed", 10.0, 100.0)], 1).score,
        combine([outcome("diverged", 0.0, 100.0)], 1).score,
        failure("a round of 200 needs as many clients").score,
    ]
    assert scores == sorted(set(scores))


def test_several_seeds_count_by_their_mean():
    assert combine([outcome(cost=100.0), outcome(cost=200.0)], 2).score == 150
    assert combine([outcome(cost=100.0), outcome(cost=200.0)], 2).state == "reached"


def test_a_trial_cut_off_between_seeds_is_no_measurement():
    early = combine([outcome(cost=300.0)], 2)
    assert early.state == "cut off"
    assert early.score == 300


def test_a_seed_cut_off_early_is_taken_for_no_better_than_the_others():
    assert combine([outcome(cost=190.0), outcome("cut off", 10.0, 0.2)], 2).score == 190


def test_missing_on_a_later_seed_is_nearer_than_missing_on_the_first():
    first = combine([outcome("missed", 100, 0.5)], 3)
    third = combine([outcome(), outcome(), outcome("missed", 100, 0.5)], 3)
    assert third.score < first.score
    assert (first.gap, third.gap) == (0.5, pytest.approx(0.5 / 3))


def test_figures_are_for_people():
    assert Objective("uploads", 0.1, "min", "loss").text(12345.0) == "12,345"
    assert Objective("bytes", 0.1, "min", "loss").text(12345.0) == "12.3 kB"
    best = Objective("metric", None, "max", "accuracy")
    assert best.text(-0.912) == "0.912"
    assert best.label == "accuracy at the end"
    assert Objective("upload-bytes", 0.9, "max", "accuracy").label == "bytes uploaded to accuracy ≥ 0.9"


def alone(cost, state="reached", gap=0.0):
    return combine([outcome(state, cost, gap)], 1)


def test_seeds_that_ran_side_by_side_count_as_if_they_had_taken_turns():
    costs = [100.0, 900.0, 50.0]
    whole = together([alone(cost) for cost in costs], 3, allowance=float("inf"))
    assert (whole.state, whole.score) == ("reached", 350.0)
    assert together([alone(cost) for cost in costs], 3, allowance=1000.0).state == "cut off"
    assert together([alone(100.0), alone(1.0, "missed", 0.5), alone(1.0)], 3, 1e9).state == "missed"
    assert together([alone(100.0), failure("no memory")], 3, 1e9).error == "no memory"


def work(folder):
    objective = Objective("uploads", 0.1, "min", "f(x) − f*")
    trial = Trial(3, {"algorithm.buffer_size": 20}, float("inf"))
    return TrialWork(trial, folder, AIMED, (0,), objective, "inline", 1)


def facts(outcome):
    return [(run.seed, run.state, run.cost, run.metric) for run in outcome.runs]


@pytest.mark.parametrize("damaged", ["checkpoint", "metrics", "summary"])
def test_what_is_damaged_in_a_trials_folder_is_run_anew(damaged, tmp_path):
    whole = run_trial(work(tmp_path))
    run = tmp_path / "seed-0"
    if damaged == "summary":
        (run / "summary.json").write_text("{")
    elif damaged == "metrics":
        (run / "metrics.jsonl").write_text("what?\n")
    else:
        (run / "summary.json").unlink()
        (run / CHECKPOINT).parent.mkdir(exist_ok=True)
        (run / CHECKPOINT).write_bytes(b"half a checkpoint")
    assert facts(run_trial(work(tmp_path))) == facts(whole)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
