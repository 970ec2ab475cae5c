"""All commands under one name: help, version, and what loading them costs."""

import subprocess
import sys
from collections import Counter

from typer.main import get_command

from qafel.cli import app
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
        "import sys; from qafel.cli import app; app(['--help'], standalone_mode=False); "
        "loaded = {'torch', 'ray', 'nats', 'tensorboard', 'plotly'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, capture_output=True)


def test_a_command_loads_no_other():
    code = (
        "import sys; from qafel.cli import app; app(['client', '--help'], standalone_mode=False); "
        "loaded = {'qafel.cli.run', 'qafel.cli.deploy', 'qafel.simulator', 'pandas'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, capture_output=True)


def options(command, path):
    """All options of a command and of those under it, with the command's name."""
    for under in getattr(command, "commands", ()):
        yield from options(command.get_command(None, under), f"{path} {under}")
    yield from ((path, one) for one in command.params if one.opts[0].startswith("-"))


def test_every_command_shows_few_options_and_explains_each():
    found = [(path, one) for path, one in options(get_command(app), "qafel") if one.name != "help"]
    assert {path for path, _ in found} > {"qafel run", "qafel server", "qafel broker init"}
    assert [(path, one.name) for path, one in found if not one.help] == []
    visible = Counter(path for path, one in found if one.rich_help_panel != "Advanced")
    assert {path: count for path, count in visible.items() if count > 12} == {}
