"""Every method ends with the same bits on any executor, and killed and resumed at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qafel.algorithm import METHODS
from qafel.config import Config
from tests.running import run
from tests.simulator.test_run import kill

STEPS = 40
BITS = ("model_sha256", "hidden_state_sha256", "uploads", "received_bytes_total", "virtual_time", "rejected", "stopped")
LINE = {"network": {"upload_rate": 500.0, "download_rate": 2000.0, "spread": 0.5}, "dropout": 0.1}
OPEN = {"arrivals": "poisson", "rate": 10.0, "max_concurrency": 9, **LINE}


def config_of(name: str, timing: dict[str, Any] | None = None) -> Config:
    rounds = {"arrivals": "rounds", "over_selection": 0.3, "round_timeout": 3.0}
    return Config.from_dict(
        {
            "task": {"name": "quadratic", "clients": 12, "dimension": 60},
            "algorithm": {"method": name, "client_lr": 0.1},
            "timing": timing or {**LINE, **(rounds if METHODS[name].rounds else {})},
            "evaluation": {"every": 5},
            "stop": {"server_steps": STEPS},
        }
    )


def ends(summary: dict[str, Any]) -> dict[str, Any]:
    assert (summary["status"], summary["server_steps"]) == ("finished", STEPS)
    return {name: summary.get(name) for name in BITS}


@pytest.mark.parametrize("name", METHODS)
def test_killed_and_resumed_a_run_ends_as_an_uninterrupted_one(tmp_path: Path, name: str) -> None:
    config = config_of(name)
    whole = ends(run(config, tmp_path / "whole"))
    kill(config, tmp_path / "killed", 10)
    kill(config, tmp_path / "killed", 25, resume=True)
    assert ends(run(config, tmp_path / "killed", resume=True)) == whole


@pytest.mark.parametrize(
    "name",
    [name if name in ("qafel", "error-feedback") else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_other_processes_give_the_same_bits_also_after_a_kill(tmp_path: Path, name: str) -> None:
    config, elsewhere = config_of(name), {"executor": "processes", "workers": 2}
    whole = ends(run(config, tmp_path / "whole"))
    kill(config, tmp_path / "killed", 20, **elsewhere)
    assert ends(run(config, tmp_path / "killed", resume=True, **elsewhere)) == whole


@pytest.mark.parametrize("name", ["qafel", "error-feedback", "ca2fl"])
def test_so_it_is_where_clients_come_from_outside(tmp_path: Path, name: str) -> None:
    config = config_of(name, OPEN)
    whole = ends(run(config, tmp_path / "whole"))
    kill(config, tmp_path / "killed", 15)
    assert ends(run(config, tmp_path / "killed", resume=True)) == whole
