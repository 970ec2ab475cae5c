"""A new project runs, passes its test, and is deployed with its own client."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from qafel.deployment.broker import LocalBroker
from tests.command import qafel_here
from tests.deployment.processes import Command, wait_for


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=550, check=False)


RUN_AND_TEST = """
import sys
from qafel.cli import main
try:
    main(["run", "rings.toml", "--out", "run", "--quiet"])
except SystemExit as ended:
    assert not ended.code
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider"]))
"""
"""Two commands of the README in one process: PyTorch and Transformers take seconds to import."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "template", [pytest.param("torch", marks=pytest.mark.slow), pytest.param("lora", marks=pytest.mark.slow), "numpy"]
)
def test_a_new_project_runs_and_passes_its_test(tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"torch": ["torch"], "lora": ["transformers", "peft"], "numpy": []}[template]:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    qafel_here("new", "rings", "--template", template)
    assert sorted(path.name for path in (tmp_path / "rings").iterdir()) == [
        "README.md", "client.py", "rings.toml", "task.py", "test_task.py",
    ]  # fmt: skip
    found = run_python(tmp_path / "rings", "-c", RUN_AND_TEST)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 passed" in found.stdout
    summary = json.loads((tmp_path / "rings" / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "finished"
    if template == "lora":  # the mean loss; a model that knows nothing has log 128 = 4.9
        assert summary["metric_final"] < 1.0
    else:
        assert summary["metric_final"] > 0.8


def test_a_new_project_is_deployed_with_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    qafel_here("new", "points", "--template", "numpy")
    folder = tmp_path / "points"
    monkeypatch.chdir(folder)
    with LocalBroker(tmp_path / "broker") as broker:
        at = ["--broker", broker.url, "--set", "stop.server_steps=4"]
        server = Command("server", folder / "server.out", "points.toml", *at, "--out", str(folder / "run"), "--quiet")
        try:
            client = run_python(folder, "client.py", "3", broker.url)
            assert "run finished" in client.stdout, client.stderr
            wait_for(lambda: not server.alive, "the end of the server", 60)
        finally:
            if server.alive:
                server.kill()
        assert server.process.returncode == 0


def test_mistakes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for name, words in (("full", "exists already"), ("2nd", "starts with a letter")):
        assert words in qafel_here("new", name, expect=2)[1]
