"""The deployment's benchmark, on few updates: its figures are present and consistent."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from qafel.bench.deployment import DeploymentCase, _processes, measure
from qafel.cli.bench import _deployment_table
from qafel.errors import DataError


def _shown(found):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(_deployment_table(found))
    return capture.get().replace("│", " ")


@pytest.mark.slow
@pytest.mark.parametrize("secured", [False, True])
def test_uploads_made_beforehand_are_accepted_and_what_each_part_costs_is_stated(secured):
    found = measure(DeploymentCase(1500, clients=3, dimension=2000, made=True, secured=secured))
    assert found["updates"] == 1500
    assert set(found["rejected"]) <= {"share"}, "three clients on a busy machine may run ahead of their shares"
    for figure in ("updates_per_s", "server_cpu_s_per_update", "broker_cpu_s_per_update", "client_cpu_s_per_update"):
        assert found[figure] > 0, figure
    assert found["share_of_broker"] == found["updates_per_s"] / found["broker_alone"]["messages_per_s"]
    shown = _shown({"made": found})
    for row in ("update: server", "broker", "clients", "relative to that"):
        assert re.search(rf"{row} +\d+\.\d+", shown), row
    assert 20e6 < found["light_client"]["resident_bytes"] < 80e6
    assert found["light_client"]["cold_start_s"] > 0


@pytest.mark.slow
def test_client_processes_upload_and_latency_is_stated():
    found = measure(DeploymentCase(500, clients=2, dimension=2000))
    assert found["updates"] == 500
    assert found["latency_median_s"] > 0
    assert found["broker_alone"] == {}
    assert "update: server" in _shown({"default": found})


def _never_answer(case, folder):
    raise TimeoutError


@pytest.mark.slow
def test_a_failure_without_a_message_is_named_by_its_type():
    with (
        pytest.raises(DataError, match="load: TimeoutError"),
        _processes([("load", _never_answer)], DeploymentCase(), Path()) as results,
    ):
        results()
