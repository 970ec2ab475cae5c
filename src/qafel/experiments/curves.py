"""What all figures of suboptimality share: curves, a table of where they end, and comparisons seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from qafel.experiments.measured import Measured, Missing, band, paired, server_steps, settled, traffic
from qafel.experiments.panels import Axis, Panel, Series
from qafel.experiments.tables import Heading, Table, bytes_heading, count_heading, metric_heading
from qafel.results.runs import Column, Run

HEADINGS: tuple[Heading, ...] = (
    Heading("method"),
    metric_heading("f(x) − f* in the end"),
    count_heading("uploads"),
    bytes_heading("sent up"),
    bytes_heading("broadcast"),
)


def curve_panels(measured: Measured) -> tuple[Panel, ...]:
    """f(x) − f* on a logarithmic axis, against server steps and against bytes."""
    note = _note(measured)
    return (
        _panel(measured, "steps", "by server steps", Axis("server steps", unit="count"), server_steps, note),
        _panel(measured, "bytes", "by bytes", Axis("bytes uploaded and broadcast", log=True, unit="B"), traffic, ""),
    )


def end_table(measured: Measured) -> Table:
    """Where each method ends, and what it sent."""
    rows = tuple(
        (
            method,
            measured.spread(settled, method),
            measured.spread(lambda run: run.number("uploads"), method).mean,
            measured.spread(lambda run: run.number("upload_bytes_total"), method).mean,
            measured.spread(lambda run: run.number("broadcast_bytes_total"), method).mean,
        )
        for method in measured.methods
    )
    return Table(HEADINGS, rows)


def ratios(measured: Measured, method: str, reference: str) -> list[float]:
    """Seed by seed, the settled suboptimality over that of the reference; infinite where only the method diverged.

    Anything is small next to a reference that diverged, so with one there is nothing to compare.
    """
    found = paired(settled, measured.planned(method), measured.planned(reference))
    if not all(math.isfinite(theirs) for _, theirs in found):
        raise Missing(f"{reference}, which {method} is measured against, diverged")
    # max() and min() may drop a NaN, and with it a seed.
    return [math.inf if math.isnan(ours) else ours / theirs for ours, theirs in found]


def curve(label: str, runs: Sequence[Run], across: Callable[[Run], Column], x: Axis) -> Series:
    """The mean of some runs, with its range over seeds; a logarithmic axis has no place for where they start."""
    found = band(runs, across)
    shown = slice(1, None) if x.log else slice(None)
    low, high = (found.low[shown], found.high[shown]) if len(runs) > 1 else (None, None)
    return Series(label, found.x[shown], found.mean[shown], low, high)


def _panel(measured: Measured, key: str, title: str, x: Axis, across: Callable[[Run], Column], note: str) -> Panel:
    series = [curve(method, measured.runs(method), across, x) for method in measured.methods]
    start = max(float(run.column("metric")[0]) for run in measured.runs())
    # A method that diverged before its second evaluation has an empty curve; perhaps all have.
    values = np.concatenate([one.y for one in series])
    values = values[np.isfinite(values)]
    limits = (float(values.min()) / 1.5, 1.5 * start) if values.size else None
    return Panel(key, title, x, Axis("f(x) − f*", log=True, limits=limits), tuple(series), note)


def _note(measured: Measured) -> str:
    gone = [
        method
        for method in measured.methods
        if any(run.summary.get("status") == "diverged" for run in measured.runs(method))
    ]
    return f"Stopped being finite: {', '.join(gone)}." if gone else ""
