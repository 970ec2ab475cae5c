"""The lists: what there is, what of it cannot be used here, and quantizers beside what they do to data."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from qafel.cli import app
from qafel.config import load_recipe
from qafel.config.tasks import TASKS
from qafel.errors import SpecError
from tests.command import qafel_here


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_shows_theory_and_measurement() -> None:
    rows = {
        row["quantizer"]: row
        for row in json.loads(
            run("quantizers", "--size", "3000", "--json", "qsgd:4", "scaled:qsgd:4", "rotated:4", "trellis:4")
        )
    }
    assert rows["qsgd:4"]["delta"] < 0 < rows["scaled:qsgd:4"]["delta"]
    assert rows["rotated:4"]["nmse_gaussian"] < rows["qsgd:4"]["nmse_gaussian"]
    for row in rows.values():
        assert row["nmse_gaussian"] <= 1.3 * row["omega"]
        assert row["rate_distortion_bound"] == pytest.approx(2 ** (-2 * row["bits_per_coordinate"]))


def test_the_table_is_readable_in_80_columns() -> None:
    text = run("quantizers", "--size", "29282", "qsgd:4,norm=l2,bucket=none", "none", "qsgd:8")
    assert "…" not in text
    assert "qsgd:4,norm=l2,bucket=none" in text


def test_the_table_of_a_million_coordinates_is_readable_too() -> None:
    text = run("quantizers", "none", "qsgd:4", "--size", "1000000")
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[2].split() == ["none", "=", "x", "0", "1", "32.00", "4", "MB", "0", "0", "5e-20"]


def test_a_spec_that_does_not_parse_is_named() -> None:
    with pytest.raises(SpecError, match="did you mean"):
        run("quantizers", "qsdg:4")


def test_recipes_and_tasks_are_listed():
    names = {recipe["name"] for recipe in json.loads(qafel_here("recipes", "--json")[0])}
    assert {"mushrooms-fedbuff", "mushrooms-qafel-qsgd", "mushrooms-direct-topk"} <= names
    assert "mushrooms-qafel-4bit" in qafel_here("recipes")[0]
    assert "mushrooms" in json.loads(qafel_here("tasks", "--json")[0])


def test_recipes_whose_data_is_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path))
    text = run("recipes")
    shown = " ".join(text.split())
    assert shown.startswith("logistic "), "what can be run comes first"
    assert "cifar10 CIFAR-10 and the four-layer network" in shown
    assert "not ready here: CIFAR-10:" in shown
    assert shown.count("not ready here") == 3, "the others are"
    assert max(map(len, text.splitlines())) <= 80
    assert "# not ready here: CIFAR-10:" in run("recipes", "show", "cifar10-qafel")


def test_recipes_are_grouped_by_task():
    lines = [line.split() for line in run("recipes").splitlines()]
    starts = [line[0] for line in lines if line]
    assert [name for name in starts if name in TASKS] == [name for name in dict.fromkeys(starts) if name in TASKS]
    assert "cifar10-qafel" in starts


def test_words_choose_recipes():
    listed = {recipe["name"] for recipe in json.loads(run("recipes", "CIFAR10", "qafel", "--json"))}
    assert listed == {"cifar10-qafel"}
    assert "cifar10-qafel" in run("recipes", "cifar10", "qafel")
    assert "mushrooms" not in run("recipes", "cifar10", "qafel")
    refused = qafel_here("recipes", "qaffel", expect=2)[1]
    assert "'qafel'" in refused


def test_a_recipe_is_shown_with_all_its_settings_as_a_recipe(tmp_path):
    text = run("recipes", "show", "mushrooms-qafel-4bit")
    assert "qafel run mushrooms-qafel-4bit" in text
    (tmp_path / "same.toml").write_text(text, encoding="utf-8")
    assert load_recipe(str(tmp_path / "same.toml")) == load_recipe("mushrooms-qafel-4bit")
    assert json.loads(run("recipes", "show", "mushrooms-qafel-4bit", "--json"))["algorithm"]["buffer_size"] == 10
    assert "'mushrooms-mcm'" in qafel_here("recipes", "show", "mushrooms-mcn", expect=2)[1]
    assert "recipes show" in qafel_here("recipes", "show", expect=2)[1]


def test_a_task_without_a_partition_has_none_to_show():
    assert "evenly" in qafel_here("tasks", "show", "mushrooms", expect=2)[1]


def test_the_theory_of_a_custom_quantizer_is_marked_as_measured():
    path = "tests.quantizers.test_custom:Half"
    shown = CliRunner().invoke(app, ["quantizers", path, "--size", "50"])
    assert shown.exit_code == 0, shown.output
    assert "≈: measured" in shown.output
    rows = json.loads(CliRunner().invoke(app, ["quantizers", path, "qsgd:4", "--size", "50", "--json"]).stdout)
    assert [row["measured"] for row in rows] == [True, False]
