"""`qafel sweep` makes all runs and a report, goes on where it stopped, and says by its exit code what failed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from qafel.config import Config
from qafel.runs.directory import state_of
from tests.command import qafel_here

QUICK = ["--set", "stop.server_steps=20", "--set", "evaluation.every=5", "--quiet"]


def test_a_sweep_shows_a_row_of_mean_and_deviation_and_where_things_are(tmp_path):
    command = ["sweep", "mushrooms-fedbuff", "mushrooms-fedasync", "--seeds", 2, *QUICK, "--workers", 1]
    shown, _ = qafel_here(*command, "--out", tmp_path)
    assert "mushrooms-fedasync" in shown
    assert " ± " in shown
    for name in ("report.html", "report.png", "table.csv", "mushrooms-fedbuff-seed1/summary.json"):
        assert (tmp_path / name).exists()
    before = (tmp_path / "mushrooms-fedbuff-seed1/summary.json").stat().st_mtime_ns
    again, _ = qafel_here(*command, "--out", tmp_path, "--json")
    assert len(json.loads(again)["runs"]) == 4
    assert (tmp_path / "mushrooms-fedbuff-seed1/summary.json").stat().st_mtime_ns == before


def test_workers_change_nothing_but_the_time(tmp_path):
    hashes = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        command = ["sweep", "mushrooms-qafel-4bit", "--seeds", "3,5", *QUICK, "--workers", workers, "--out", out]
        hashes.append([row["model_sha256"] for row in json.loads(qafel_here(*command, "--json")[0])["runs"]])
    assert hashes[0] == hashes[1]


def test_a_failed_run_does_not_stop_the_others_and_the_exit_code_says_so(tmp_path):
    (tmp_path / "mushrooms-fedbuff-seed0").mkdir()
    (tmp_path / "mushrooms-fedbuff-seed0" / "thesis.tex").write_text("years of work")
    command = ["sweep", "mushrooms-fedbuff", "--seeds", 2, *QUICK, "--workers", 1, "--out", tmp_path]
    shown, complaint = qafel_here(*command, expect=1)
    assert "failed: mushrooms-fedbuff-seed0: " in complaint
    assert "1 failed" in shown
    assert (tmp_path / "mushrooms-fedbuff-seed1/summary.json").exists()


def test_a_mistake_in_one_combination_is_one_sentence_before_anything_runs(tmp_path):
    for setting, words in (("algorithm.client_lr=1,x", "found 'x'"), ("task.clients=10,9000", "8124 clients")):
        shown, complaint = qafel_here(
            "sweep", "mushrooms-fedbuff", "--set", setting, *QUICK, "--out", tmp_path / "new", expect=2
        )
        assert words in complaint
        assert complaint.count("\n") == 1
        assert not shown
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_sweep_saves_its_runs(tmp_path, workers):
    """Whatever is going on is saved, in this process or in others."""
    settings = ["--set", "stop.server_steps=60,1000000", "--set", "evaluation.every=20", "--workers", str(workers)]
    arguments = ["sweep", "mushrooms-fedbuff", "--seeds", "1", *settings, "--out", "my runs"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qafel", *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    runs = [tmp_path / f"my runs/mushrooms-fedbuff-server_steps={steps}-seed0" for steps in (60, 1_000_000)]
    while not ((runs[0] / "summary.json").exists() and rows_in(runs[1])):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "1 of 2 runs" in said
    assert "Traceback" not in said
    configs = [Config.from_toml((run / "config.toml").read_text(), "") for run in runs]
    assert [state_of(*pair) for pair in zip(runs, configs, strict=True)] == ["finished", "interrupted"]


def rows_in(run):
    """Whether a run has written rows, as it does in blocks."""
    return (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0
