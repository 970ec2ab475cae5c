"""sweep(…): runs from Python, in a folder that can be gone on with, and a table of them."""

import csv
import json

import pytest

import qafel
from qafel.errors import ConfigError, OutputError

QUICK = {"stop.server_steps": 20, "evaluation.every": 5}


def test_a_sweep_is_a_table_of_runs_with_their_settings_and_figures(tmp_path):
    found = qafel.sweep("mushrooms-fedbuff", seeds=2, settings=QUICK | {"algorithm.client_lr": [1, 2]}, out=tmp_path)
    assert len(found) == 4
    assert found["algorithm.client_lr"].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert found["seed"].tolist() == [0, 1, 0, 1]
    assert (found["uploads"] == 200).all()
    summary = json.loads((tmp_path / found.rows[3]["run"] / "summary.json").read_text())
    assert found.rows[3]["metric_final"] == summary["metric_final"]
    assert found.rows[3]["model_sha256"] == summary["model_sha256"]
    assert found.report == tmp_path / "report.html"
    assert "Sweep(4 runs ×" in repr(found)
    html = found._repr_html_()
    assert html.count("<tr>") == 3, "a head, and a row for all seeds of a client_lr"
    assert "mushrooms-fedbuff client_lr=2" in html
    assert "±" in html
    assert html.count("data:image/svg+xml;base64,") == 1
    assert found.plot().save(tmp_path / "plot.svg").read_text().startswith("<?xml")
    with (tmp_path / "table.csv").open(newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == [row["run"] for row in found.rows]
    page = found.report.read_text()
    assert "mushrooms-fedbuff-client_lr=1" in page
    assert "<td>2</td>" in page, "two seeds in a row"


def test_a_longer_sweep_makes_only_what_is_missing(tmp_path):
    def times():
        return {file.parent.name: file.stat().st_mtime_ns for file in tmp_path.glob("*/summary.json")}

    qafel.sweep("mushrooms-fedbuff", seeds=[3], settings=QUICK, out=tmp_path)
    before = times()
    found = qafel.sweep(["mushrooms-fedbuff", "mushrooms-fedasync"], seeds=[3, 4], settings=QUICK, out=tmp_path)
    assert len(found) == 4
    assert times()["mushrooms-fedbuff-seed3"] == before["mushrooms-fedbuff-seed3"]


def test_a_table_of_settings_is_a_recipe(tmp_path):
    recipe = {"extends": "mushrooms-fedbuff", "name": "own", "stop": {"server_steps": 5}}
    assert qafel.sweep(recipe, seeds=1, out=tmp_path).rows[0]["run"] == "own-seed0"


def test_a_run_that_fails_is_a_row_that_says_so(tmp_path):
    (tmp_path / "mushrooms-fedbuff-seed1").mkdir()
    (tmp_path / "mushrooms-fedbuff-seed1" / "thesis.tex").write_text("years of work")
    found = qafel.sweep("mushrooms-fedbuff", seeds=2, settings=QUICK, out=tmp_path)
    assert [row["status"] for row in found.rows] == ["finished", "failed"]
    assert "not a run directory" in found.rows[1]["error"]
    assert list(found.failed) == ["mushrooms-fedbuff-seed1"]
    assert "mushrooms-fedbuff-seed1 (failed)" in (tmp_path / "report.html").read_text()


def test_nothing_is_written_if_one_combination_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="client_lr"):
        qafel.sweep("mushrooms-fedbuff", settings={"algorithm.client_lr": [1, -1]}, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_quantizer_that_theory_is_against_is_a_warning(tmp_path):
    unfit = {"algorithm.server_quantizer": "qsgd:levels=1,norm=l2,bucket=none"}
    with pytest.warns(UserWarning, match="server"):
        qafel.sweep("mushrooms-qafel-qsgd", seeds=1, settings=QUICK | unfit, out=tmp_path)


def test_a_folder_that_cannot_be_a_sweeps_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="choose another folder"):
        qafel.sweep("mushrooms-fedbuff", seeds=1, settings=QUICK, out=tmp_path / "file")
    made = qafel.sweep("mushrooms-fedbuff", seeds=1, settings=QUICK, out=tmp_path / "sweep")
    with pytest.raises(OutputError, match="run directory"):
        qafel.sweep("mushrooms-fedbuff", seeds=1, settings=QUICK, out=made.folder / made.rows[0]["run"])
