"""What all figures of suboptimality share: curves by server steps and by bytes, and a table of where they end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qafel.experiments.measured import Measured, band, server_steps, settled, traffic
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


def _panel(measured: Measured, key: str, title: str, x: Axis, across: Callable[[Run], Column], note: str) -> Panel:
    series = []
    for method in measured.methods:
        curve = band(measured.runs(method), across)
        shown = slice(1, None) if x.log else slice(None)
        several = len(measured.runs(method)) > 1
        low, high = (curve.low[shown], curve.high[shown]) if several else (None, None)
        series.append(Series(method, curve.x[shown], curve.mean[shown], low, high))
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
