"""A trial that cannot be run is an outcome among others; what says nothing of the settings ends the search."""

import multiprocessing
import os
import signal
from functools import partial

import pytest

from qafel.config import load_recipe
from qafel.errors import ConfigError, OutputError, UserError
from qafel.search import Choices, Range
from qafel.search import tune as tune_and_check
from qafel.search.page import failures, lead_sentence, render_page, trials_csv
from qafel.search.runner import perform

ROUNDS = load_recipe("mushrooms-fedavg", ["stop.uploads=2000"])
tune = partial(tune_and_check, check=0, target=0.1)
TOO_MANY = "a round of 200 needs as many clients, there are 100"


def sizes(*values):
    return {"algorithm.buffer_size": Choices(values)}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_trial_that_the_task_refuses_fails_and_the_others_are_run(workers, tmp_path):
    tuning = tune(ROUNDS, sizes(10, 20, 200), trials=15, out=tmp_path, workers=workers)
    states = {trial.settings["algorithm.buffer_size"]: trial.state for trial in tuning.trials}
    assert states.keys() == {10, 20, 200}
    assert (states[10], states[200]) == ("reached", "failed")
    lost = next(trial for trial in tuning.trials if trial.state == "failed")
    assert f'failed,200,,,,,,"{TOO_MANY}",' in trials_csv(tuning)
    assert f"Trial {lost.number} failed: {TOO_MANY}" in render_page(tuning)
    assert failures(tuning) == [f"trial {lost.number} failed: {TOO_MANY}"]
    assert "found in 3 trials (1 failed; all settings were tried)" in lead_sentence(tuning)
    again = tune(ROUNDS, sizes(10, 20, 200), trials=15, out=tmp_path, workers=workers)
    assert [trial.state for trial in again.trials] == [trial.state for trial in tuning.trials]


def test_where_the_recipe_itself_fails_the_search_ends_and_begins_with_it_again(tmp_path):
    recipe = load_recipe("mushrooms-fedavg", ["algorithm.buffer_size=200"])
    for _ in range(2):
        with pytest.raises(ConfigError, match=TOO_MANY):
            tune(recipe, sizes(10, 200), trials=5, out=tmp_path)
    assert not (tmp_path / "trials/0001").exists()


def test_where_all_of_the_first_fail_the_search_ends(tmp_path):
    with pytest.raises(UserError, match="All 5 trials failed.*a round of"):
        tune(ROUNDS, sizes(*range(200, 210)), trials=8, out=tmp_path)
    with pytest.raises(UserError, match="All 1 trials failed"):
        tune(ROUNDS, sizes(200, 300), trials=1, out=tmp_path / "one")


def test_what_goes_wrong_without_intention_fails_a_trial_too(tmp_path, monkeypatch):
    def exhaust(**arguments):
        if arguments["algorithm"].buffer_size == 20:
            raise MemoryError("12 GB")
        return simulate(**arguments)

    simulate = perform.__globals__["simulate"]
    monkeypatch.setattr("qafel.search.runner.simulate", exhaust)
    tuning = tune(ROUNDS, sizes(10, 20), trials=2, out=tmp_path)
    assert {trial.error for trial in tuning.trials} == {"", "MemoryError: 12 GB"}


def test_a_full_disk_is_no_fault_of_the_settings(tmp_path, monkeypatch):
    def fill(**arguments):
        raise OutputError("cannot write: no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("qafel.search.runner.simulate", fill)
        with pytest.raises(OutputError, match="no space"):
            tune(ROUNDS, sizes(20, 30), trials=2, out=tmp_path)
    assert {trial.state for trial in tune(ROUNDS, sizes(20, 30), trials=2, out=tmp_path).trials} <= {
        "reached",
        "pruned",
    }


def test_a_worker_killed_alone_is_replaced_and_its_trial_run_again(tmp_path):
    killed = []

    def kill_one(moment):
        if moment.trial.number == 1 and not killed:
            worker = multiprocessing.active_children()[0]
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)

    rate = {"algorithm.client_lr": Range(1, 4)}
    tuning = tune(ROUNDS, rate, trials=4, out=tmp_path, workers=2, watch=kill_one)
    assert len(killed) == 1
    assert [trial.number for trial in tuning.trials] == [0, 1, 2, 3]
    assert {trial.state for trial in tuning.trials} <= {"reached", "pruned"}
