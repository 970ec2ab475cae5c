"""`kill -9` loses no trial: the search goes on to where it would have come anyway, and leaves no worker behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "qafel", "tune", "mushrooms-qafel-4bit", "--target", "0.05", "--quiet"]
COMMAND += ["--set", "stop.server_steps=700", "--set", "algorithm.server_lr=0.05"]


def finish(out, *more):
    subprocess.run([*COMMAND, "--out", str(out), *more], check=True, timeout=200, capture_output=True)
    rows = (out / "trials.csv").read_text().splitlines()
    return [row.rpartition(",")[0] for row in rows]


def begun(out):
    return len(list((out / "trials").iterdir())) if (out / "trials").exists() else 0


def kill_when(out, ready, *more):
    with subprocess.Popen(
        [*COMMAND, "--out", str(out), *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as search:
        deadline = time.monotonic() + 60
        while not ready() and search.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        children = [int(pid) for pid in Path(f"/proc/{search.pid}/task/{search.pid}/children").read_text().split()]
        search.send_signal(signal.SIGKILL)
    return children


def test_a_search_killed_again_and_again_ends_with_the_same_trials(tmp_path):
    moments = random.Random(0)
    for stage in (1, 3, 6):
        kill_when(tmp_path / "killed", lambda stage=stage: begun(tmp_path / "killed") >= stage, "--trials", "10")
        time.sleep(moments.uniform(0, 0.1))
    killed = finish(tmp_path / "killed", "--trials", "10")
    assert len(killed) == 11
    assert killed == finish(tmp_path / "whole", "--trials", "10")


def test_killed_workers_are_gone_and_their_trials_are_run_again(tmp_path):
    out = tmp_path / "two"
    children = kill_when(out, lambda: begun(out) >= 2, "--trials", "6", "--workers", "2")
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
    assert len(finish(out, "--trials", "6", "--workers", "2")) == 7
