"""Runs as panels: metric, hidden-state lag, staleness and bytes for the page; the metric alone for print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qafel import drawing
from qafel.drawing.chart import Axis, Bars, Panel, Series, Style, short_labels
from qafel.drawing.page import cards, legend
from qafel.errors import DataError
from qafel.report.groups import Across, Group, MetricView, all_styles, groups_of, log_start, metric_view, spans_decades
from qafel.runs.reading import Column, MeanCurve, Run
from qafel.text import human_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 24
_BYTES = "total bytes"
_PARTS = {"upload": 1.0, "broadcast": 0.6, "received": 0.3}
"""The parts of total bytes, and the opacity of their bars."""


class Charts(NamedTuple):
    """The charts of runs: groups, styles of the legend, panels of all groups, and their place on a page as HTML."""

    groups: tuple[Group, ...]
    styles: tuple[Style, ...]
    panels: tuple[Panel, ...]
    html: str


def charts_of(runs: Sequence[Run]) -> Charts:
    """Return the charts of all runs. Each group has its own panels; the groups share a legend."""
    groups = groups_of(runs)
    styles = all_styles(groups)
    panels = [report_panels(group, f"-{number}" if number else "") for number, group in enumerate(groups)]
    titles = [f"<h3>{escape(group.title)}</h3>" if len(groups) > 1 else "" for group in groups]
    plots = (title + cards(own) for title, own in zip(titles, panels, strict=True))
    html = "\n".join([legend(styles, "Show or hide runs"), *plots])
    return Charts(groups, styles, tuple(panel for own in panels for panel in own), html)


def report_panels(group: Group, suffix: str = "") -> tuple[Panel, ...]:
    """Return all panels that the group has data for. `suffix` makes their keys unique among groups."""
    view = metric_view(group)
    panels = (
        _metric_panel(group, view, "uploads", "uploads", "uploads"),
        _bytes_panel(group, view),
        _time_panel(group, view),
        _lag_panel(group),
        _staleness_panel(group),
        _parts_panel(group),
    )
    return tuple(replace(panel, key=panel.key + suffix) for panel in panels if panel.series or panel.bars)


def comparison_figure(runs: Sequence[Run]) -> Figure:
    """Draw the metric of all `runs` for print, by server steps and by total bytes.

    Each task and metric has its own row of panels.
    """
    if not runs:
        raise DataError("no run to draw: name at least one run directory")
    groups = groups_of(runs)
    panels: list[Panel] = []
    for group in groups:
        view = metric_view(group)
        steps = any("version" in run.history for own in group.members for run in own.runs)
        by = ("server steps", "version") if steps else ("uploads", "uploads")
        left = _metric_panel(group, view, "steps", *by)
        task = f"{group.task}, " if len(groups) > 1 else ""
        panels.append(replace(left, title=f"{task}by {left.x.label}"))
        panels.append(replace(_bytes_panel(group, view), title=f"{task}by {_BYTES}"))
    return drawing.printed.draw(panels, styles=all_styles(groups), columns=2)


def _metric_panel(group: Group, view: MetricView, by: str, label: str, across: Across, log: bool = False) -> Panel:
    """Return the metric against `across`, with a triangle on the edge where a curve leaves the view."""
    found = [own.curve(across, "metric") for own in group.members]
    curves = _curves(group, found)
    marks = [
        Series(
            group.styles[index].label,
            found[index].x[[row]],
            np.array([view.edge]),
            kind="marks",
            hover=(words,),
            symbol="triangle-up" if group.goal == "min" else "triangle-down",
        )
        for (index, row), words in zip(view.leaves.items(), view.notes, strict=False)
    ]
    series = (*curves, *marks) if curves else ()
    targets = tuple(target for target in group.targets if target > 0 or not view.axis.log)
    title, note = f"{group.metric} by {label}", " ".join(view.notes)
    x = _x_axis(label, [curve.x for curve in found], log)
    return Panel(by, title, x, view.axis, series, note, targets=targets)


def _bytes_panel(group: Group, view: MetricView) -> Panel:
    log = _totals_differ([run.bytes_so_far for own in group.members for run in own.runs])
    panel = _metric_panel(group, view, "bytes", _BYTES, attrgetter("bytes_so_far"), log)
    return replace(panel, x=replace(panel.x, unit="B"))


def _time_panel(group: Group, view: MetricView) -> Panel:
    """Return the metric by time: virtual time for simulated runs, seconds for deployed ones."""
    in_seconds = [own.runs[0].summary.get("virtual_time_unit") == "s" for own in group.members]
    label = "seconds" if all(in_seconds) else "virtual time"
    panel = _metric_panel(group, view, "virtual-time", label, "virtual_time")
    if all(in_seconds):
        return replace(panel, title=f"{group.metric} by time")
    if not any(in_seconds):
        return panel
    deployed = [style.label for style, seconds in zip(group.styles, in_seconds, strict=True) if seconds]
    mixed = f"Deployed runs are in seconds: {', '.join(deployed)}. The others are in virtual time, without a unit."
    return replace(panel, note=f"{panel.note} {mixed}".strip())


def _lag_panel(group: Group) -> Panel:
    """Return the distance of the hidden state x̂ from the server's model x, relative to x."""
    found = [own.curve("uploads", "hidden_state_lag") for own in group.members]
    lags = [curve.y for curve in found]
    positive = np.concatenate([lag[lag > 0] for lag in lags])
    pairs = zip(lags, group.styles, strict=True)
    zero = [style.label for lag, style in pairs if (lag == 0).any() and not (lag > 0).any()]
    note = f"Zero throughout: {', '.join(zero)}." if zero else ""
    y = Axis("‖x − x̂‖ / ‖x‖", spans_decades(positive[np.isfinite(positive)]))
    x = _x_axis("uploads", [curve.x for curve in found])
    return Panel("lag", "Hidden-state lag", x, y, _curves(group, found), note)


