"""A study goes on from its journal, in a folder of its own; no setting is tried twice."""

from functools import partial

import pytest

from qafel.config import load_recipe
from qafel.errors import DataError, OutputError
from qafel.search import Choices, Range, Tuning
from qafel.search import tune as tune_and_check
from qafel.search.page import lead_sentence
from qafel.search.trials import Objective, RunOutcome
from qafel.search.tuning import JOURNAL, Study, StudyPruner, open_study
from tests.search.test_tune import BAD_START, RATE, facts

CONFIG = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=30"])
tune = partial(tune_and_check, check=0)
tune_all = partial(tune, CONFIG, target=0.3)
SIZES = {"algorithm.buffer_size": Choices((5, 10, 20))}
NINE = {**SIZES, "algorithm.server_lr": Choices((0.1, 0.2, 0.3))}


def begun_in(folder):
    return Tuning(folder, BAD_START, RATE, Objective("uploads", 0.1, "min", "loss"), 1)


def tried(tuning):
    return [(trial.number, *trial.settings.values()) for trial in tuning.trials]


def test_three_choices_are_three_trials(tmp_path):
    tuning = tune_all(SIZES, trials=15, out=tmp_path)
    assert sorted(size for _, size in tried(tuning)) == [5, 10, 20]
    assert tuning.exhausted
    assert "found in 3 trials (all settings were tried)" in lead_sentence(tuning)
    assert len(list((tmp_path / "trials").iterdir())) == 3
    assert not tune_all(SIZES, trials=3, out=tmp_path).exhausted


def test_all_of_a_small_space_is_tried_with_any_number_of_workers(tmp_path):
    for workers in (1, 2):
        tuning = tune_all(NINE, trials=30, out=tmp_path / str(workers), workers=workers)
        assert len({settings for _, *settings in map(tuple, tried(tuning)) for settings in [tuple(settings)]}) == 9
        assert len(tuning.trials) == 9


def test_a_search_with_repeats_that_goes_on_is_the_search_it_would_have_been(tmp_path):
    whole = tune_all(NINE, trials=9, out=tmp_path / "whole")
    for trials in range(1, 10):
        parts = tune_all(NINE, trials=trials, out=tmp_path / "parts")
        assert len(parts.trials) == trials
    assert tried(parts) == tried(whole)


def test_a_range_in_which_nothing_new_is_drawn_ends_too(tmp_path):
    tuning = tune_all({"algorithm.server_lr": Range(0.1, 0.1001)}, trials=10, out=tmp_path)
    assert sorted(rate for _, rate in tried(tuning)) == [0.1, 0.1001]
    assert tuning.exhausted


def test_an_interrupted_trial_is_taken_up_as_it_was(tmp_path):
    """Which takes Optuna's `FrozenTrial._trial_id`: it has no public way back to a trial that is still running."""
    with open_study(begun_in(tmp_path)) as killed:
        begun = killed.next()
        study = Study(begun_in(tmp_path))
        assert study.next() == begun
        study.finish(begun.failed("no memory"))
        assert study.finished()[0].state == "failed"
        assert study.next().number == 1


def test_a_trial_behind_the_median_of_successes_is_pruned(tmp_path):
    with open_study(begun_in(tmp_path)) as study:
        for cost in (100.0, 120.0):
            trial = study.next()
            pruner = StudyPruner(tmp_path / JOURNAL, trial.number)
            assert not any(pruner(share * cost, 1 - share) for share in (0.25, 0.5, 0.75))
            pruner(cost, None)
            study.finish(trial.ended([RunOutcome(0, "reached", cost, 0.0, 0.1, int(cost), 0.0)], 1))
        fast, slow = (StudyPruner(tmp_path / JOURNAL, study.next().number) for _ in range(2))
        assert not fast(60.0, 0.2)
        assert not slow(10.0, 0.95), "no success reported so early"
        assert slow(60.0, 0.9)
        assert slow(1000.0, 0.01), "the others were done by then"


def test_half_a_line_and_a_stale_lock_in_the_journal_are_no_obstacle(tmp_path):
    tune(BAD_START, RATE, target=0.1, trials=3, out=tmp_path / "cut")
    with (tmp_path / "cut/study.journal").open("ab") as journal:
        journal.write(b'{"op_code": 4, "worker')
    (tmp_path / "cut/study.journal.lock").symlink_to("study.journal")
    went_on = tune(BAD_START, RATE, target=0.1, trials=6, out=tmp_path / "cut")
    assert facts(went_on) == facts(tune(BAD_START, RATE, target=0.1, trials=6, out=tmp_path / "whole"))


@pytest.mark.parametrize("line", [1, -1])
def test_a_damaged_journal_is_told_in_a_sentence(line, tmp_path):
    tune(BAD_START, RATE, target=0.1, trials=1, out=tmp_path)
    journal = tmp_path / "study.journal"
    lines = journal.read_bytes().splitlines()
    for damage in (lines[line][:-9], b"{}", b"\xff\x00"):
        if line == 1 or damage != b"{}":
            journal.write_bytes(b"\n".join([*lines[:line], damage, *lines[line:][1:], b""]))
            with pytest.raises(DataError, match="study.journal is damaged"):
                tune(BAD_START, RATE, target=0.1, trials=1, out=tmp_path)


def test_another_search_in_the_same_folder_is_refused(tmp_path):
    tune(BAD_START, RATE, target=0.1, trials=1, out=tmp_path)
    with pytest.raises(OutputError, match=r"another search \(target: 0.1 there, 0.2 here\)|evaluation\.target"):
        tune(BAD_START, RATE, target=0.2, trials=1, out=tmp_path)
    with pytest.raises(OutputError, match="objective: uploads there, total-bytes here"):
        tune(BAD_START, RATE, target=0.1, trials=1, out=tmp_path, objective="total-bytes")
    with pytest.raises(OutputError, match="search.algorithm.server_lr: 0.001:10:log there, 0.002:10:log here"):
        tune(BAD_START, {"algorithm.server_lr": Range(2e-3, 10, log=True)}, target=0.1, trials=1, out=tmp_path)
    changes = ["stop.server_steps=200", "algorithm.server_lr=0.005", "algorithm.local_steps=5"]
    other = load_recipe("mushrooms-qafel-4bit", changes)
    with pytest.raises(OutputError, match="config.algorithm.local_steps: 10 there, 5 here"):
        tune(other, RATE, target=0.1, trials=1, out=tmp_path)


def test_one_process_at_a_time_searches_in_a_folder(tmp_path):
    begun = begun_in(tmp_path)
    with open_study(begun), pytest.raises(OutputError, match="Another search"), open_study(begun):
        pass
    with open_study(begun):
        pass
