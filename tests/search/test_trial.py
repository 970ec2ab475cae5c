"""Outcomes of trials, and trials whose files are damaged."""

import json
import math
from dataclasses import replace

import pytest

from qafel.config import load_recipe
from qafel.runs.directory import CHECKPOINT
from qafel.search.trials import OBJECTIVES, Objective, RunOutcome, Trial, TrialWork, run_trial

AIMED = load_recipe("mushrooms-fedavg", ["stop.uploads=2000", "evaluation.target=0.1"])


BEGUN = Trial(3, {"algorithm.buffer_size": 20})


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


def test_only_good_trials_have_a_score():
    assert BEGUN.ended([outcome(cost=100.0)], 1).score == 100
    for state in ("pruned", "missed", "diverged"):
        assert BEGUN.ended([outcome(cost=100.0), outcome(state, 10.0, 0.5)], 2).score == math.inf
    assert BEGUN.failed("a round of 200 needs as many clients").score == math.inf


def test_several_seeds_count_by_their_mean():
    assert BEGUN.ended([outcome(cost=100.0), outcome(cost=200.0)], 2).score == 150
    assert BEGUN.ended([outcome(cost=100.0), outcome(cost=200.0)], 2).state == "reached"


def test_missing_on_a_later_seed_is_nearer_than_missing_on_the_first():
    first = BEGUN.ended([outcome("missed", 100, 0.5)], 3)
    third = BEGUN.ended([outcome(), outcome(), outcome("missed", 100, 0.5)], 3)
    assert (first.gap, third.gap) == (0.5, pytest.approx(0.5 / 3))


def test_each_objective_reads_its_own_cost():
    columns = {f"{part}_bytes_total": size for size, part in enumerate(("upload", "broadcast", "received"), 1)}
    columns |= {"uploads": 4, "total_bytes": 6, "virtual_time": 7.0, "metric": 8.0}
    costs = {name: Objective(name, 0.1, "min", "loss").cost(columns.__getitem__) for name in OBJECTIVES}
    assert costs == {
        "uploads": 4, "total-bytes": 6, "upload-bytes": 1, "broadcast-bytes": 2, "received-bytes": 3,
        "virtual-time": 7, "metric": 8,
    }  # fmt: skip


def test_figures_are_for_people():
    assert Objective("uploads", 0.1, "min", "loss").text(12345.0) == "12,345"
    assert Objective("total-bytes", 0.1, "min", "loss").text(12345.0) == "12.3 kB"
    best = Objective("metric", None, "max", "accuracy")
    assert best.text(-0.912) == "0.912"
    assert best.label == "accuracy at the end"
    assert Objective("upload-bytes", 0.9, "max", "accuracy").label == "bytes uploaded to accuracy ≥ 0.9"


class Recorder:
    """A pruner that keeps the reports and ends a trial at a cost."""

    def __init__(self, end=math.inf):
        self.reports, self.end, self.done = [], end, False

    def __call__(self, cost, value):
        if value is None:
            self.done = True
            return False
        self.reports.append((cost, value))
        return cost >= self.end


def test_a_pruner_sees_the_cost_and_the_way_left_over_all_seeds(tmp_path):
    pruner = Recorder()
    found = run_trial(replace(work(tmp_path), seeds=(0, 1), prune=lambda: pruner), print)
    costs, values = zip(*pruner.reports, strict=True)
    assert list(costs) == sorted(costs)
    assert values[0] < 1
    assert values[-1] < 0.5, "the first seed is done"
    assert max(costs) < 2 * found.score == sum(run.cost for run in found.runs)
    assert pruner.done


def test_a_pruned_trial_has_no_score_and_a_gap(tmp_path):
    pruner, rows = Recorder(end=40), []
    found = run_trial(replace(work(tmp_path), prune=lambda: pruner), rows.append)
    assert (found.state, found.score) == ("pruned", math.inf)
    assert found.gap == pytest.approx(pruner.reports[-1][1])
    assert rows[-1].uploads == 40
    assert not pruner.done


def work(folder):
    objective = Objective("uploads", 0.1, "min", "f(x) − f*")
    return TrialWork(BEGUN, folder, AIMED, (0,), objective, "inline", 1)


def facts(outcome):
    return [(run.seed, run.state, run.cost, run.metric) for run in outcome.runs]


@pytest.mark.parametrize("damaged", ["checkpoint", "metrics", "summary"])
def test_what_is_damaged_in_a_trials_folder_is_run_anew(damaged, tmp_path):
    whole = run_trial(work(tmp_path), print)
    run = tmp_path / "seed-0"
    if damaged == "summary":
        (run / "summary.json").write_text("{")
    elif damaged == "metrics":
        (run / "metrics.jsonl").write_text("what?\n")
    else:
        (run / "summary.json").unlink()
        (run / CHECKPOINT).parent.mkdir(exist_ok=True)
        (run / CHECKPOINT).write_bytes(b"half a checkpoint")
    assert facts(run_trial(work(tmp_path), print)) == facts(whole)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
