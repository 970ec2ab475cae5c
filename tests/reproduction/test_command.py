"""`python -m reproduction` as a user meets it."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import typer
from rich.console import Console

from reproduction import __main__ as command
from reproduction import outputs
from reproduction.entries import ENTRIES
from tests.command import run_module

ROOT = Path(__file__).parents[2]

QUICK = ("--quick", "--quiet", "--executor", "inline")


reproduce = partial(run_module, "reproduction", cwd=ROOT)


@pytest.fixture(autouse=True)
def without_pixels(monkeypatch):
    """Figures take the most time. Only commands in processes of their own draw them."""
    monkeypatch.setattr(outputs, "rendered", lambda *_: b"")


def in_this_process(name, out, *only, **options):
    """The command without the start of a process."""
    command.reproduce(name, quick=True, quiet=True, executor="inline", out=out, only=list(only), **options)


def test_the_list_names_every_entry(capsys):
    shown = reproduce().stdout
    assert all(name in shown for name in ENTRIES)
    command.reproduce("list", json_output=True)
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(ENTRIES)


def test_the_list_is_whole_on_80_columns(monkeypatch, capsys):
    monkeypatch.setattr(command, "console", Console(width=80))
    command.reproduce("list")
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(f"\n{name} " in shown for name in ENTRIES)
    assert max(map(len, shown.splitlines())) <= 80


def test_an_entry_is_run_once_and_its_files_are_written(tmp_path, capsys):
    shown = reproduce("qafel-vs-direct-topk", *QUICK, "--out", tmp_path).stdout
    assert "not comparable" in shown
    assert (tmp_path / "qafel-vs-direct-topk-quick/index.html").exists()
    assert not (tmp_path / "qafel-vs-direct-topk").exists(), "that is for the full results"
    assert "](figure.png)" in (tmp_path / "qafel-vs-direct-topk-quick/table.md").read_text()
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert runs == [f"mushrooms-{name}-every100-quick-seed0" for name in ("direct-topk", "fedbuff", "qafel-topk")]
    before = [(tmp_path / "runs" / name / "summary.json").stat().st_mtime_ns for name in runs]
    in_this_process("qafel-vs-direct-topk", tmp_path, json_output=True)
    assert json.loads(capsys.readouterr().out)["entries"][0]["seeds"] == [0]
    assert [(tmp_path / "runs" / name / "summary.json").stat().st_mtime_ns for name in runs] == before


def test_results_alone_give_the_same_on_another_machine(tmp_path):
    in_this_process("local-steps", tmp_path / "here", "*-p[48]-*", results=tmp_path / "results")
    assert len(list((tmp_path / "results").iterdir())) == 2
    in_this_process("local-steps", tmp_path / "there", "*-p[48]-*", results=tmp_path / "results", finished=True)
    tables = [
        (tmp_path / place / "local-steps-quick/table.csv").read_text().splitlines() for place in ("here", "there")
    ]
    assert [line for line in tables[0] if line[0] != "#"] == [line for line in tables[1] if line[0] != "#"]


def test_a_wide_table_comes_in_parts_split_columns():
    columns = [("method", "FedBuff"), *((f"figure {number}", "1.00 ± 0.05") for number in range(7))]
    parts = list(command._split_columns(columns, 40))
    assert [column for part in parts for column in part[1:]] == columns[1:]
    assert {part[0] for part in parts} == {columns[0]}
    assert [len(part) for part in parts] == [3, 3, 3, 2]
    assert list(command._split_columns(columns, 200)) == [columns]


def test_only_takes_runs_by_their_names(tmp_path):
    in_this_process("local-steps", tmp_path, "*-p4-*")
    made = ["mushrooms-fedbuff-p4-every100-quick-seed0"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == made
    in_this_process("local-steps", tmp_path, finished=True)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == made
    assert "--quick --finished" in (tmp_path / "local-steps-quick/table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense-entry"], "Unknown entry 'nonsense-entry'"),
        (["qafel-vs-direct-top"], "did you mean 'qafel-vs-direct-topk'?"),
        (["local-steps", "--only", "gone"], "matches no run of local-steps"),
        (["local-steps", "--finished"], "No run of local-steps is finished"),
        (["local-steps", "--family", "cifar10"], "local-steps does not take --family"),
        (["celeba", "--quick"], "celeba: CelebA"),
        (["all", "--only", "celeba*"], "celeba: CelebA"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "argv", ["reproduction", *arguments, "--quiet", "--out", str(tmp_path / "paper")])
    with pytest.raises(SystemExit) as ended:
        command.main()
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_a_failed_run_means_exit_code_1(tmp_path, capsys):
    """Its folder holds something else, which is not to be removed."""
    taken = tmp_path / "runs/mushrooms-fedbuff-p4-every100-quick-seed0"
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(typer.Exit) as ended:
        in_this_process("local-steps", tmp_path, "*-p[24]-*")
    assert ended.value.exit_code == 1
    assert "failed mushrooms-fedbuff-p4" in capsys.readouterr().err
    assert (tmp_path / "runs/mushrooms-fedbuff-p2-every100-quick-seed0/summary.json").exists()


def test_a_damaged_run_fails_only_its_own_entry(tmp_path, capsys):
    in_this_process("all", tmp_path, "*-p1-*", "*-fedprox-*")
    (tmp_path / "runs/mushrooms-fedbuff-p1-every100-quick-seed0/metrics.jsonl").write_text("{\n{}\n")
    capsys.readouterr()
    with pytest.raises(typer.Exit) as ended:
        in_this_process("all", tmp_path, "*-p1-*", "*-fedprox-*", json_output=True)
    assert ended.value.exit_code == 1
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert list(found["unwritten"]) == ["local-steps"]
    assert "metrics.jsonl is damaged in line 1" in found["unwritten"]["local-steps"]
    assert "not written local-steps" in shown.err
    assert [entry["entry"] for entry in found["entries"]] == ["related-work"]


def test_an_old_run_is_moved_aside_and_that_is_said(tmp_path, capsys):
    in_this_process("local-steps", tmp_path, "*-p1-*")
    run = "mushrooms-fedbuff-p1-every100-quick-seed0"
    config = tmp_path / "runs" / run / "config.toml"
    config.write_text(config.read_text().replace("client_lr = 2.0", "client_lr = 1.5"))
    capsys.readouterr()
    in_this_process("local-steps", tmp_path, "*-p1-*")
    assert f"{run}.old-1" in capsys.readouterr().err
    assert (tmp_path / f"runs/{run}.old-1/summary.json").exists()


def test_help_has_an_example(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reproduction", "--help"])
    with pytest.raises(SystemExit):
        command.main()
    assert "Example: python -m reproduction" in capsys.readouterr().out
