"""The lists: what there is, what of it cannot be used here, and quantizers beside what they do to data."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from qafel.cli import app
from qafel.errors import SpecError
from tests.command import qafel_here


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_shows_theory_and_measurement() -> None:
    rows = {row["quantizer"]: row for row in json.loads(run("quantizers", "--size", "3000", "--json"))}
    assert rows["qsgd:4"]["delta"] < 0 < rows["scaled:qsgd:4"]["delta"]
    assert rows["rotated:4"]["nmse_gaussian"] < rows["qsgd:4"]["nmse_gaussian"]
    for row in rows.values():
        assert row["nmse_gaussian"] <= 1.3 * row["omega"]
        assert row["rate_distortion_bound"] == pytest.approx(2 ** (-2 * row["bits_per_coordinate"]))


def test_the_table_is_readable_in_80_columns() -> None:
    text = run("quantizers", "--size", "29282", "qsgd:4,norm=l2,bucket=none", "none", "qsgd:8")
    assert "…" not in text
    assert "qsgd:4,norm=l2,bucket=none" in text


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
    shown = " ".join(qafel_here("recipes")[0].split())
    assert "not ready here (dim): CIFAR-10:" in shown
    assert shown.count("not ready here") == 3, "mushrooms are"


def test_a_task_without_a_partition_has_none_to_show():
    assert "mushrooms is divided evenly" in qafel_here("tasks", "show", "mushrooms", expect=2)[1]
