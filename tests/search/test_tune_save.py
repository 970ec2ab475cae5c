"""What was found is written meanwhile, and however the search ends."""

import csv
from functools import partial

import pytest

from qafel.cli import choose as command
from qafel.config import load_recipe
from qafel.errors import OutputError
from qafel.search import Range
from qafel.search import tune as tune_and_check

CONFIG = load_recipe("mushrooms-qafel-4bit", ["stop.server_steps=60"])
tune = partial(tune_and_check, CONFIG, {"algorithm.server_lr": Range(0.05, 0.5)}, target=0.2, check=0)


def interrupt_after(count):
    def watch(now):
        if now.done == count:
            raise KeyboardInterrupt

    return watch


def test_what_is_done_is_saved_when_the_search_is_interrupted(tmp_path):
    saved = []
    with pytest.raises(KeyboardInterrupt):
        tune(trials=9, out=tmp_path, save=saved.append, watch=interrupt_after(3))
    assert [len(tuning.trials) for tuning in saved] == [3]
    with pytest.raises(KeyboardInterrupt):
        tune(trials=9, out=tmp_path / "none", save=saved.append, watch=interrupt_after(0))
    assert len(saved) == 1


def test_it_is_saved_meanwhile_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setitem(tune_and_check.__globals__, "SAVE_EVERY_S", 0.0)
    saved = []
    tuning = tune(trials=4, out=tmp_path, save=saved.append)
    assert [len(each.trials) for each in saved] == [1, 2, 3, 4, 4]
    assert saved[-1] == tuning


def test_what_cannot_be_saved_does_not_hide_why_the_search_ended(tmp_path):
    def refuse(tuning):
        raise OutputError("no space left")

    with pytest.raises(KeyboardInterrupt):
        tune(trials=3, out=tmp_path, save=refuse, watch=interrupt_after(1))
    with pytest.raises(OutputError, match="no space left"):
        tune(trials=3, out=tmp_path, save=refuse)


def test_after_ctrl_c_the_command_leaves_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(command._TuneProgress, "update", lambda self, now: interrupt_after(2)(now))
    with pytest.raises(KeyboardInterrupt):
        command.tune("mushrooms-qafel-4bit", target=0.5, trials=5, check=0, out=tmp_path, quiet=True)
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["0", "1"]
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "best.toml").exists()
