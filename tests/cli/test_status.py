"""The state of runs on a broker, as an operator sees it in 80 columns."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from qafel.cli.deploy import _server_line
from qafel.cli.status import _screen
from qafel.deployment.broker import LocalBroker
from qafel.deployment.status import RunStatus
from qafel.runs.live import LiveState
from tests.command import qafel_here
from tests.deployment.processes import Command, wait_for

LARGE = LiveState(
    status="running",
    at=0.0,
    version=123_456,
    digest=1,
    server_steps=1_000_000,
    uploads=1_234_567,
    updates_per_s=1603.2,
    upload_bytes_total=18_400_000_000,
    broadcast_bytes_total=1_840_000_000,
    received_bytes_total=3_260_000_000,
    total_bytes=23_500_000_000,
    rejected={"norm": 3, "signature": 12},
    repeated=7,
    training={str(number): number % 13 for number in range(40)},
    training_count=40,
    buffer_fill=3,
    buffer_size=10,
    metric=1.23456e-4,
    metric_name="f(x) − f*",
)
RUNS = [
    RunStatus("mushrooms-qafel-4bit", LARGE, 12, 1.0),
    RunStatus("cifar10-fedasync-direct-c1000-qsgd", LARGE, 0, 86400 * 5.3),
    RunStatus("x", LiveState(status="not genuine", at=0.0, version=0), 0, 0.0),
]


def shown(runs: list[RunStatus]) -> list[str]:
    console = Console(width=80)
    with console.capture() as written:
        console.print(_screen(runs))
    return written.get().splitlines()


def test_runs_of_any_size_are_readable_in_80_columns() -> None:
    lines = shown(RUNS)
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines), "nothing is cut; long names go on in the next line"
    assert " ".join(lines[1].split()) == "mushrooms-qafel-4bit running 123 k/1 M 1.23 M 1,603 12 23.5 GB 1.23e-4"
    assert "silent 5 d 7 h" in lines[2]


def test_one_run_is_shown_in_full_and_repeats_apart_from_rejections() -> None:
    lines = shown(RUNS[:1])
    assert max(map(len, lines)) <= 80
    text = [" ".join(line.split()) for line in lines]
    assert "rejected 3 norm, 12 signature; 7 repeats, counted once" in text
    assert "up to 12 versions behind" in " ".join(text)
    assert "f(x) − f* 1.23e-4" in text


def test_a_checkpoint_that_could_not_be_written_is_shown() -> None:
    problem = "no checkpoint since 5,000 updates: cannot write c.qafel: No space left on device"
    failed = RunStatus("x", replace(LARGE, failed_checkpoints=2, problem=problem), 0, 1.0)
    text = " ".join(" ".join(shown([failed])).split())
    assert f"problem 2 checkpoints could not be written; {problem}" in text
    assert "running (!)" in " ".join(shown([failed, failed]))


def test_brackets_in_what_a_server_says_are_shown_as_they_are() -> None:
    odd = replace(
        LARGE, status="[/x]", problem="cannot write runs/[/y]/c.qafel", failed_checkpoints=1, metric_name="[/z]"
    )
    text = " ".join(" ".join(shown([RunStatus("x", odd, 0, 1.0)])).split())
    assert all(word in text for word in ("state [/x]", "runs/[/y]/c.qafel", "[/z] 1.23e-4"))
    assert "[/x]" in " ".join(shown([RunStatus("x", odd, 0, 1.0), *RUNS]))


def test_a_servers_own_line_fits_in_80_columns() -> None:
    line = _server_line(LARGE)
    assert len(line) <= 80, line
    assert line == "step 123 k/1 M · 1.23 M updates, 1,603/s · 15 rejected · f(x) − f* 1.23e-4"
    small = LiveState(status="stopped", at=0.0, version=12, uploads=120, total_bytes=4200, training_count=1, repeated=2)
    assert _server_line(small) == "stopped · step 12 · 120 updates, 0/s · 4.20 kB · 1 client · 2 repeats"


@pytest.fixture
def broker(tmp_path: Path):
    with LocalBroker(tmp_path / "broker") as running:
        yield running


@pytest.mark.slow
def test_a_watched_run_is_shown_again_and_again_until_ctrl_c(tmp_path: Path, broker: LocalBroker) -> None:
    serving = Command(
        "server", tmp_path / "server.out", "mushrooms-fedbuff", "--broker", broker.url, "--out", str(tmp_path / "run")
    )
    wait_for(lambda: (tmp_path / "server.err").read_text(encoding="utf-8"), "the server")
    assert "state running" in " ".join(qafel_here("status", "--broker", broker.url)[0].split())
    command = [sys.executable, "-m", "qafel", "status", "--watch", "--json", "--broker", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline())[0] for _ in range(2))
        assert serving.end() == 0
        wait_for(lambda: json.loads(watching.stdout.readline())[0]["word"] == "stopped", "the end")
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=120)
    assert (watching.returncode, complaint) == (0, "")
    assert first["word"] == second["word"] == "running"
    assert second["state"]["at"] > first["state"]["at"]
