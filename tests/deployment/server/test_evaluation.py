"""The model is measured when it is due and no more; a failing evaluation is heard of; rates are of this process."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qafel.config import Config
from qafel.deployment.keys import Access
from qafel.deployment.server import ServerSettings
from qafel.deployment.server.evaluation import Evaluator
from qafel.deployment.server.server import DeploymentServer, open_server
from qafel.errors import OutputError, PartFailed
from qafel.runs.directory import RunDirectory
from qafel.runs.progress import Row, Traffic
from qafel.runs.reading import Run as RunOnDisk
from tests.deployment.live import CONFIG


def _config(evaluation: dict[str, Any]) -> Config:
    return Config.from_dict({**CONFIG, "evaluation": evaluation})


class Run:
    """An evaluator with what it looks at: a ledger that a test changes, a task, a folder."""

    def __init__(self, directory: RunDirectory, traffic: Traffic, evaluate: Any, evaluation: dict[str, Any]) -> None:
        config = _config(evaluation)
        directory.begin(config.to_toml(), keep_metrics_bytes=None)
        hidden_state = SimpleNamespace(vector=np.array([3, 3], np.float32))
        self.server: Any = SimpleNamespace(
            version=0,
            model=np.array([3, 4], np.float32),
            hidden_state=hidden_state,
            accumulator=SimpleNamespace(count=1),
        )
        self.traffic = traffic
        task: Any = SimpleNamespace(evaluate=evaluate, metric_goal="max", metric_name="accuracy")
        ledger: Any = SimpleNamespace(traffic=self.traffic, server=self.server)
        self.evaluator = Evaluator(config, task, ledger, directory)

    def upload(self, staleness: int = 0) -> None:
        self.traffic.count_upload(b"frame", staleness)
        self.evaluator.after_message(None)


@contextmanager
def _run(
    folder: Path,
    *,
    uploads: int = 0,
    staleness: Sequence[int] = (),
    evaluate: Any = lambda model: {"metric": 0.75},
    every: int = 2,
    target: float | None = 0.7,
) -> Iterator[Run]:
    with RunDirectory(folder) as directory:
        traffic = Traffic(uploads=uploads, staleness_counts=list(staleness))
        yield Run(directory, traffic, evaluate, {"every": every, "unit": "uploads", "target": target})


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("before", [0, 4])
def test_messages_that_do_not_count_bring_no_evaluation(tmp_path: Path, before: int) -> None:
    measured = []
    with _run(tmp_path, uploads=before) as run:
        for counted in (0, 0, 1, 0, 1, 0, 0, 1, 1):
            if counted:
                run.upload()
            else:
                run.evaluator.after_message(None)
            if run.evaluator._waiting is not None:
                measured.append(run.evaluator._waiting.traffic.uploads)
                run.evaluator._waiting = None
    assert measured == [before + 2, before + 4]


def test_a_row_tells_the_staleness_since_the_row_before_and_the_lag(tmp_path: Path) -> None:
    async def check() -> None:
        with _run(tmp_path) as run:
            for staleness in (0, 2, 2):
                run.upload(staleness)
            run.upload(1)  # another is due: the model before is skipped, its uploads are not
            task = asyncio.create_task(run.evaluator.run())
            while run.evaluator._measured == (-1, -1):  # the row is written
                await asyncio.sleep(0.01)
            task.cancel()
            run.upload(1)
            run.server.hidden_state.vector = run.server.model
            await run.evaluator.measure_last()
            await run.evaluator.measure_last()  # which is measured already

    asyncio.run(check())
    rows = _rows(tmp_path)
    assert [row["staleness_histogram"] for row in rows] == [[1, 1, 2], [0, 1]]
    assert [row["staleness_mean"] for row in rows] == [1.25, 1.0]
    assert [row["hidden_state_lag"] for row in rows] == [pytest.approx(0.2), 0.0]
    assert [row["received_by_all_bytes_total"] for row in rows] == [None, None]
    assert set(rows[0]) >= set(Row.__slots__) - {"figures"}  # as those of a simulated run


def test_an_unfinished_deployed_run_is_known_to_count_seconds(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        run.upload()
        asyncio.run(run.evaluator.measure_last())
    assert "virtual_time_unit" not in RunOnDisk.load(tmp_path).summary
    (tmp_path / "state").mkdir()
    assert RunOnDisk.load(tmp_path).summary["virtual_time_unit"] == "s"


def test_a_restarted_server_goes_on_from_the_rows_of_the_one_before(tmp_path: Path) -> None:
    async def first() -> None:
        with _run(tmp_path, uploads=49, evaluate=lambda model: {"metric": 0.9}, every=1000) as run:
            run.upload(3)
            run.server.version = 5
            await run.evaluator.measure_last()
            run.server.version, run.traffic.uploads = 9, 90  # which the journal will not have
            await run.evaluator.measure_last()
        with (tmp_path / "metrics.jsonl").open("a") as rows:
            rows.write('{"version": 10, "upl')

    async def second() -> None:
        with _run(tmp_path, uploads=60, staleness=(0, 0, 0, 1), every=1000) as run:
            progress = run.evaluator.progress
            assert (progress.best, progress.uploads_to_target) == (0.9, 50)
            run.upload(0)
            run.server.version = 6
            await run.evaluator.measure_last()
            assert progress.best == 0.9

    asyncio.run(first())
    asyncio.run(second())
    rows = _rows(tmp_path)
    assert [row["version"] for row in rows] == [5, 9, 6]
    assert rows[0]["virtual_time"] < rows[2]["virtual_time"]
    assert rows[2]["staleness_histogram"] == [1]


def test_a_run_whose_last_metric_is_not_finite_has_diverged(tmp_path: Path) -> None:
    with _run(tmp_path, evaluate=lambda model: {"metric": math.nan}) as run:
        run.upload()
        run.evaluator.end("finished")
        asyncio.run(run.evaluator.measure_last())
        assert run.evaluator.status == "diverged"
    assert _rows(tmp_path)[0]["metric"] is None


def _full_disk() -> None:
    raise OSError(28, "No space left on device")


def _fail(model: object) -> dict[str, float]:
    raise ZeroDivisionError("the user's evaluation")


@pytest.mark.parametrize("error", [OutputError, PartFailed])
def test_a_server_whose_evaluator_fails_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async def forever(self: DeploymentServer) -> None:
        await asyncio.Event().wait()

    async def check() -> None:
        config = _config({"every": 1, "unit": "uploads"})
        task = config.task.make()
        if error is PartFailed:
            monkeypatch.setattr(type(task), "evaluate", lambda self, model: _fail(model))
        with (
            RunDirectory(tmp_path) as directory,
            open_server(config, directory, Access(), ServerSettings(), task) as server,
        ):
            if error is OutputError:
                assert directory._metrics is not None
                full = SimpleNamespace(write=len, flush=_full_disk, close=directory._metrics.close)
                monkeypatch.setattr(directory, "_metrics", full)
            server.ledger.traffic.uploads += 1
            server.evaluator.after_message(None)
            with pytest.raises(error):
                await asyncio.wait_for(server.run(), 120)

    monkeypatch.setattr(DeploymentServer, "_sessions", forever)
    asyncio.run(check())


def test_a_restarted_servers_rates_are_of_what_it_took_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    config = _config({"every": 2})
    task = config.task.make()
    with RunDirectory(tmp_path) as directory, open_server(config, directory, Access(), ServerSettings(), task) as found:
        ledger = found.ledger
        ledger.traffic.uploads = 1_000_000
        monkeypatch.setattr("time.monotonic", lambda: now)
        monkeypatch.setattr("qafel.runs.progress.perf_counter", lambda: now)
        server = DeploymentServer(config, task, ledger, Access(), ServerSettings(), directory, None)
        server.evaluator.progress.began = now
        ledger.traffic.uploads += 50
        now += 5
        assert server._run_state("running").updates_per_s == 10.0
        server.stop()
        summary = server.evaluator.summary()
    assert summary["uploads"] == 1_000_050
    assert summary["updates_per_s"] == 10.0
    assert (summary["received_bytes_total"], summary["received_by_all_bytes_total"]) == (0, None)
    assert (summary["virtual_time"], summary["virtual_time_unit"]) == (5.0, "s")
    assert summary["staleness_histogram"] == []
    assert {"versions", "hardware", "qafel_version"} <= summary.keys()
