"""`kill -9` loses no trial: the search goes on to where it would have come anyway, and leaves no worker behind."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "qafel", "tune", "mushrooms-qafel-4bit", "--target", "0.05", "--quiet"]
COMMAND += ["--set", "stop.server_steps=700", "--set", "algorithm.server_lr=0.05"]
ENDLESS = 10**6


def finish(out, trials, *more):
    command = [*COMMAND, "--out", str(out), "--trials", str(trials), *more]
    subprocess.run(command, check=True, capture_output=True)
    rows = (out / "trials.csv").read_text().splitlines()
    return [row.rpartition(",")[0] for row in rows]


def begun(out):
    return len(list((out / "trials").iterdir())) if (out / "trials").exists() else 0


def kill_after(out, trials, wait_s, *more):
    """Kill a search without an end once so many trials have begun, and a moment later; return its workers."""
    command = [*COMMAND, "--out", str(out), "--trials", str(ENDLESS), *more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as search:
        while begun(out) < trials:
            assert search.poll() is None, "it ended before it was killed"
            time.sleep(0.005)
        time.sleep(wait_s)
        children = [int(pid) for pid in Path(f"/proc/{search.pid}/task/{search.pid}/children").read_text().split()]
        search.kill()
    return children


def test_a_search_killed_again_and_again_ends_with_the_same_trials(tmp_path):
    """The end is set after the last kill: the machine's speed does not matter."""
    moments, out = random.Random(0), tmp_path / "killed"
    for _ in range(3):
        kill_after(out, begun(out) + 2, moments.uniform(0, 0.1))
    end = begun(out) + 4
    killed = finish(out, end)
    assert len(killed) == end + 1
    assert killed == finish(tmp_path / "whole", end)


def test_killed_workers_are_gone_and_their_trials_are_run_again(tmp_path):
    out = tmp_path / "two"
    children = kill_after(out, 2, 0.0, "--workers", "2")
    assert len(children) >= 2
    while any(os.path.exists(f"/proc/{pid}") for pid in children):
        time.sleep(0.05)
    end = begun(out) + 4
    assert len(finish(out, end, "--workers", "2")) == end + 1
