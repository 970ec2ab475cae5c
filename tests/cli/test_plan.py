"""`qafel plan`: what it shows, what it prints for programs, the recipe that it writes, what it says of mistakes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from qafel.cli.plan import plan
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
FIGURES = ["--size", 29282, "--clients", 1000, "--uploads", 40_000]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def qafel_plan(*arguments):
    return CliRunner().invoke(APP, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def test_a_plan_is_shown_written_and_can_be_run(here):
    short = ["--pilot-uploads", 600, "--checks", 1, "--workers", 1, "--quiet"]
    found = qafel_plan("small.toml", "--byte-budget", "100kB", *short, "--out", "plan.toml")
    assert found.exit_code == 0, found.output
    for words in (
        "recommended",
        "FedBuff",
        "clients send",
        "received by starts",
        "• step sizes",
        "qafel run plan.toml",
    ):
        assert words in found.stdout
    assert load_recipe("plan.toml").stop.traffic_bytes == 100_000
    again = json.loads(qafel_plan("small.toml", "--byte-budget", "100kB", *short, "--json").stdout)
    assert load_recipe("plan.toml").algorithm.client_quantizer == again["recommended"]["client_quantizer"]
    assert again["recommended"]["upload_bytes"] + again["recommended"]["broadcast_bytes"] <= 101_000
    other = qafel_plan("small.toml", "--target", 0.5, *short, "--checks", 0)
    assert other.exit_code == 0, other.output
    assert not list((here / "plan").glob("*.old*")), "a pilot serves every target"


def test_without_a_recipe_figures_give_bytes_and_what_is_unknown_is_said_first(here):
    shown = qafel_plan(*FIGURES).stdout
    assert shown.startswith("note: nothing is known of what the client and the server's quantizer costs")
    costs = ["--client-cost", 0.02, "--server-cost", 0.01]
    found = json.loads(qafel_plan(*FIGURES, *costs, "--json").stdout)
    assert found["caveats"] == []
    assert found["recommended"]["upload_bytes"] < found["fedbuff"]["upload_bytes"] / 50
    assert found["recommended"]["slowdown"] > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing can be predicted without a measurement"),
        (("--size", 10, "--clients", 3), "give --size, --clients and --uploads"),
        ((*FIGURES, "--byte-budget", "1MB"), "--byte-budget needs a RECIPE"),
        (("--size", 10, "--clients", 3, "--uploads", "inf"), "--uploads takes a finite number"),
        ((*FIGURES, "--client-cost", "inf"), "--client-cost takes a finite number"),
        (("small.toml",), "a plan needs an aim"),
        (("small.toml", "--byte-budget", "5mb"), "could be bits or bytes"),
        (("small.toml", "--target", 0.1, "--size", 7), "--size is for a plan without a recipe"),
        (("small.toml", "--target", 0.1, "--client-quantizer", "sign"), "is biased"),
        (("small.toml", "--target", 0.1, "--set", "algorithm.method=fedbuff-direct"), "needs a recipe of qafel"),
        (("smal.toml", "--target", 0.1), "cannot be read"),
    ],
)
def test_mistakes_are_sentences(here, arguments, said):
    found = qafel_plan(*arguments)
    assert isinstance(found.exception, ConfigError)
    assert said in str(found.exception)