def _staleness_panel(group: Group) -> Panel:
    """Return the share of uploads at every staleness τ over all seeds, in at most `_BINS` bins."""
    histograms = [
        np.array([sum(row) for row in zip_longest(*(run.staleness_histogram for run in own.ended), fillvalue=0.0)])
        for own in group.members
    ]
    longest = max((int(np.flatnonzero(counts)[-1]) + 1 for counts in histograms if counts.any()), default=0)
    width = max(1, math.ceil(longest / _BINS))
    starts = np.arange(0, longest, width, dtype=np.int64)
    middles = starts + np.float64((width - 1) / 2)
    names = [f"τ = {start}" if width == 1 else f"τ = {start}–{start + width - 1}" for start in starts]
    bars = []
    for counts, style in zip(histograms, group.styles, strict=True):
        if not counts.any():
            continue
        padded = np.zeros(len(starts) * width)
        padded[: min(len(counts), longest)] = counts[:longest]
        shares = padded.reshape(-1, width).sum(axis=1) / counts.sum()
        hover = tuple(f"{name}: {share:.1%}" for name, share in zip(names, shares, strict=True))
        bars.append(Bars(style.label, middles, shares, hover))
    x, y = Axis("staleness τ, in server steps", unit="integer"), Axis("share of uploads", unit="%")
    return Panel("staleness", "Staleness", x, y, bars=tuple(bars), wide=True)


def _parts_panel(group: Group) -> Panel:
    """Return a row per label with the parts of its total bytes, and the total beside it. Unknown parts are left out."""
    bars: list[Bars] = []
    uncounted = []
    for row, (own, style) in enumerate(group.styled):
        means = {word: own.spread(f"{word}_bytes_total").mean for word in _PARTS}
        known = {word: mean for word, mean in means.items() if math.isfinite(mean)}
        if known and "received" not in known:
            uncounted.append(style.label)
        for number, (word, mean) in enumerate(known.items(), start=1):
            total = human_bytes(sum(known.values())) if number == len(known) else ""
            hover = (f"{human_bytes(mean)} {word}",)
            bars.append(Bars(style.label, np.array([float(row)]), np.array([mean]), hover, total, _PARTS[word]))
    note = "From solid to light: uploaded, broadcast (each counted once), received at starts."
    note += f" Received bytes are not counted: {', '.join(uncounted)}." if uncounted else ""
    y = Axis("", names=short_labels([style.label for style in group.styles]))
    return Panel("parts", "Total bytes", Axis(_BYTES, unit="B"), y, note=note, bars=tuple(bars), arrangement="rows")


def _curves(group: Group, found: Sequence[MeanCurve]) -> tuple[Series, ...]:
    """Return a curve for each label with finite values, with the range over its seeds."""
    return tuple(
        Series(style.label, *curve)
        for curve, style in zip(found, group.styles, strict=True)
        if (np.isfinite(curve.x) & np.isfinite(curve.y)).any()
    )


def _x_axis(label: str, columns: Sequence[Column], log: bool = False) -> Axis:
    """Return an axis for values that grow from zero, with limits for both scales."""
    finite = [column[np.isfinite(column)] for column in columns]
    end = max((float(column.max()) for column in finite if column.size), default=0.0)
    if end <= 0:
        return Axis(label, unit="count")
    return Axis(label, log, "count", limits=(0.0, 1.03 * end), log_limits=(log_start(columns), 1.2 * end))


def _totals_differ(columns: Sequence[Column]) -> bool:
    """Return whether one run sent over three times the bytes of another: then a linear axis squeezes the smaller."""
    ends = [float(column[-1]) for column in columns if column[-1] > 0]
    return bool(ends) and max(ends) > 3.0 * min(ends)
