from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from qafel.cli.report import report
from qafel.errors import DataError

app = typer.Typer()
app.command()(report)


def test_the_command_writes_page_and_figure_and_says_where(make_run, tmp_path):
    out = tmp_path / "new [folder]" / "page.html"
    result = CliRunner().invoke(app, [str(make_run("a")), str(make_run("b")), "--out", str(out), "--title", "Two runs"])
    assert result.exit_code == 0, result.output
    assert "<title>Two runs</title>" in out.read_text()
    assert (out.parent / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert str(out) in result.output


def test_one_run_gets_its_report_in_its_own_directory(make_run):
    path = make_run()
    result = CliRunner().invoke(app, [str(path), "--json"])
    assert json.loads(result.output)["report"] == str(path / "report.html")
    assert (path / "report.html").is_file()


def test_several_runs_are_reported_here(make_run, tmp_path, monkeypatch):
    runs = [str(make_run("a")), str(make_run("b", finished=False))]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, runs)
    assert (tmp_path / "report.html").is_file()
    assert "not finished" in result.output


def test_a_users_mistake_is_left_to_the_app(tmp_path):
    with pytest.raises(DataError, match="no run directory"):
        CliRunner().invoke(app, [str(tmp_path / "nowhere")], catch_exceptions=False)
    assert not (tmp_path / "report.html").exists()
