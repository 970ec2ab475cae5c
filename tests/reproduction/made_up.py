"""Runs that never ran: histories made up to pass a claim, or to fail it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qafel.drawing.printed import draw
from qafel.runs import Run
from qafel.search import RunSpec
from reproduction.comparison import EntryRuns
from reproduction.outputs import EntryResult
from reproduction.published import load_published

STEPS = 100

GONE = np.array([0.68, 0.5, np.nan])
"""A metric that stops being finite."""


def made_up(
    method: str,
    metric: Any,
    seed: int = 0,
    at: dict[str, float | str] | None = None,
    recipe: str = "mushrooms-fedbuff",
    upload_bytes: int = 500,
    broadcast_bytes: int = 500,
    per_step: int = 10,
    columns: dict[str, Any] | None = None,
    **summary: Any,
) -> tuple[RunSpec, Run]:
    """A run with this metric at each of a hundred server steps of ten uploads."""
    values = np.asarray(metric, dtype=np.float64)
    steps = np.arange(len(values), dtype=np.float64)
    history = {
        "metric": values,
        "version": steps,
        "uploads": per_step * steps,
        "virtual_time": steps,
        "upload_bytes_total": per_step * upload_bytes * steps,
        "broadcast_bytes_total": broadcast_bytes * steps,
    } | {key: np.asarray(column, dtype=np.float64) for key, column in (columns or {}).items()}
    facts = {
        "status": "finished",
        "seed": seed,
        "server_steps": len(values) - 1,
        "metric_goal": "min",
        "uploads": per_step * (len(values) - 1),
        "upload_bytes_total": history["upload_bytes_total"][-1],
        "broadcast_bytes_total": history["broadcast_bytes_total"][-1],
        "upload_bytes_mean": upload_bytes,
        "broadcast_bytes_mean": broadcast_bytes,
        "staleness_max": 3,
        "staleness_mean": 1.0,
        "dimension": 113,
        "clients": 100,
        "wall_s": 1.0,
    }
    planned = RunSpec(method, load_published(recipe, (), seed), at or {})
    return planned, Run(Path(planned.folder), method, {}, facts | summary, history)


def falling(to: float, start: float = 0.68) -> np.ndarray[Any, Any]:
    """A suboptimality that falls quickly and then stays."""
    steps = np.arange(STEPS + 1)
    return to + (start - to) * np.exp(-steps / 5)


def rising(to: float) -> np.ndarray[Any, Any]:
    """An accuracy that rises in a straight line."""
    return np.linspace(0.1, to, STEPS + 1)


def by_seed(**metrics: Any) -> list[tuple[RunSpec, Run]]:
    """Runs of each method, one per seed."""
    return [made_up(method, metric, seed) for method, curves in metrics.items() for seed, metric in enumerate(curves)]


def measured(*pairs: tuple[RunSpec, Run], quick: bool = False) -> EntryRuns:
    return EntryRuns(pairs, quick)


def verdicts(entry: Any, found: EntryRuns) -> list[str]:
    return [claim.verdict(found).result for claim in entry.claims]


def result_of(entry: Any, found: EntryRuns, command: str, folder: Path = Path()) -> EntryResult:
    """An entry's result, of which no file is written yet: figures take the most time."""
    return EntryResult.of(entry, found, command, folder)


def drawn(entry: Any, found: EntryRuns) -> dict[str, Any]:
    """The content of claims.json, once all else is made as well: the texts, and the figure's layout, not its pixels."""
    result = result_of(entry, found, f"python -m reproduction {entry.name}")
    assert all((result.csv(), result.markdown("", "", ""), result.page()))
    draw(result.panels, entry.title, "").draw_without_rendering()
    return result.claims()


def write_outputs(entry: Any, found: EntryRuns, command: str, folder: Path) -> EntryResult:
    """An entry's files, written to `folder`."""
    result = result_of(entry, found, command, folder)
    result.write()
    return result
