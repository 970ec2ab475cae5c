"""`kill -9` at any moment loses nothing: resumed, the run ends with the same bits."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from qafel.errors import DataError
from qafel.runs.checkpoints import read_checkpoint
from qafel.runs.directory import CHECKPOINT

KILLS = int(os.environ.get("QAFEL_KILLS", "4"))
"""More by hand: QAFEL_KILLS=10 pytest tests/simulator/test_kill.py"""

COMMAND = [sys.executable, "-m", "qafel", "run", "mushrooms-qafel-4bit", "--quiet", "--executor", "inline"]
ENDLESS = 10**9


def command(out, steps):
    return [*COMMAND, "--out", str(out), "--set", f"stop.server_steps={steps}"]


def version(out):
    """How far the last checkpoint is."""
    try:
        return read_checkpoint(out / CHECKPOINT).values["server"]["version"]
    except DataError:  # there is none yet
        return 0


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    """A kill comes after so many steps, and the end is set after the last one: the machine's speed does not matter."""
    moments = random.Random(0)
    out = tmp_path / "killed"
    for _ in range(KILLS):
        reached = version(out)
        goal = reached + moments.randrange(1, 400)
        endless = [*command(out, ENDLESS), "--checkpoint-every", "0", *(["--resume"] if reached else [])]
        with subprocess.Popen(endless, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while version(out) < goal:
                assert process.poll() is None, "it ended before it was killed"
                time.sleep(0.01)
            process.kill()
    end = version(out) + 100
    subprocess.run([*command(out, end), "--resume"], check=True, capture_output=True)
    subprocess.run(command(tmp_path / "whole", end), check=True, capture_output=True)
    resumed, whole = (json.loads((folder / "summary.json").read_text()) for folder in (out, tmp_path / "whole"))
    for key in ("server_steps", "model_sha256", "hidden_state_sha256", "uploads", "upload_bytes_total", "virtual_time"):
        assert resumed[key] == whole[key]
    rows = [
        [json.loads(line)["metric"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "whole", out)
    ]
    assert rows[0] == rows[1]
