"""What it takes to reach a target accuracy: uploads and bytes at the first evaluation that meets it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qafel.drawing.chart import Axis, Panel, Series
from qafel.paper.measured import Measured, Missing, Spread, band, diverged, paired, server_steps, settled, traffic
from qafel.paper.tables import Heading, Table, bytes_heading, count_heading, metric_heading
from qafel.runs.reading import Column, Run

FIGURES: Mapping[str, str] = {
    "uploads": "uploads",
    "upload_bytes_total": "bytes uploaded",
    "broadcast_bytes_total": "bytes broadcast",
}


APART = 0.5
"""A run that ends below half of a good run's accuracy has not learned what the other has."""


def to_target(column: str) -> Callable[[Run], float]:
    """A figure of a run's history at its target; infinite where the target was not met."""

    def figure(run: Run) -> float:
        target = run.number("target")
        met = np.flatnonzero(run.column("metric") >= target)
        return float(run.column(column)[met[0]]) if met.size else math.inf

    return figure


def reached(run: Run) -> float:
    return float(math.isfinite(to_target("uploads")(run)))


def learned(run: Run, good: float) -> bool:
    """Whether a run came near what a good one ends at; a slow run did, one that diverged or got stuck did not."""
    return not diverged(run) and settled(run) >= APART * good


def best_accuracy(run: Run) -> float:
    metric = run.column("metric")
    return float(np.nanmax(metric)) if np.isfinite(metric).any() else 0.0


def reduction(measured: Measured, column: str, method: str, reference: str, **at: float) -> float:
    """How many times less a method needs than the reference, of the means over the seeds that both were run with; NaN
    where one of them never met the target, or no seed is common to both.
    """
    figure = to_target(column)
    try:
        fair = measured.fair(measured.planned(method, **at), measured.planned(reference, **at))
    except Missing:
        return math.nan
    ours, theirs = (fair.spread(figure, name, **at).mean for name in (method, reference))
    return theirs / ours if math.isfinite(ours) and math.isfinite(theirs) else math.nan


def target_panels(measured: Measured, key: str, across: Axis) -> list[Panel]:
    """Uploads and bytes to the target against what the entry varies; none where no run met it."""
    panels = []
    for column, label in FIGURES.items():
        figure = to_target(column)
        series = []
        for method in measured.methods:
            found = [
                (place, spread)
                for place in measured.places(key)
                if measured.has(method, **{key: place})
                and math.isfinite((spread := measured.spread(figure, method, **{key: place})).mean)
            ]
            if found:
                series.append(_series(method, found, _beside(measured, method, across)))
        if series:
            panels.append(Panel(column.replace("_", "-"), label, across, _axis(column, label, series), tuple(series)))
    return panels


def accuracy_panel(measured: Measured, key: str, title: str, **at: float) -> Panel:
    """Accuracy by uploads: what the target is made of."""
    series = []
    for method in measured.methods:
        if not measured.has(method, **at):
            continue
        runs = measured.runs(method, **at)
        curve = band(runs, lambda run: run.column("uploads"))
        several = len(runs) > 1
        series.append(
            Series(method, curve.x, curve.mean, curve.low if several else None, curve.high if several else None)
        )
    runs = measured.runs(None, **at)
    if math.isfinite(target := runs[0].number("target")):
        ends = np.array([0.0, max(float(run.column("uploads")[-1]) for run in runs)])
        series.append(Series("target", ends, np.full(2, target), kind="reference"))
    return Panel(key, title, Axis("uploads", unit="count"), Axis("accuracy"), tuple(series))


def _beside(measured: Measured, method: str, across: Axis) -> float:
    """A small shift, so that the bars of equal methods do not hide each other."""
    low, high = across.limits or (0.0, 0.0)
    return 0.012 * (high - low) * (measured.methods.index(method) - (len(measured.methods) - 1) / 2)


def _series(method: str, found: list[tuple[float, Spread]], shift: float) -> Series:
    places = np.array([place + shift for place, _ in found])
    mean, low, high = (np.array([getattr(spread, name) for _, spread in found]) for name in ("mean", "low", "high"))
    return Series(method, places, mean, low, high, kind="line-and-points")


def _axis(column: str, label: str, series: list[Series]) -> Axis:
    """From zero, unless methods differ by more than a linear axis can show."""
    values = np.concatenate([one.y for one in series])
    most = max(float(one.high.max()) for one in series if one.high is not None)
    wide = bool(values.max() > 30 * values.min())
    return Axis(
        f"{label} to the target",
        wide,
        "count" if column == "uploads" else "B",
        limits=None if wide else (0.0, 1.1 * most),
    )


# What all figures of suboptimality share: curves, a table of where they end, and comparisons seed by seed.


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
