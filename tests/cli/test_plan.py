"""`qafel plan`: what it shows, what it prints for programs, and what it says of a mistake."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from qafel import Mushrooms, Quadratic, wire
from qafel.cli.plan import plan
from qafel.errors import ConfigError
from qafel.theory import sampled_clients

APP = typer.Typer()
APP.command()(plan)


GIVEN = ["--smoothness", "1", "--noise", "1", "--heterogeneity", "1", "--gap", "1"]


MODEL = ["--size", "29282", "--clients", "1000"]


def qafel_plan(*arguments):
    return CliRunner().invoke(APP, [str(argument) for argument in arguments], env={"COLUMNS": "160"})


def test_the_command_shows_a_table_the_reasons_and_fedbuff():
    shown = qafel_plan(*MODEL, *GIVEN, "--byte-budget", "10GB", "--duration", "half-normal:5").stdout
    for word in ("client quantizer", "server rate η_g", "FedBuff, same budget", "• clients send", "next best bounds"):
        assert word in shown


def test_the_command_prints_json_whose_algorithm_can_be_wired():
    found = json.loads(qafel_plan(*MODEL, *GIVEN, "--byte-budget", "1TB", "--buffer-size", 10, "--json").stdout)
    settings = found["recommended"]["algorithm"]
    algorithm = wire(settings.pop("preset"), **settings)
    assert algorithm.buffer_size == 10
    assert found["recommended"]["forecast"]["traffic_bytes"] <= 1e12
    assert found["recommended"]["bound"]["total"] < found["fedbuff"]["bound"]["total"]
    assert len(found["why"]) >= 5


def test_the_command_measures_a_tasks_constants_unless_they_are_given():
    asked = ["--task", "quadratic", "--byte-budget", "10MB", "--json"]
    measured = json.loads(qafel_plan(*asked).stdout)["constants"]
    assert measured["smoothness"] == pytest.approx(1.0, rel=0.03)
    assert measured["initial_gap"] == Quadratic().constants.initial_gap
    assert json.loads(qafel_plan(*asked, "--noise", 3).stdout)["constants"]["gradient_noise"] == 3


def test_a_bound_that_promises_nothing_is_called_so():
    shown = qafel_plan(*MODEL, *GIVEN, "--byte-budget", "100MB").stdout
    assert "promises nothing" in " ".join(shown.split())


def test_what_was_asked_for_is_shown_as_it_was_understood():
    asked = ["--time-budget", "2h", "--byte-budget", "1GB", "--upload-rate", "1Mbit", "--latency", "50ms"]
    command = [*MODEL, *GIVEN, *asked, "--duration", "log-normal:2,0.7", "--max-staleness", 300, "--every-copy"]
    shown = " ".join(qafel_plan(*command).stdout.split())
    assert "log-normal:2,0.7 s per update, all clients always train; " in shown
    assert "; up 125 kB/s, down without delay, latency 0.05 s" in shown
    assert "budget: 1 GB, every copy counted and 2 h 0 min; τ_max,1: 300 updates" in shown
    found = json.loads(qafel_plan(*command, "--json").stdout)
    assert found["inputs"] == {
        "duration": "log-normal:2,0.7",
        "upload_rate": 125e3,
        "download_rate": None,
        "latency_s": 0.05,
        "arrival_rate": None,
        "byte_budget": 1e9,
        "every_copy": True,
        "time_budget_s": 7200.0,
        "max_staleness_updates": 300,
        "batch_size": None,
    }
    cost = found["recommended"]["forecast"]
    assert cost["crossing_bytes"] == cost["upload_bytes"] + cost["received_by_all_bytes"] <= 1e9


def test_measured_constants_are_said_to_be_estimates():
    assert sampled_clients(Mushrooms(100)) == {"smoothness": 64, "gradient_noise": 64, "heterogeneity": 64}
    assert sampled_clients(Quadratic(100, 10_000))["smoothness"] == 8
    found = json.loads(qafel_plan("--task", "mushrooms", "--byte-budget", "10MB", "--noise", 1, "--json").stdout)
    assert found["measured"] == ["smoothness", "heterogeneity", "initial_gap"]
    assert found["measured_on_clients"] == {"smoothness": 64, "heterogeneity": 64}
    why = " ".join(found["why"])
    assert "L on 64, B on 64 of 100 clients were measured, at x⁰ only: these are estimates" in why
    assert "full batch" in why
    given = json.loads(qafel_plan(*MODEL, *GIVEN, "--byte-budget", "1GB", "--json").stdout)
    assert given["measured"] == []
    assert "measured" not in " ".join(given["why"])


def test_the_batch_size_that_constants_were_measured_with_is_in_the_recipe(monkeypatch):
    class Batched(Quadratic):
        """A quadratic whose gradients may be of a batch."""

        def train(self, client, start, local, stream):
            assert local.batch_size == 32
            return super().train(client, start, replace(local, batch_size=None), stream)

    monkeypatch.setattr("qafel.cli.plan._task", lambda *_: Batched(10, 20))
    asked = ["--task", "batched", "--byte-budget", "10MB", "--batch-size", 32, "--json"]
    found = json.loads(qafel_plan(*asked).stdout)
    settings = found["recommended"]["algorithm"]
    assert wire(settings.pop("preset"), **settings).local.batch_size == 32
    assert "full batch" not in " ".join(found["why"])


BUDGET = ["--byte-budget", "1GB"]


PLANNED = [*MODEL, *GIVEN, *BUDGET]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*MODEL, *GIVEN], "needs a budget"),
        ([*MODEL, "--byte-budget", "1GB"], "--smoothness"),
        (["--byte-budget", "1GB", *GIVEN], "--size and --clients"),
        ([*MODEL, *GIVEN, "--byte-budget", "1 apple"], "--byte-budget takes a number and a unit"),
        ([*MODEL, *GIVEN, "--time-budget", "soon"], "--time-budget takes a number and a unit"),
        ([*MODEL, *GIVEN, "--byte-budget", "1GB", "--duration", "slow"], "a duration is seconds or"),
        (["--task", "mushroms", *BUDGET], "did you mean 'mushrooms'"),
        (["--task", "mushrooms", *BUDGET, "--size", 500], "--size: the task mushrooms sets the size of its model"),
        ([*PLANNED, "--upload-rate", "1Mb"], "'Mb' could be bits or bytes: write MB or Mbit"),
        ([*PLANNED, "--upload-rate", "1kb"], "'kb' could be bits or bytes: write kB or kbit"),
        ([*PLANNED, "--upload-rate", "1e-300"], "upload rate is positive"),
        ([*PLANNED, "--duration", "log-normal:1,60"], "lower the spread"),
        ([*PLANNED, "--duration", "half-normal:1,7"], "have a scale and no spread"),
        ([*PLANNED, "--size", 3 * 10**9], "no quantizer takes a model of this size"),
        ([*PLANNED, "--noise", "1e200"], "gradient noise σ_ℓ"),
        ([*PLANNED, "--smoothness", "1e200"], "smoothness L"),
        ([*PLANNED, "--arrival-rate", 1e6], "clients training at a time"),
        ([*PLANNED, "--batch-size", 32], "--batch-size needs a --task"),
        ([*PLANNED, "--seed", 1], "--seed is used only to measure constants"),
        ([*MODEL, *GIVEN, "--time-budget", "1h", "--every-copy"], "--every-copy needs a --byte-budget"),
    ],
)
def test_a_users_mistake_is_an_error_that_says_what_to_do(arguments, words):
    error = qafel_plan(*arguments).exception
    assert isinstance(error, ConfigError)
    assert words in str(error)
