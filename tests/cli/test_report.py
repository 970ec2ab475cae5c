"""Reports say what they show and what they leave out; the demo runs, and its table bears runs that diverged."""

from __future__ import annotations

import json
import os

import pytest
import typer
from typer.testing import CliRunner

from qafel.cli.report import REFERENCE, _demo_table, demo, report
from qafel.errors import DataError, OutputError, QafelError
from qafel.runs.reading import BYTES
from tests.command import qafel

app = typer.Typer()
app.command()(report)


def test_the_command_writes_page_and_figure_and_says_where(make_run, tmp_path):
    out = tmp_path / "new [folder]" / "page.html"
    result = CliRunner().invoke(app, [str(make_run("a")), str(make_run("b")), "--out", str(out), "--title", "Two runs"])
    assert result.exit_code == 0, result.output
    assert "<title>Two runs</title>" in out.read_text()
    assert (out.parent / "page.png").read_bytes().startswith(b"\x89PNG")
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
    with pytest.raises(DataError, match="not a run directory"):
        CliRunner().invoke(app, [str(tmp_path / "nowhere")], catch_exceptions=False)
    assert not (tmp_path / "report.html").exists()


def test_a_page_is_not_taken_for_its_own_figure(make_run, tmp_path):
    with pytest.raises(OutputError, match=r"\.html"):
        CliRunner().invoke(app, [str(make_run()), "--out", str(tmp_path / "x.png")], catch_exceptions=False)


def test_two_reports_in_one_folder_keep_their_own_figures(make_run, tmp_path):
    run = str(make_run())
    figures = []
    for page in ("a.html", "b.html"):
        result = CliRunner().invoke(app, [run, "--out", str(tmp_path / page), "--json"])
        figures.append(json.loads(result.output)["figure"])
    assert figures == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


def test_what_has_nothing_to_show_is_left_out_and_named(make_run, tmp_path):
    new, stray, good = make_run("new"), tmp_path / "stray.txt", make_run("good")
    (new / "metrics.jsonl").write_bytes(b"")
    stray.write_text("")
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, [str(new), str(good), str(stray), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["left_out"] == [str(new), str(stray)]
    assert json.loads(result.stdout)["runs"] == ["good"]
    assert f"left out: {new} (nothing evaluated yet)\nleft out: {stray} (no run directory)\n" == result.stderr
    assert "Left out: new (nothing evaluated yet), stray.txt (no run directory)." in out.read_text()


def test_a_report_of_nothing_fails_and_so_does_a_path_that_leads_nowhere(make_run, tmp_path):
    stray, out = tmp_path / "stray.txt", str(tmp_path / "page.html")
    stray.write_text("")
    with pytest.raises(DataError, match=r"none of these .*stray\.txt \(no run directory\)"):
        CliRunner().invoke(app, [str(stray), str(stray), "--out", out], catch_exceptions=False)
    with pytest.raises(DataError, match="nowhere is not a run directory"):
        CliRunner().invoke(app, [str(make_run()), str(tmp_path / "nowhere"), "--out", out], catch_exceptions=False)


def test_a_folder_of_runs_is_a_report_of_all_of_them(make_run, tmp_path):
    """Seeds are one curve; what a sweep moved aside is left out, and named."""
    for seed in (0, 1):
        make_run("a", folder=f"all/a-seed{seed}", seed=seed, config={"seed": seed})
    make_run("a", folder="all/a-seed1.old-1")
    result = CliRunner().invoke(app, [str(tmp_path / "all"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["report"] == str(tmp_path / "all" / "report.html")
    assert found["runs"] == ["a · seed 0", "a · seed 1"]
    assert found["left_out"] == [str(tmp_path / "all" / "a-seed1.old-1")]
    assert "<td>2</td>" in (tmp_path / "all" / "report.html").read_text()


def test_a_diverged_run_is_said_to_have(make_run, tmp_path):
    runs = [str(make_run("a")), str(make_run("b", status="diverged"))]
    result = CliRunner().invoke(app, [*runs, "--out", str(tmp_path / "page.html")])
    assert "diverged: b\n" in result.output


def test_the_demos_table_has_a_place_for_runs_that_diverged():
    facts = {"uploads": 10, "total_bytes": 110, **dict.fromkeys(BYTES, 50)}
    summaries = [{"name": REFERENCE, "metric_final": 0.5, **facts}, {"name": "wild", "metric_final": None, **facts}]
    for rows in (summaries, [{**summaries[0], "metric_final": None}, summaries[1]]):
        table = _demo_table(["FedBuff", "wild"], rows)
        assert list(table.columns[1].cells)[-1] == "[red]–[/]"


def test_the_demo_gives_every_core_a_run(tmp_path, monkeypatch):
    given = {}

    def make_none(runs, folder, watcher, *, workers):
        given.update(runs=len(runs), workers=workers)
        return {"a run": "it was not made"}

    monkeypatch.setattr("qafel.cli.report.make_runs", make_none)
    with pytest.raises(QafelError, match="not made"):
        demo(out=tmp_path)
    assert given == {"runs": 7, "workers": os.cpu_count()}


def test_the_demo_shows_a_table_a_picture_and_a_report(tmp_path):
    shown = qafel("demo", "--steps", 100, "--out", tmp_path / "demo").stdout
    assert len(list(tmp_path.glob("demo/*/summary.json"))) == 7
    for word in ("QAFeL, server top 1 %", "direct, server top 50 %", "total bytes", "report.html"):
        assert word in shown
    assert (tmp_path / "demo/comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "demo/report.html").read_text()[:500].lower()
