"""The model is measured when it is due and no more; a failing evaluation is heard of; rates are of this process."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qafel.config import Config
from qafel.deployment.access import Access
from qafel.deployment.course import Course
from qafel.deployment.observe import Evaluator, Metrics
from qafel.deployment.results import write_results
from qafel.deployment.server import open_server
from qafel.deployment.serving import DeploymentServer
from qafel.deployment.settings import ServerSettings
from qafel.deployment.truth import Totals
from qafel.errors import OutputError
from tests.deployment.live import CONFIG

MODEL = np.zeros(3, np.float32)


class Offers:
    """Stands for an evaluator, and counts."""

    reached = None

    def __init__(self) -> None:
        self.at: list[int] = []

    def offer(self, version: int, model: object, totals: Totals) -> None:
        self.at.append(totals.uploads)


def _config(evaluation: dict[str, Any]) -> Config:
    return Config.from_dict({**CONFIG, "evaluation": evaluation})


def _course(uploads: int) -> tuple[Course, Totals, Offers]:
    totals, offers = Totals(uploads=uploads), Offers()
    truth: Any = SimpleNamespace(totals=totals, server=SimpleNamespace(version=0, model=MODEL))
    evaluator: Any = offers
    return Course(_config({"every": 2, "unit": "uploads"}), truth, evaluator), totals, offers


@pytest.mark.parametrize("before", [0, 4])
def test_messages_that_do_not_count_bring_no_evaluation(before: int) -> None:
    course, totals, offers = _course(before)
    for counted in (0, 0, 1, 0, 1, 0, 0, 1, 1):
        totals.uploads += counted
        course.after_upload(0, None)
    assert offers.at == [before + 2, before + 4]


def _evaluator(rows: Any, evaluate: Any = None) -> tuple[Evaluator, Metrics]:
    task: Any = SimpleNamespace(evaluate=evaluate or (lambda model: {"metric": 0.75}), metric_goal="max")
    metrics = Metrics("live")
    return Evaluator(task, _config({"every": 2}).evaluation, rows, metrics, 0), metrics


def test_prometheus_is_told_the_metric() -> None:
    async def check() -> None:
        evaluator, metrics = _evaluator(io.StringIO())
        await evaluator.evaluate(1, MODEL, {})
        assert metrics.registry.get_sample_value("qafel_metric", {"run": "live"}) == 0.75

    asyncio.run(check())


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def _fail(model: object) -> dict[str, float]:
    raise ZeroDivisionError("the user's evaluation")


@pytest.mark.parametrize(
    ("rows", "evaluate", "error"), [(FullDisk(), None, OutputError), (io.StringIO(), _fail, ZeroDivisionError)]
)
def test_a_server_whose_evaluator_fails_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: io.StringIO, evaluate: Any, error: type[Exception]
) -> None:
    async def forever(self: DeploymentServer) -> None:
        await asyncio.Event().wait()

    async def check() -> None:
        config = _config({"every": 2})
        server = open_server(config, tmp_path, Access(), ServerSettings(), config.task.make())
        with server.truth, server.rows:
            server.evaluator, _ = _evaluator(rows, evaluate=evaluate)
            server.evaluator.offer(1, MODEL, Totals())
            with pytest.raises(error):
                await asyncio.wait_for(server.run(), 20)

    monkeypatch.setattr(DeploymentServer, "_sessions", forever)
    asyncio.run(check())


def test_a_restarted_servers_rates_are_of_what_it_took_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    config = _config({"every": 2})
    task = config.task.make()
    found = open_server(config, tmp_path, Access(), ServerSettings(), task)
    with found.truth as truth, found.rows as rows:
        truth.totals.uploads = 1_000_000
        monkeypatch.setattr("time.monotonic", lambda: now)
        server = DeploymentServer(config, task, truth, Access(), ServerSettings(), 10, rows, None)
        truth.totals.uploads += 50
        now += 5
        assert server._heartbeat._run_state("running").updates_per_s == 10.0
        summary = write_results(tmp_path, "stopped", config, task, truth, server.evaluator)
    assert summary["uploads"] == 1_000_050
    assert summary["updates_per_s"] == 10.0
