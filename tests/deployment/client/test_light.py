"""A client on a small device: without Numba and without what draws, it holds the x̂ of everyone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

from qafel.bench.deployment import resident_bytes
from qafel.deployment.broker import LocalBroker
from qafel.params import Vector
from qafel.runs.checkpoints import read_checkpoint
from tests.deployment.processes import Command

RECIPE = """
name = "light"
task = {name = "quadratic", clients = 3, dimension = 2000}
evaluation = {every = 1000000}
stop = {server_steps = 12}
[algorithm]
method = "qafel"
client_quantizer = "%s"
server_quantizer = "%s"
buffer_size = 3
"""
HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite", "matplotlib", "plotly", "torch", "scipy"):
            raise ModuleNotFoundError(f"{name} is hidden")
sys.meta_path.insert(0, Hidden())
from qafel.cli import main
main()
"""


def client(number: int, url: str, tmp_path: Path, hidden: bool) -> subprocess.Popen[str]:
    start = [sys.executable, "-c", HIDDEN] if hidden else [sys.executable, "-m", "qafel"]
    arguments = ["client", "--run", "light", "--client-id", str(number), "--broker", url, "--json"]
    return subprocess.Popen(
        [*start, *arguments, "--state", str(tmp_path / f"client-{number}"), "--min-interval", "0.02"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _hidden_state(out: Path) -> Vector:
    """The server's x̂, of its last checkpoint."""
    return read_checkpoint(max((out / "state").glob("checkpoint-*.qafel"))).arrays["hidden_state"]


@pytest.mark.slow
@pytest.mark.parametrize(("up", "down"), [("qsgd:4", "qsgd:4"), ("trellis:1", "rotated:4"), ("top_k:0.1", "affine:8")])
def test_clients_without_numba_and_with_it_hold_the_same_hidden_state_as_the_server(
    up: str, down: str, tmp_path: Path, local_broker: LocalBroker
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE % (up, down))
    out = tmp_path / "run"
    server = Command("server", tmp_path / "server.out", str(tmp_path / "recipe.toml"), "--out", str(out),
                     "--broker", local_broker.url, "--json")  # fmt: skip
    clients = [client(number, local_broker.url, tmp_path, hidden=number < 2) for number in range(3)]
    try:
        said = [process.communicate(timeout=200) for process in clients]
        assert server.process.wait(60) == 0
    finally:
        for process in clients:
            process.kill()
            process.communicate()
        server.kill()
    reports = [json.loads(stdout.splitlines()[-1]) for stdout, _ in said]
    assert all(report["event"] == "report" and report["run_state"] == "finished" for report in reports), said
    assert {report["version"] for report in reports} == {12}
    digests = {report["digest"] for report in reports}
    assert digests == {xxhash.xxh3_64_intdigest(_hidden_state(out).data)}
    assert sum(report["outcomes"].get("accepted", 0) for report in reports[:2]) > 0


TRAIN = "import time\ndef train(start, local, stream):\n    time.sleep(0.1)\n    return start.vector * 0.99\n"


@pytest.mark.slow
def test_a_client_that_does_not_train_takes_less_than_eighty_megabytes(
    tmp_path: Path, local_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the model of `qafel bench deployment`, 29,282 parameters."""
    recipe = RECIPE.replace("dimension = 2000", "dimension = 29282").replace("server_steps = 12", "uploads = 1000")
    (tmp_path / "recipe.toml").write_text(recipe % ("qsgd:4", "qsgd:4"))
    (tmp_path / "own_training.py").write_text(TRAIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    server = Command("server", tmp_path / "server.out", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run"),
                     "--broker", local_broker.url)  # fmt: skip
    arguments = ["--run", "light", "--client-id", "0", "--broker", local_broker.url, "--train", "own_training:train"]
    monkeypatch.setenv("QAFEL_KERNELS", "numpy")
    light = subprocess.Popen(
        [sys.executable, "-m", "qafel", "client", *arguments, "--state", str(tmp_path / "client"), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert light.stdout is not None
        accepted = 0
        while accepted < 10:
            accepted += json.loads(light.stdout.readline())["event"] == "accepted"
        assert 0 < resident_bytes(light.pid) < 80e6
    finally:
        light.kill()
        light.communicate()
        server.kill()


def test_what_a_small_device_cannot_do_is_said_in_a_sentence() -> None:
    for arguments, sentence in (
        (["demo"], "a chart needs Matplotlib and Plotly: pip install 'qafel[draw]'"),
        (["run", "cifar10-fedbuff"], "cifar10 needs PyTorch and Numba: pip install 'qafel[torch]'"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", HIDDEN, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (2, f"qafel: {sentence}\n")
