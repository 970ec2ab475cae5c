"""`qafel plan`: what it shows, what it prints for programs, the recipe that it writes, what it says of mistakes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from qafel.cli.choose import plan
from qafel.config import load_recipe
from qafel.errors import ConfigError

APP = typer.Typer()
APP.command()(plan)

RECIPE = """
name = "small"
[task]
name = "quadratic"
clients = 20
dimension = 40
[algorithm]
buffer_size = 5
local_steps = 2
client_lr = 0.05
[evaluation]
unit = "uploads"
every = 20
[stop]
uploads = 4000
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def qafel_plan(*arguments):
    return CliRunner().invoke(APP, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def test_a_plan_is_shown_written_and_can_be_run(here):
    short = ["--pilot-uploads", 640, "--seeds", 2, "--workers", 1, "--quiet", "--client-quantizer", "rotated:2"]
    found = qafel_plan("small.toml", "--byte-budget", "100kB", *short, "--out", "plan.toml")
    assert found.exit_code == 0, found.output
    for words in (
        "recommended",
        "FedBuff",
        "clients send",
        "total bytes",
        "• step sizes",
        "qafel run plan.toml",
    ):
        assert words in found.stdout
    assert load_recipe("plan.toml").stop.total_bytes == 100_000
    again = json.loads(qafel_plan("small.toml", "--byte-budget", "100kB", *short, "--json").stdout)
    assert load_recipe("plan.toml").algorithm.client_quantizer == again["recommended"]["pair"]["client"]
    assert (
        sum(again["recommended"]["spent"][f"{name}_bytes"] for name in ("upload", "broadcast", "received")) <= 101_000
    )
    assert 'catch_up = "auto"' in (here / "plan.toml").read_text()
    other = qafel_plan("small.toml", "--target", 0.5, *short)
    assert other.exit_code == 0, other.output
    each = json.loads(qafel_plan("small.toml", "--client-budget", "5kB", *short, "--json").stdout)
    assert (each["byte_budget"], each["counted"]) == (20 * 5000, "received")
    spent = each["recommended"]["spent"]
    assert spent["upload_bytes"] + spent["received_bytes"] <= 101_000
    assert not list((here / "plan").glob("*.old*")), "a pilot serves every target"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("small.toml",), "byte budget"),
        (("small.toml", "--byte-budget", "5mb"), "could be bits or bytes"),
        (("small.toml", "--byte-budget", "5MB", "--client-budget", "5kB"), "Give one"),
        (("small.toml", "--target", 0.1, "--client-quantizer", "sign"), "is biased"),
        (("small.toml", "--target", 0.1, "--set", "algorithm.method=fedbuff-direct"), "qafel or fedbuff"),
        (("smal.toml", "--target", 0.1), "cannot be read"),
    ],
)
def test_mistakes_are_sentences(here, arguments, said):
    found = qafel_plan(*arguments)
    assert isinstance(found.exception, ConfigError)
    assert said in str(found.exception)
