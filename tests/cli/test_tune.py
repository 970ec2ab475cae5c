"""`qafel tune` as a user meets it: in a process of its own."""

import csv
import json

import pytest

from qafel.cli.choose import _TuneProgress
from tests.command import qafel, qafel_here

QUICK = ["--set", "stop.server_steps=100", "--set", "algorithm.server_lr=0.05", "--target", "0.2", "--trials", "5"]
AS_FOUND = ["--check", "0"]


def test_a_search_says_what_it_found_and_leaves_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = qafel("tune", "mushrooms-qafel-4bit", *QUICK, cwd=tmp_path).stdout
    out = tmp_path / "tune/mushrooms-qafel-4bit"
    for word in (
        "client_lr",
        "reached",
        "Uploads to f(x) − f* ≤ 0.2",
        "found in 5 trials",
        "on 5 unseen seeds",
        "best.toml",
        "index.html",
    ):
        assert word in shown
    rows = list(csv.DictReader((out / "trials.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert sum(bool(row["unseen"]) for row in rows) >= 1
    best = min((float(row["value"]), row["trial"]) for row in rows if row["state"] == "reached")
    qafel_here("tune", "mushrooms-qafel-4bit", *QUICK, *AS_FOUND, "--quiet")  # writes best.toml without the check
    summary = json.loads(qafel_here("run", out / "best.toml", "--quiet", "--json", "--out", tmp_path / "run")[0])
    assert summary["uploads_to_target"] == best[0]
    again = json.loads(qafel_here("tune", "mushrooms-qafel-4bit", *QUICK, *AS_FOUND, "--json", "--quiet")[0])
    assert again["best"]["trial"] == int(best[1])
    assert len(again["trials"]) == 5
    assert "holds another search" in qafel_here("tune", "mushrooms-qafel-4bit", *QUICK, "--seeds", 2, expect=2)[1]


def test_a_search_that_finds_nothing_says_so_and_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown, _ = qafel_here("tune", "mushrooms-qafel-4bit", *QUICK[:-4], "--target", 1e-9, "--trials", 2, expect=1)
    assert "none of 2 trials" in shown
    assert not list(tmp_path.rglob("best.toml"))
    assert list(tmp_path.rglob("index.html"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no-such-recipe"], "unknown recipe"),
        (["mushrooms-qafel-4bit"], "--target"),
        (["mushrooms-qafel-4bit", "--target", "0.1", "--search", "algorithm.client_lr"], "low:high"),
        (["mushrooms-qafel-4bit", "--target", "0.1", "--search", "algorithm.clientlr=1:2"], "did you mean 'client_lr'"),
        (["mushrooms-qafel-4bit", "--target", "0.1", "--objective", "bits"], "bits"),
        (["mushrooms-qafel-4bit", "--target", "0.1", "--trials", "0"], "--trials"),
        (["mushrooms-qafel-4bit", "--target", "100", "--trials", "1"], "target"),
        (["mushrooms-qafel-4bit", "--target", "0.1", "--out", "/proc/none"], "cannot write"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_two(arguments, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert complaint in qafel_here("tune", *arguments, expect=2)[1]


def test_a_search_of_the_buffer_size_in_server_steps_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = ["--search", "algorithm.buffer_size=5,10", "--seconds", "0"]
    shown, said = qafel_here("tune", "mushrooms-qafel-4bit", *QUICK, *search, expect=1)
    assert "warning: a server step is buffer_size uploads" in said
    assert "none of 0 trials" in shown


def test_the_bar_is_full_when_a_search_ends_before_all_its_trials():
    with _TuneProgress("recipe", 30, quiet=True) as progress:
        progress.bars.update(progress._bar, completed=12)
    assert progress.bars.tasks[0].percentage == 100
