"""Synthetic run directories, written as `qafel run` writes them; and Ctrl-C is heard, whoever runs the tests."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from tests.browser import OpenBrowser

MakeRun = Callable[..., Path]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as what a shell starts in the background inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBrowser]:
    with OpenBrowser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(shared_browser: OpenBrowser) -> Iterator[OpenBrowser]:
    """A browser whose console has said nothing yet."""
    shared_browser.complaints.clear()
    yield shared_browser
    shared_browser.ask("Page.navigate", url="about:blank")


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        name: str = "qafel",
        /,
        *,
        metric: list[float] | np.ndarray | None = None,
        folder: str = "",
        upload_bytes: int = 76,
        finished: bool = True,
        config: dict[str, Any] | None = None,
        **summary: Any,
    ) -> Path:
        path = tmp_path / (folder or name)
        path.mkdir(parents=True)
        values = np.geomspace(0.68, 1e-4, 40) if metric is None else np.asarray(metric, dtype=float)
        rows = [_row(step, float(value), upload_bytes) for step, value in enumerate(values)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = {"seed": 1, "algorithm": {"name": name, "buffer_size": 10}, "task": {"name": "mushrooms"}}
        (path / "config.toml").write_text(tomli_w.dumps(settings | (config or {})))
        if finished:
            (path / "summary.json").write_text(json.dumps(_summary(name, rows) | summary))
        return path

    return make


def _row(step: int, metric: float, upload_bytes: int) -> dict[str, Any]:
    return {
        "version": step,
        "uploads": 10 * step,
        "virtual_time": 0.125 * step,
        "upload_bytes_total": 10 * step * upload_bytes,
        "broadcast_bytes_total": step * upload_bytes,
        "received_bytes_total": 40 * step * upload_bytes,
        "received_by_all_bytes_total": 100 * step * upload_bytes,
        "staleness_mean": 2.5,
        "staleness_max": 4,
        "staleness_histogram": [1, 2, 3, 2, 1],
        "hidden_state_lag": 0.1 / (1 + step),
        "buffer_fill": 0,
        "metric": metric,
        "wall_s": 0.01 * step,
    }


def _summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    last = {key: value for key, value in rows[-1].items() if key not in ("version", "metric", "buffer_fill")}
    return last | {
        "status": "finished",
        "name": name,
        "task": "mushrooms",
        "algorithm": name,
        "seed": 1,
        "server_steps": len(rows) - 1,
        "metric_name": "f(x) − f*",
        "metric_goal": "min",
        "metric_final": rows[-1]["metric"],
        "metric_best": min(row["metric"] for row in rows),
        "updates_per_s": 3205.1,
        "model_sha256": "ab" * 32,
        "versions": {"qafel": "0.1.0"},
    }
