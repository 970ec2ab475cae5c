"""The search on a real task: better than a bad start, the same again, no matter how often it was interrupted."""

import importlib
import json
import math
import subprocess
import sys
from functools import partial

import pytest

from qafel.config import load_recipe
from qafel.errors import ConfigError
from qafel.search import Choices, Range
from qafel.search import tune as tune_and_check
from qafel.search.page import ranked, trials_csv, write_results
from tests.running import run

BAD_START = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=200", "algorithm.server_lr=0.005"])
tune = partial(tune_and_check, check=0)
RATE = {"algorithm.server_lr": Range(1e-3, 10, log=True)}


def facts(tuning):
    """All that a search found, without what depends on the machine."""
    found = []
    for trial in tuning.trials:
        runs = [(run.seed, run.state, run.cost, run.gap, run.metric) for run in trial.runs]
        found.append((trial.number, dict(trial.settings), trial.state, trial.score, runs))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search of both learning rates, beyond the trials that are drawn blindly."""
    return tune(BAD_START, target=0.1, trials=12, out=tmp_path_factory.mktemp("whole"))


def test_it_finds_a_better_rate_than_a_bad_start(tmp_path):
    tuning = tune(BAD_START, RATE, target=0.1, trials=14, out=tmp_path)
    first, best = tuning.trials[0], tuning.best
    assert first.settings == {"algorithm.server_lr": 0.005}
    assert first.state == "missed"
    assert best.state == "reached"
    assert best.settings["algorithm.server_lr"] > 0.05
    assert best.score < 1000
    assert best.score == min(trial.score for trial in tuning.trials)


def test_the_best_recipe_does_what_the_search_measured(tmp_path):
    tuning = tune(BAD_START, RATE, target=0.1, trials=8, out=tmp_path / "tune", seeds=2)
    write_results(tuning)
    costs = []
    for seed in (0, 1):
        config = load_recipe(str(tmp_path / "tune/best.toml"), seed=seed)
        assert config.stop == BAD_START.stop
        assert config.name == "mushrooms-qafel-4bit-tuned"
        costs.append(run(config, tmp_path / f"run-{seed}", track=())["uploads_to_target"])
    assert sum(costs) / 2 == tuning.best.score


def test_another_seed_is_another_search(whole, tmp_path):
    other = tune(BAD_START.model_copy(update={"seed": 1}), target=0.1, trials=2, out=tmp_path)
    assert facts(whole)[:2] != facts(other)


def test_one_worker_makes_the_same_search_again_also_in_parts(whole, tmp_path):
    for trials in (1, 5, 5, 12):
        parts = tune(BAD_START, target=0.1, trials=trials, out=tmp_path)
        assert len(parts.trials) == trials
    assert facts(parts) == facts(whole)


def test_two_workers_complete_exactly_as_many_trials_as_asked(tmp_path):
    tuning = tune(BAD_START, target=0.1, trials=7, out=tmp_path, workers=2)
    assert [trial.number for trial in tuning.trials] == list(range(7))
    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == [f"{number:04d}" for number in range(7)]
    assert facts(tune(BAD_START, target=0.1, trials=7, out=tmp_path)) == facts(tuning)
    assert len(tune(BAD_START, target=0.1, trials=8, out=tmp_path).trials) == 8


def test_a_mistake_in_a_worker_is_told_here(tmp_path):
    with pytest.raises(ConfigError, match="target"):
        tune(BAD_START, target=100.0, trials=2, out=tmp_path, workers=2)


def test_trials_that_diverge_come_last(tmp_path):
    rates = {"algorithm.server_lr": Choices((0.1, 1e25, 1e38))}
    tuning = tune(BAD_START, rates, target=0.1, trials=10, out=tmp_path)
    states = {trial.settings["algorithm.server_lr"]: trial.state for trial in tuning.trials}
    assert states[0.1] == "reached"
    assert states[1e38] == "diverged"
    assert "diverged" in trials_csv(tuning)
    assert ranked(tuning)[-1].state == "diverged"


def test_trials_behind_the_median_are_pruned_and_stay_without_a_score(whole):
    pruned = [trial for trial in whole.trials if trial.state == "pruned"]
    assert pruned
    assert all(trial.score == math.inf and trial.gap > 0 for trial in pruned)
    assert whole.best.state == "reached"
    assert max(trial.runs[0].uploads for trial in pruned) < 2000, "none used its whole budget"


def test_the_score_is_the_mean_over_all_seeds(tmp_path):
    rates = {"algorithm.server_lr": Choices((0.1, 0.12, 0.2, 0.3))}
    tuning = tune(BAD_START, rates, target=0.1, trials=4, out=tmp_path, seeds=3)
    for trial in tuning.trials:
        if trial.good:
            assert trial.score == sum(run.cost for run in trial.runs) / 3
        assert all(run.state == "reached" for run in trial.runs[:-1])
    assert {run.seed for run in tuning.best.runs} == {0, 1, 2}


@pytest.mark.parametrize("objective", ["total-bytes", "virtual-time"])
def test_the_score_is_the_cost_of_the_run(objective, tmp_path):
    tuning = tune(BAD_START, RATE, target=0.1, trials=5, out=tmp_path, objective=objective)
    summary = json.loads((tmp_path / f"trials/{tuning.best.number:04d}/seed-0/summary.json").read_text())
    total = sum(summary[f"{part}_bytes_total"] for part in ("upload", "broadcast", "received"))
    assert tuning.best.score == {"total-bytes": total, "virtual-time": summary["virtual_time"]}[objective]


def test_the_metric_needs_no_target_and_good_runs_use_their_whole_budget(tmp_path):
    tuning = tune(BAD_START, RATE, trials=5, out=tmp_path, objective="metric")
    assert {trial.state for trial in tuning.trials} <= {"finished", "pruned", "diverged"}
    assert tuning.best.runs[0].uploads == 2000
    assert tuning.best.score == min(trial.runs[0].metric for trial in tuning.trials if trial.good)


def test_bits_and_buffer_can_be_searched_for_bytes(tmp_path):
    search = {
        "algorithm.server_lr": Range(0.01, 1, log=True),
        "algorithm.buffer_size": Range(4, 16, whole=True),
        "algorithm.client_quantizer": Choices(("qsgd:2", "qsgd:4", "qsgd:8")),
    }
    tuning = tune(BAD_START, search, target=0.1, trials=12, out=tmp_path, objective="total-bytes")
    assert tuning.best.state == "reached"
    assert {type(trial.settings["algorithm.buffer_size"]) for trial in tuning.trials} == {int}
    assert set(tuning.importance) <= set(search)


def test_after_the_time_is_up_no_trial_begins(tmp_path):
    tuning = tune(BAD_START, RATE, target=0.1, trials=5, out=tmp_path, seconds=0)
    assert tuning.trials == ()
    assert tuning.best is None


def test_mistakes_are_told_before_anything_is_written(tmp_path):
    out = tmp_path / "none"
    with pytest.raises(ConfigError, match="`target`"):
        tune(BAD_START, RATE, trials=1, out=out)
    with pytest.raises(ConfigError, match="takes no target"):
        tune(BAD_START, RATE, trials=1, out=out, objective="metric", target=0.1)
    with pytest.raises(ConfigError, match="unknown objective"):
        tune(BAD_START, RATE, trials=1, out=out, target=0.1, objective="bits")
    assert not out.exists()


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "qafel.search.tuning")
    with pytest.raises(ConfigError, match=r"pip install 'qafel\[tune\]'"):
        importlib.import_module("qafel.search.tuning")


def test_without_optuna_everything_else_is_there():
    code = "import sys; sys.modules['optuna'] = None; import qafel.cli, qafel.search.page"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
