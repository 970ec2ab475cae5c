"""No setting is tried twice, and where all were tried the search ends."""

from functools import partial

from qafel.config import load_recipe
from qafel.tuning import Choices, Range
from qafel.tuning import tune as tune_and_check
from qafel.tuning.result import lead_sentence

CONFIG = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=30"])
tune = partial(tune_and_check, CONFIG, target=0.3, check=0)
SIZES = {"algorithm.buffer_size": Choices((5, 10, 20))}
NINE = {**SIZES, "algorithm.server_lr": Choices((0.1, 0.2, 0.3))}


def tried(tuning):
    return [(trial.number, *trial.settings.values()) for trial in tuning.trials]


def test_three_choices_are_three_trials(tmp_path):
    tuning = tune(SIZES, trials=15, out=tmp_path)
    assert sorted(size for _, size in tried(tuning)) == [5, 10, 20]
    assert tuning.exhausted
    assert "found in 3 trials (there is nothing else to try)" in lead_sentence(tuning)
    assert len(list((tmp_path / "trials").iterdir())) == 3
    assert not tune(SIZES, trials=3, out=tmp_path).exhausted


def test_all_of_a_small_space_is_tried_with_any_number_of_workers(tmp_path):
    for workers in (1, 2):
        tuning = tune(NINE, trials=30, out=tmp_path / str(workers), workers=workers)
        assert len({settings for _, *settings in map(tuple, tried(tuning)) for settings in [tuple(settings)]}) == 9
        assert len(tuning.trials) == 9


def test_a_search_with_repeats_that_goes_on_is_the_search_it_would_have_been(tmp_path):
    whole = tune(NINE, trials=9, out=tmp_path / "whole")
    for trials in range(1, 10):
        parts = tune(NINE, trials=trials, out=tmp_path / "parts")
        assert len(parts.trials) == trials
    assert tried(parts) == tried(whole)


def test_a_range_in_which_nothing_new_is_drawn_ends_too(tmp_path):
    tuning = tune({"algorithm.server_lr": Range(0.1, 0.1001)}, trials=10, out=tmp_path)
    assert sorted(rate for _, rate in tried(tuning)) == [0.1, 0.1001]
    assert tuning.exhausted
