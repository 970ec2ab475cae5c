"""`kill -9` at any moment loses nothing: resumed, the run ends with the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

KILLS = int(os.environ.get("QAFEL_KILLS", "4"))
"""More by hand: QAFEL_KILLS=10 pytest tests/simulator/test_kill.py"""

COMMAND = [sys.executable, "-m", "qafel", "run", "mushrooms-qafel-4bit", "--set", "stop.server_steps=3000", "--quiet"]


def finish(*arguments):
    subprocess.run([*COMMAND, *arguments], check=True, timeout=200, capture_output=True)


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    finish("--out", str(tmp_path / "whole"))
    whole = json.loads((tmp_path / "whole/summary.json").read_text())
    moments = random.Random(0)
    out = tmp_path / "killed"
    arguments = [*COMMAND, "--out", str(out), "--checkpoint-every", "0", "--executor", "inline"]
    for kill in range(KILLS):
        resume = ["--resume"] if (out / "checkpoint/checkpoint.safetensors").exists() else []
        with subprocess.Popen([*arguments, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 60
            if not kill:  # the first one lives until there is something to resume
                while not (out / "checkpoint/checkpoint.safetensors").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
            else:
                time.sleep(moments.uniform(0.5, 3.0))
            process.send_signal(signal.SIGKILL)
    finish("--out", str(out), "--resume")
    resumed = json.loads((out / "summary.json").read_text())
    for key in ("model_sha256", "hidden_state_sha256", "uploads", "upload_bytes_total", "virtual_time"):
        assert resumed[key] == whole[key]
    rows = [
        [json.loads(line)["metric"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "whole", out)
    ]
    assert rows[0] == rows[1]
