"""The trackers of a run, and the names that they accept."""

from __future__ import annotations

import importlib.util
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qafel import Limits, Mushrooms, Timing, method, simulate
from qafel.errors import ConfigError
from qafel.runs.directory import by_path
from qafel.runs.trackers import safe, scalars, track_of


def test_without_a_choice_tensorboard_if_it_is_installed(monkeypatch):
    installed = importlib.util.find_spec("tensorboard") is not None
    assert track_of(None).names == (("tensorboard",) if installed else ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert track_of(None).names == ()


def test_several_are_taken_once_each_and_none_is_none(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert track_of(["wandb", "mlflow", "wandb"]).names == ("mlflow", "wandb")
    assert track_of("mlflow").names == ("mlflow",)
    assert track_of("none").names == track_of(()).names == ()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("neptune", "neptune"),
        (["none", "mlflow"], "none"),
        ("wandb", r"qafel\[wandb\]"),
    ],
)
def test_what_cannot_be_is_a_sentence(asked, sentence, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=sentence):
        track_of(asked)


def test_simulate_needs_a_directory_to_track(tmp_path):
    arguments = (Mushrooms(), method("fedbuff"), Timing())
    with pytest.raises(ConfigError, match="track"):
        simulate(*arguments, limits=Limits(server_steps=1), track="tensorboard")
    simulate(*arguments, limits=Limits(server_steps=1), track="none")


@given(st.text())
def test_a_safe_name_is_of_letters_that_every_tracker_takes(name):
    assert re.fullmatch(r"([A-Za-z0-9_-][A-Za-z0-9._-]*)?", safe(name))
    assert safe(safe(name)) == safe(name)


def test_the_metric_has_the_tasks_name_unless_a_figure_has_it_already():
    row = {"uploads": 3, "metric": 0.5, "loss": 1.0, "staleness_histogram": [1], "received_bytes_total": None}
    assert scalars(row, "f(x) − f*") == {"uploads": 3.0, "loss": 1.0, "f_x_-_f": 0.5}
    assert scalars(row, "loss") == {"uploads": 3.0, "loss": 1.0, "metric": 0.5}
    assert scalars({**row, "metric": None}, "accuracy") == {"uploads": 3.0, "loss": 1.0}


def test_settings_are_one_by_one_under_their_paths():
    assert by_path({"a": {"b": 1, "c": {"d": "x"}}, "e": [1, 2]}) == {"a.b": 1, "a.c.d": "x", "e": [1, 2]}
