"""The model is measured when it is due and no more; a failing evaluation is heard of; rates are of this process."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qafel.config import Config
from qafel.deployment.keys import Access
from qafel.deployment.server.evaluation import Course, Evaluator, Metrics, open_rows, write_results
from qafel.deployment.server.ledger import Traffic
from qafel.deployment.server.server import DeploymentServer, open_server
from qafel.deployment.settings import ServerSettings
from qafel.errors import OutputError
from tests.deployment.live import CONFIG

MODEL = np.zeros(3, np.float32)


class Offers:
    """Stands for an evaluator, and counts."""

    reached = None

    def __init__(self) -> None:
        self.at: list[int] = []

    def offer(self, version: int, model: object, totals: Traffic, hidden_state: object = None) -> None:
        self.at.append(totals.uploads)


def _config(evaluation: dict[str, Any]) -> Config:
    return Config.from_dict({**CONFIG, "evaluation": evaluation})


def _course(uploads: int) -> tuple[Course, Traffic, Offers]:
    totals, offers = Traffic(uploads=uploads), Offers()
    hidden_state = SimpleNamespace(vector=MODEL)
    ledger: Any = SimpleNamespace(
        traffic=totals, server=SimpleNamespace(version=0, model=MODEL, hidden_state=hidden_state)
    )
    evaluator: Any = offers
    return Course(_config({"every": 2, "unit": "uploads"}), ledger, evaluator), totals, offers


@pytest.mark.parametrize("before", [0, 4])
def test_messages_that_do_not_count_bring_no_evaluation(before: int) -> None:
    course, totals, offers = _course(before)
    for counted in (0, 0, 1, 0, 1, 0, 0, 1, 1):
        totals.uploads += counted
        course.after_upload(0, None)
    assert offers.at == [before + 2, before + 4]


def _evaluator(rows: Any, evaluate: Any = None, *, uploads_before: int = 0) -> tuple[Evaluator, Metrics]:
    task: Any = SimpleNamespace(evaluate=evaluate or (lambda model: {"metric": 0.75}), metric_goal="max")
    metrics = Metrics("live")
    return Evaluator(task, _config({"every": 2, "target": 0.7}).evaluation, rows, metrics, uploads_before), metrics


def test_prometheus_is_told_the_metric() -> None:
    async def check() -> None:
        evaluator, metrics = _evaluator(io.StringIO())
        await evaluator.evaluate(1, MODEL, {})
        assert metrics.registry.get_sample_value("qafel_metric", {"run": "live"}) == 0.75

    asyncio.run(check())


def test_a_row_tells_the_staleness_since_the_row_before_and_the_lag() -> None:
    async def check() -> None:
        rows = io.StringIO()
        evaluator, metrics = _evaluator(rows)
        model, hidden_state = np.array([3, 4], np.float32), np.array([3, 3], np.float32)
        for staleness in (0, 2, 2):
            metrics.staleness.observe(staleness)
        evaluator.offer(1, model, Traffic(uploads=2), hidden_state)
        metrics.staleness.observe(1)
        # The model before is skipped, its uploads are not.
        evaluator.offer(2, model, Traffic(uploads=4), hidden_state)
        task = asyncio.create_task(evaluator.run())
        while evaluator.last is None:
            await asyncio.sleep(0.01)
        task.cancel()
        metrics.staleness.observe(1)
        await evaluator.last_model(3, model, Traffic(uploads=5), model)
        written = [json.loads(line) for line in rows.getvalue().splitlines()]
        assert [row["staleness_histogram"] for row in written] == [[1, 1, 2], [0, 1]]
        assert [row["hidden_state_lag"] for row in written] == [pytest.approx(0.2), 0.0]
        assert [row["virtual_time_unit"] for row in written] == ["s", "s"]
        assert evaluator.staleness_histogram == [1, 2, 2]
        # No one counted what the clients received.
        assert not any("received_bytes_total" in row for row in written)

    asyncio.run(check())


def test_a_restarted_server_goes_on_from_the_rows_of_the_one_before(tmp_path: Path) -> None:
    async def first() -> None:
        with open_rows(tmp_path) as rows:
            evaluator, metrics = _evaluator(rows, lambda model: {"metric": 0.9})
            metrics.staleness.observe(3)
            await evaluator.last_model(5, MODEL, Traffic(uploads=50))
            await evaluator.last_model(9, MODEL, Traffic(uploads=90))  # which the journal will not have
            rows.write('{"version": 10, "upl')

    async def second() -> None:
        with open_rows(tmp_path) as rows:
            evaluator, metrics = _evaluator(rows, uploads_before=60)
            assert (evaluator.best, evaluator.reached and evaluator.reached["uploads"]) == (0.9, 50)
            metrics.staleness.observe(0)
            assert evaluator.staleness_histogram == [1, 0, 0, 1]
            await evaluator.last_model(6, MODEL, Traffic(uploads=61))
            assert evaluator.best == 0.9

    asyncio.run(first())
    asyncio.run(second())
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == [5, 9, 6]
    assert rows[0]["virtual_time"] < rows[2]["virtual_time"]
    assert rows[2]["staleness_histogram"] == [1]


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
        with open_server(config, tmp_path, Access(), ServerSettings(), config.task.make()) as server:
            server.evaluator, _ = _evaluator(rows, evaluate=evaluate)
            server.evaluator.offer(1, MODEL, Traffic())
            with pytest.raises(error):
                await asyncio.wait_for(server.run(), 20)

    monkeypatch.setattr(DeploymentServer, "_sessions", forever)
    asyncio.run(check())


def test_a_restarted_servers_rates_are_of_what_it_took_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    config = _config({"every": 2})
    task = config.task.make()
    with open_server(config, tmp_path, Access(), ServerSettings(), task) as found:
        ledger = found.ledger
        ledger.traffic.uploads = 1_000_000
        monkeypatch.setattr("time.monotonic", lambda: now)
        server = DeploymentServer(config, task, ledger, Access(), ServerSettings(), 10, found.rows, None)
        ledger.traffic.uploads += 50
        now += 5
        assert server._heartbeat._run_state("running").updates_per_s == 10.0
        summary = write_results(tmp_path, "stopped", config, task, ledger, server.evaluator)
    assert summary["uploads"] == 1_000_050
    assert summary["updates_per_s"] == 10.0
    assert summary["received_bytes_total"] is None
    assert (summary["virtual_time"], summary["virtual_time_unit"]) == (5.0, "s")
    assert summary["staleness_histogram"] == []
