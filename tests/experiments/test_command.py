"""`qafel paper` as a user meets it."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_cli import qafel

QUICK = ("--quick", "--quiet", "--executor", "inline")


def test_the_list_names_every_entry():
    shown = qafel("paper").stdout
    listed = json.loads(qafel("paper", "list", "--json").stdout)
    assert len(listed) == 12
    assert all(entry["name"] in shown for entry in listed)


def test_an_entry_is_run_once_and_its_files_are_written(tmp_path):
    shown = qafel("paper", "qafel-vs-direct-topk", *QUICK, "--out", tmp_path).stdout
    assert "not comparable" in shown
    assert (tmp_path / "qafel-vs-direct-topk/index.html").exists()
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert runs == [f"mushrooms-{name}-every100-quick-seed0" for name in ("direct-topk", "fedbuff", "qafel-topk")]
    before = [(tmp_path / "runs" / name / "summary.json").stat().st_mtime_ns for name in runs]
    again = qafel("paper", "qafel-vs-direct-topk", *QUICK, "--out", tmp_path, "--json")
    assert json.loads(again.stdout)["entries"][0]["seeds"] == [0]
    assert [(tmp_path / "runs" / name / "summary.json").stat().st_mtime_ns for name in runs] == before


def test_only_takes_runs_by_their_names(tmp_path):
    qafel("paper", "local-steps", *QUICK, "--only", "*-p4-*", "--out", tmp_path)
    made = ["mushrooms-fedbuff-p4-every100-quick-seed0"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == made
    qafel("paper", "local-steps", *QUICK, "--finished", "--out", tmp_path)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == made
    assert "--quick --finished" in (tmp_path / "local-steps/table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense-entry"], "the paper has no entry 'nonsense-entry'"),
        (["qafel-vs-direct-top"], "did you mean 'qafel-vs-direct-topk'?"),
        (["local-steps", "--only", "gone"], "no run of local-steps has such a name"),
        (["local-steps", "--finished"], "no run of local-steps is finished"),
        (["celeba", "--quick"], "celeba: CelebA"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments, words, tmp_path, monkeypatch):
    monkeypatch.setenv("QAFEL_DATA", str(tmp_path / "nothing"))
    finished = qafel("paper", *arguments, "--quiet", "--out", tmp_path / "paper", expect=2)
    assert words in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert not finished.stdout


def test_a_failed_run_means_exit_code_1(tmp_path):
    """Its folder holds something else, which is not to be removed."""
    taken = tmp_path / "runs/mushrooms-fedbuff-p4-every100-quick-seed0"
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("mine")
    failed = qafel("paper", "local-steps", *QUICK, "--only", "*-p[24]-*", "--out", tmp_path, expect=1)
    assert "holds something else than a run" in failed.stderr
    assert (tmp_path / "runs/mushrooms-fedbuff-p2-every100-quick-seed0/summary.json").exists()


def test_help_has_an_example():
    assert "Example: qafel paper" in qafel("paper", "--help").stdout
