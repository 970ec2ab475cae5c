"""What it takes to reach a target accuracy: uploads and bytes at the first evaluation that meets it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from qafel.experiments.measured import Measured, Missing, Spread, band, diverged, settled
from qafel.experiments.panels import Axis, Panel, Series
from qafel.results.runs import Run

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
