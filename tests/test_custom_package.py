"""examples/custom_package, as its README has it: by Python, on the command line, killed and resumed, deployed.

`tests/cli/test_custom_parts.py` tests the same with parts that load and train faster.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qafel.deployment.broker import free_port
from qafel.runs.checkpoints import read_checkpoint
from qafel.runs.directory import CHECKPOINT
from tests.deployment.processes import wait_for

pytest.importorskip("torch", reason="the extra torch is not installed")

EXAMPLE = Path(__file__).parents[1] / "examples" / "custom_package"
SHORT = ["--set", "stop.server_steps=12"]


@pytest.fixture
def folder(tmp_path):
    """The example, copied: its commands write beside it."""
    for name in ("spirals.toml", "by_python.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    shutil.copytree(EXAMPLE / "spirals", tmp_path / "spirals", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def start(folder, *words):
    """A command in the example's folder, which Python does not search by itself."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80", "PYTHONFAULTHANDLER": "1"},
    )


def ended(process, timeout_s=120):
    """What a command printed. One that does not end is aborted, and its stacks are what it printed last."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    return out, err


def qafel(folder, *words):
    return ended(start(folder, "-P", "-m", "qafel", *words))


def ends(run):
    """The bits that a run ends with."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {key: summary[key] for key in ("status", "uploads", "model_sha256", "hidden_state_sha256")}


def metrics(run):
    return [json.loads(line)["metric"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_python_and_the_command_line_end_with_the_same_bits(folder):
    out, err = ended(start(folder, "by_python.py"))
    assert out.startswith("Result of spirals, qafel, seed 0\n")
    assert err == ""
    assert (folder / "runs/spirals.png").stat().st_size > 10_000
    qafel(folder, "run", "spirals.toml", "--quiet")
    assert ends(folder / "runs/custom") == ends(folder / "runs/spirals-seed0")
    rows = metrics(folder / "runs/custom")
    assert rows == metrics(folder / "runs/spirals-seed0")
    assert rows[-1] > 0.9
    assert ends(folder / "runs/custom") != ends(folder / "runs/fedbuff")
    qafel(folder, "report", "runs")
    page = (folder / "runs/report.html").read_text(encoding="utf-8")
    assert "spirals.codec:PowersOfTwo" in page
    assert "fedbuff" in page


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(folder):
    """The end is set after the kill: the machine's speed does not matter."""
    endless = ["--set", "stop.server_steps=1000000", "--checkpoint-every", 0]
    killed = start(folder, "-P", "-m", "qafel", "run", "spirals.toml", "--out", "killed", "--quiet", *endless)
    wait_for((folder / "killed" / CHECKPOINT).exists, "a checkpoint", 60)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    saved = read_checkpoint(folder / "killed" / CHECKPOINT).values["server"]["version"]
    end = ["--set", f"stop.server_steps={saved + 30}", "--quiet"]
    qafel(folder, "run", "spirals.toml", "--out", "killed", "--resume", *end)
    qafel(folder, "run", "spirals.toml", "--out", "whole", *end)
    assert ends(folder / "killed") == ends(folder / "whole")
    assert metrics(folder / "killed") == metrics(folder / "whole")


@pytest.mark.slow
def test_three_seeds_are_one_row_of_a_report_that_imports_nothing(folder):
    qafel(folder, "sweep", "spirals.toml", "--seeds", 3, "--workers", 2, *SHORT)
    runs = [folder / f"sweep/spirals-seed{seed}" for seed in range(3)]
    assert len({ends(run)["model_sha256"] for run in runs}) == 3
    table = (folder / "sweep/table.csv").read_text(encoding="utf-8").splitlines()
    assert len(table) == 4
    (folder / "spirals").rename(folder / "gone")  # a report imports nothing
    page = folder / "sweep/report.html"
    page.unlink()
    qafel(folder, "report", "sweep")
    assert "0, 1, 2" in page.read_text(encoding="utf-8"), "the seeds are one entry"


@pytest.mark.slow
def test_a_search_over_arguments_and_parts(folder):
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    search = [
        *("--search", "algorithm.staleness.steps=1:10"),
        *("--search", "algorithm.client_quantizer=spirals.codec:PowersOfTwo,qsgd:4"),
    ]
    out, _ = qafel(folder, "tune", "spirals.toml", *search, "--target", 0.7, "--trials", 3, "--check", 0, *SHORT)
    assert "staleness.steps" in out
    assert "outcome" in out, "the table fits in 80 columns"
    qafel(folder, "run", "tune/spirals/best.toml", "--out", "best", "--quiet", *SHORT)
    assert ends(folder / "best")["status"] == "finished"


@pytest.mark.slow
def test_deployed_with_two_clients_by_the_command_that_the_server_prints(folder):
    pytest.importorskip("nats", reason="the extra nats is not installed")
    limits = ["--port", free_port(), "--set", "stop.server_steps=10"]
    serving = start(folder, "-P", "-m", "qafel", "server", "spirals.toml", "--local-broker", *limits)
    clients = []
    try:
        banner = serving.stderr.readline()
        command = banner.partition("clients: qafel ")[2].split()
        parts = ["--part", "spirals.task:spirals", "--part", "spirals.codec:PowersOfTwo"]
        assert command[-4:] == parts, banner
        number = command.index("N")
        # Neither can do it all before the other has loaded torch: the broker leaves with the run.
        half = ["--max-updates", 25]
        clients = [
            start(folder, "-P", "-m", "qafel", *command[:number], client, *command[number + 1 :], *half)
            for client in (0, 1)
        ]
        for client in clients:
            assert "25 updates" in ended(client)[1]
        ended(serving)
    except AssertionError as error:  # what a client waits for is told by the server and its broker
        serving.send_signal(signal.SIGABRT)
        error.add_note(f"the server said:\n{serving.communicate()[1]}")
        log = folder / "runs/spirals-server/broker/nats-server.log"
        error.add_note(f"the broker said:\n{log.read_text(encoding='utf-8') if log.exists() else 'nothing'}")
        raise
    finally:
        for process in (serving, *clients):
            process.kill()
    run = folder / "runs/spirals-server"
    assert (ends(run)["status"], ends(run)["uploads"]) == ("finished", 50)
    assert json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["version"] == 10
