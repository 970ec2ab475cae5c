"""A model of 100 MB through a broker that takes messages of 1 MB: up in parts, down as objects, the same bits at both
ends. `pytest -s` shows what it took.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from qafel.algorithm import HiddenState, LocalTraining, Message
from qafel.deployment.broker import LocalBroker
from qafel.files import read_checked
from qafel.params import Vector
from qafel.rng import Stream
from tests.deployment.processes import Command, wait_for

DIMENSION = int(os.environ.get("QAFEL_LARGE_DIMENSION", "25_000_000"))
RECIPE = f"""
name = "large"
[task]
name = "quadratic"
clients = 2
dimension = {DIMENSION}
[algorithm]
method = "fedbuff"
buffer_size = 1
server_lr = 1.0
[evaluation]
every = 1000
[stop]
server_steps = 2
"""


def shrink(start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
    """Training that takes no time and little memory."""
    return start.vector * np.float32(0.9)


def _peak_bytes(process: int) -> int:
    """The most memory that a process has had so far; zero if the system does not say."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_model_a_hundred_times_the_brokers_limit_arrives_bit_for_bit(
    tmp_path: Path, local_broker: LocalBroker
) -> None:
    recipe = tmp_path / "large.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    at = ["--broker", local_broker.url]
    server = Command(
        "server", tmp_path / "server.out", str(recipe), *at, "--out", str(tmp_path / "run"), "--json", "--quiet"
    )
    client = Command(
        "client", tmp_path / "client.out", "--run", "large", "--client-id", "1", *at, "--state",
        str(tmp_path / "state"), "--train", "tests.deployment.test_large:shrink", "--window", "1", "--json",
        "--patience", "200",
    )  # fmt: skip
    began, peaks = time.monotonic(), {"server": 0, "client": 0, "broker": 0}

    def both_ended() -> bool:
        for name, process in (
            ("server", server.process.pid),
            ("client", client.process.pid),
            ("broker", local_broker.pid),
        ):
            peaks[name] = max(peaks[name], _peak_bytes(process))
        return not (server.alive or client.alive)

    try:
        wait_for(both_ended, "two steps", 500)
    finally:
        for command in (server, client):
            if command.alive:
                command.kill()
    assert (server.process.returncode, client.process.returncode) == (0, 0), _errors(server, client)
    report = client.events()[-1]
    assert (report["version"], report["outcomes"]) == (2, {"accepted": 2})
    assert report["sent_bytes"] >= 2 * 4 * DIMENSION
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["upload_bytes_mean"] == summary["broadcast_bytes_mean"] == 64 + 4 * DIMENSION
    frame = read_checked(tmp_path / "state" / "hidden-state", "hidden-state", 3).partition(b"\n")[2]
    held = Message.from_bytes(frame)
    assert held.version == 2
    assert hashlib.sha256(held.payload).hexdigest() == summary["hidden_state_sha256"]
    seconds = time.monotonic() - began
    print(f"\n{4 * DIMENSION / 1e6:.0f} MB, two updates and two steps in {seconds:.0f} s; most memory, MB: ", end="")
    print({name: round(peak / 1e6) for name, peak in peaks.items()})


def _errors(*commands: Command) -> str:
    return "".join(command.output.with_suffix(".err").read_text(encoding="utf-8") for command in commands)
