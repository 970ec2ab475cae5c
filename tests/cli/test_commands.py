"""All commands under one name: help, version, and what loading them costs."""

import subprocess
import sys

from tests.command import qafel, qafel_here


def test_every_command_has_help_with_an_example():
    commands = [
        "demo",
        "run",
        "sweep",
        "report",
        "watch",
        "recipes",
        "quantizers",
        "plan",
        "tune",
        "paper",
        "server",
        "client",
        "status",
    ]
    overview, _ = qafel_here("--help")
    for command in (*commands, "tasks", "bench", "broker"):
        assert command in overview
    benchmarks = [f"bench {name}" for name in ("quantizers", "simulator", "training", "deployment")]
    for command in (*commands, "tasks show", "broker init", *benchmarks):
        assert "Example: qafel" in qafel_here(*command.split(), "--help")[0]


def test_version():
    assert qafel("--version").stdout.startswith("qafel ")


def test_the_light_core_loads_without_torch_ray_or_a_broker():
    code = (
        "import sys; from qafel.cli import app; "
        "loaded = {'torch', 'ray', 'nats', 'tensorboard', 'plotly'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
