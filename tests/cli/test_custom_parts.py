"""Custom parts in the current folder, named by import path in a recipe and on the command line."""

import json
import os
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.command import qafel_here
from tests.custom_parts import write_folder


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return write_folder(tmp_path)


def installed(*arguments, cwd):
    """The command as it is when installed: Python does not look in the current folder by itself."""
    return subprocess.run(
        [sys.executable, "-m", "qafel", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        check=False,
    )


def sha(folder):
    return json.loads((folder / "summary.json").read_text())["model_sha256"]


def all_own(module):
    """Settings that name every part."""
    named = {
        "algorithm.client_quantizer": f"{module}:Half",
        "algorithm.server_quantizer": f"{module}:Half",
        "algorithm.staleness": f'{{name="{module}:Halving",every=2}}',
        "algorithm.accumulator": f"{module}:Median",
        "algorithm.server_rule": f'{{name="{module}:Step",lr=0.3}}',
    }
    return [word for path, value in named.items() for word in ("--set", f"{path}={value}")]


def test_the_installed_command_and_its_workers_find_the_current_folder(tmp_path, module):
    quick = ["--set", "stop.server_steps=5", "--quiet"]
    for executor, out in (("inline", "one"), ("processes", "two")):
        more = ["--executor", executor, "--workers", "1", "--out", out]
        done = installed("run", "own.toml", *all_own(module), *quick, *more, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert sha(tmp_path / "one") == sha(tmp_path / "two")


def test_a_run_keeps_paths_and_arguments_goes_on_and_is_reported_without_its_module(tmp_path, module):
    own = [*all_own(module), "--quiet"]
    qafel_here("run", "own.toml", *own, "--out", "whole", "--set", "stop.server_steps=20")
    qafel_here("run", "own.toml", *own, "--out", "half", "--set", "stop.server_steps=10")
    kept = tomllib.loads((tmp_path / "half/config.toml").read_text())
    assert kept["task"] == {"name": f"{module}:Rooms", "arguments": {"clients": 30}}
    assert kept["algorithm"]["staleness"] == {"name": f"{module}:Halving", "every": 2}
    qafel_here("run", "half/config.toml", "--set", "stop.server_steps=20", "--out", "half", "--resume", "--quiet")
    assert sha(tmp_path / "half") == sha(tmp_path / "whole")
    (tmp_path / f"{module}.py").write_text("open('trace', 'w').close()\nraise RuntimeError('imported')\n")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert installed("report", "half", "whole", "--out", "page.html", cwd=tmp_path).returncode == 0
    (tmp_path / f"{module}.py").unlink()
    assert installed("report", "half", "whole", "--out", "again.html", cwd=tmp_path).returncode == 0
    assert f"{module}:Half" in (tmp_path / "page.html").read_text()
    assert not (tmp_path / "trace").exists()


def test_a_sweep_of_custom_parts_and_their_arguments(tmp_path, module):
    named = f'{module}:only_fresh,{{name="{module}:Halving",every=2}}'
    varied = ["--set", f"algorithm.staleness={named}", "--set", "task.arguments.size=2,4"]
    out, _ = qafel_here(
        "sweep", "own.toml", "--seeds", 1, *varied, "--set", "stop.server_steps=3", "--workers", 1, "--json", "--quiet"
    )
    rows = json.loads(out)["runs"]
    assert [row["status"] for row in rows] == ["finished"] * 4
    laws = [f"{module}:only_fresh", f"{module}:Halving(every=2)"]
    assert [(row["algorithm.staleness"], row["task.arguments.size"]) for row in rows] == [
        (law, size) for law in laws for size in (2, 4)
    ]


def test_a_search_among_custom_parts_and_over_an_argument(tmp_path, module):
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    search = [
        *("--search", f"algorithm.client_quantizer={module}:Half,qsgd:4"),
        *("--search", "algorithm.staleness.every=1,2"),
    ]
    law = f'algorithm.staleness={{name="{module}:Halving",every=2}}'
    limits = ["--trials", 4, "--check", 0, "--set", "stop.server_steps=60", "--set", law, "--target", 5.0]
    out, _ = qafel_here("tune", "own.toml", *search, *limits, "--json", "--quiet")
    tried = [trial["settings"] for trial in json.loads(out)["trials"]]
    assert {trial["algorithm.client_quantizer"] for trial in tried} == {f"{module}:Half", "qsgd:4"}
    assert {trial["algorithm.staleness.every"] for trial in tried} == {1, 2}


def test_a_plan_for_a_custom_task_and_quantizer(module):
    quantizers = ["--client-quantizer", f"{module}:Half", "--server-quantizer", f"{module}:Half"]
    short = ["--byte-budget", "1MB", "--pilot-uploads", 400, "--seeds", 2, "--workers", 1, "--quiet", "--json"]
    out, _ = qafel_here("plan", "own.toml", "--set", "task.arguments.clients=40", *quantizers, *short)
    assert json.loads(out)["recommended"]["pair"]["client"] == f"{module}:Half"


def test_custom_quantizers_in_the_table_and_custom_recipes_shown(tmp_path, module):
    out, _ = qafel_here("quantizers", f"{module}:Half", "--size", 1000, "--json")
    assert json.loads(out)[0]["bytes"] == 2000
    out, _ = qafel_here("recipes", "show", "own.toml")
    assert f'name = "{module}:Rooms"' in out
    assert "not ready here" not in out
    (tmp_path / f"{module}.py").unlink()
    sys.modules.pop(module, None)
    out, _ = qafel_here("recipes", "show", "own.toml")
    assert f"not ready here: {module}:Rooms: module" in out


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("task.name=MODULE:Room", "'Rooms'"),
        ("task.name=nowhere:Rooms", "module 'nowhere'"),
        ("task.arguments.cliens=3", "'clients'"),
        ("algorithm.client_quantizer=MODULE:Rooms", "encode"),
        ("algorithm.staleness=MODULE:ROOMS", "__call__"),
        ("algorithm.staleness=halving", "'halving'"),
        ("algorithm.accumulator=MODULE:Step", "qafel.Accumulator"),
        ("algorithm.server_rule=MODULE:Median", "qafel.ServerRule"),
        ("timing.duration={name='constant',x=1}", "constant"),
        ("timing.arrivals=MODULE:Thirds", "__iter__"),
        ("timing.duration=MODULE:every", "draw"),
    ],
)
def test_a_mistake_is_one_sentence(module, setting, word):
    _, said = qafel_here("run", "own.toml", "--set", setting.replace("MODULE", module), "--quiet", expect=2)
    assert word in said
    assert said.count("\n") == 1
