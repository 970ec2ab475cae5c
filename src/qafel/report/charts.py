"""The report's charts in reading order, and those that are curves: the metric, and the hidden state's lag."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from qafel.drawing.chart import BYTES_AXIS, COUNT_AXIS, Chart, Trace, plain
from qafel.drawing.styles import Style, short_labels, thin
from qafel.report.groups import Group, MetricView, is_wide, log_start, metric_view
from qafel.runs.reading import Column, Run
from qafel.text import human_bytes

# The report's bar charts: staleness of the uploads, and traffic.


_BINS = 24


_GAP = 0.65  # between bars, for the names


_PARTS = {"upload_bytes_total": ("uploaded", 1.0), "broadcast_bytes_total": ("broadcast", 0.45)}


_RECEIVED = {"received_bytes_total": ("received", 1.0)}


def staleness_chart(runs: Sequence[Run], styles: Sequence[Style]) -> Chart:
    """The share of uploads at every staleness τ, side by side, in at most a few dozen bins."""
    histograms = [run.staleness_histogram for run in runs]
    longest = max((int(np.flatnonzero(counts)[-1]) + 1 for counts in histograms if counts.any()), default=0)
    width = max(1, math.ceil(longest / _BINS))
    starts = np.arange(0, longest, width)
    names = [f"τ = {start}" if width == 1 else f"τ = {start}–{start + width - 1}" for start in starts]
    middles = (starts + (width - 1) / 2).tolist()
    traces = []
    for counts, style in zip(histograms, styles, strict=True):
        if not counts.any():
            continue
        padded = np.zeros(len(starts) * width)
        padded[: min(len(counts), longest)] = counts[:longest]
        share = padded.reshape(-1, width).sum(axis=1) / counts.sum()
        bar = _bar(style) | {"x": middles, "y": plain(share), "customdata": names}
        traces.append(bar | {"hovertemplate": "%{customdata}: %{y:.1%}<extra>%{fullData.name}</extra>"})
    layout = {
        "barmode": "group",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "staleness τ, in server steps"}, "tickformat": "d"},
        "yaxis": {"title": {"text": "share of uploads"}, "tickformat": ".0%", "rangemode": "tozero"},
    }
    return Chart("staleness", "Staleness", (), tuple(traces), layout, wide=True)


def traffic_chart(runs: Sequence[Run], styles: Sequence[Style]) -> Chart:
    """Bytes uploaded and broadcast, stacked."""
    traces, layout = _stacked(runs, styles, _PARTS)
    layout["xaxis"]["title"] = {"text": "bytes uploaded and broadcast"}
    notes = ("Solid: uploaded. Light: broadcast, each counted once.",)
    return Chart("traffic", "Traffic", notes, traces, layout, height=_height(runs))


def received_chart(runs: Sequence[Run], styles: Sequence[Style]) -> Chart:
    """Bytes that all clients received together; a deployed server cannot count them."""
    traces, layout = _stacked(runs, styles, _RECEIVED)
    layout["xaxis"]["title"] = {"text": "bytes received by all"}
    shown = {trace["meta"]["run"] for trace in traces}
    uncounted = [style.label for style in styles if style.index not in shown]
    notes = (f"Not counted: {', '.join(uncounted)}.",) if uncounted else ()
    return Chart("received", "Received by all clients", notes, traces, layout, height=_height(runs))


def _stacked(
    runs: Sequence[Run], styles: Sequence[Style], parts: dict[str, tuple[str, float]]
) -> tuple[tuple[Trace, ...], dict[str, Any]]:
    """One bar per run, its total written beside it; parts that a run does not know are left out."""
    traces: list[Trace] = []
    longest = 0.0
    for index, (run, style) in enumerate(zip(runs, styles, strict=True)):
        known = {column: value for column in parts if math.isfinite(value := run.number(column))}
        total = sum(known.values())
        longest = max(longest, total)
        for column, value in known.items():
            word, opacity = parts[column]
            bar = _bar(style) | {"x": [value], "y": [index], "orientation": "h"}
            bar["marker"] = bar["marker"] | {"opacity": opacity}
            bar["hovertemplate"] = f"{human_bytes(value)} {word}<extra>%{{fullData.name}}</extra>"
            label = human_bytes(total) if column == list(known)[-1] else ""
            traces.append(bar | {"text": [label], "textposition": "outside", "cliponaxis": False})
    layout = {
        "barmode": "stack",
        "bargap": _GAP,
        # Room for the label beyond the longest bar.
        "xaxis": {"range": [0.0, 1.3 * longest or 1.0], "nticks": 4} | BYTES_AXIS,
        "yaxis": {"range": [len(runs) - 0.6, -0.75], "showgrid": False, "showticklabels": False},
        "annotations": [_name(row, label) for row, label in enumerate(short_labels([s.label for s in styles]))],
    }
    return tuple(traces), layout


def _name(row: int, label: str) -> dict[str, Any]:
    """A run's name above its bar: beside it, on a phone, it would leave no room for the bar."""
    place = {"x": 0, "xanchor": "left", "y": row - 0.5 * (1 - _GAP), "yanchor": "bottom", "showarrow": False}
    return {"text": escape(label), "font": {"size": 12}, "borderpad": 0, **place}


def _bar(style: Style) -> Trace:
    meta, marker = {"run": style.index}, {"color": style.colour}
    return {"type": "bar", "name": escape(style.label), "meta": meta, "marker": marker}


def _height(runs: Sequence[Run]) -> int:
    return max(340, 80 + 42 * len(runs))


_POINTS = 14_000  # of all runs together, in one chart


_TARGET_COLOUR = "#8C8C8C"  # in sight on white and on dark


def charts_of(group: Group, suffix: str = "") -> tuple[Chart, ...]:
    """All charts that the group's runs have data for; the suffix tells their keys from those of other groups."""
    view = metric_view(group)
    charts = (
        _metric_chart("uploads", "uploads", [run.column("uploads") for run in group.runs], group, view),
        _metric_chart("bytes", "bytes uploaded and broadcast", [run.traffic for run in group.runs], group, view),
        _time_chart(group, view),
        _lag_chart(group.runs, group.styles),
        staleness_chart(group.runs, group.styles),
        traffic_chart(group.runs, group.styles),
        received_chart(group.runs, group.styles),
    )
    return tuple(replace(chart, key=chart.key + suffix) for chart in charts if chart.traces)


def _metric_chart(by: str, title: str, across: Sequence[Column], group: Group, view: MetricView) -> Chart:
    is_bytes = by == "bytes"
    ticks = BYTES_AXIS if is_bytes else COUNT_AXIS
    layout = {
        "xaxis": _x_axis(title, across, log=is_bytes and _totals_differ(across)) | ticks,
        "yaxis": _metric_axis(view),
        "shapes": [_target_line(target) for target in view.targets],
    }
    hover = f"%{{x:.4~s}}{'B' if is_bytes else ''}, %{{y:.3~g}}<extra>%{{fullData.name}}</extra>"
    traces = _lines(across, [run.column("metric") for run in group.runs], group.styles, hover)
    if traces:
        traces += [_exit_marker(across, group.styles, view, index) for index in range(len(view.exits))]
    # A logarithmic axis is on offer only where all limits are positive.
    toggles = ("x", "y") if view.low > 0 else ("x",)
    return Chart(by.replace(" ", "-"), f"{view.name} by {by}", view.notes, tuple(traces), layout, toggles)


def _time_chart(group: Group, view: MetricView) -> Chart:
    """The metric by time: virtual in a simulated run, in seconds in a deployed one; if there are both, it says so."""
    deployed = [style.label for run, style in zip(group.runs, group.styles, strict=True) if _in_seconds(run)]
    title = "seconds" if len(deployed) == len(group.runs) else "virtual time"
    chart = _metric_chart("virtual time", title, [run.column("virtual_time") for run in group.runs], group, view)
    if title == "seconds":
        return replace(chart, title=f"{view.name} by time")
    if not deployed:
        return chart
    mixed = f"Deployed, so in seconds: {', '.join(deployed)}. The others are in virtual time, which has no unit."
    return replace(chart, notes=(*chart.notes, mixed))


def _lag_chart(runs: Sequence[Run], styles: Sequence[Style]) -> Chart:
    """How far the hidden state x̂ is from the server's model x, relative to x: what quantizing the broadcast costs."""
    across = [run.column("uploads") for run in runs]
    lags = [run.column("hidden_state_lag") for run in runs]
    positive = np.concatenate([lag[np.isfinite(lag) & (lag > 0)] for lag in lags])
    zero = [style.label for lag, style in zip(lags, styles, strict=True) if _is_zero(lag)]
    notes = (f"Zero throughout: {', '.join(zero)}.",) if zero else ()
    traces = _lines(across, lags, styles, "%{x:.4~s}, %{y:.3~g}<extra>%{fullData.name}</extra>")
    scale = "log" if is_wide(positive) else "linear"
    layout = {
        "xaxis": _x_axis("uploads", across) | COUNT_AXIS,
        "yaxis": {"title": {"text": "‖x − x̂‖ / ‖x‖"}, "type": scale, "exponentformat": "power"},
    }
    toggles = ("x", "y") if positive.size else ("x",)
    return Chart("lag", "Hidden-state lag", notes, tuple(traces), layout, toggles)


def _lines(across: Sequence[Column], curves: Sequence[Column], styles: Sequence[Style], hover: str) -> list[Trace]:
    limit = max(120, min(1200, _POINTS // max(1, len(styles))))
    traces = []
    for x, y, style in zip(across, curves, styles, strict=True):
        if not (np.isfinite(x) & np.isfinite(y)).any():
            continue
        rows = thin(y, limit)
        trace: Trace = {"type": "scatter", "name": escape(style.label), "meta": {"run": style.index}}
        trace |= {"x": plain(x[rows]), "y": plain(y[rows]), "hovertemplate": hover}
        trace |= {"mode": "lines" if len(rows) > 1 else "markers", "marker": {"color": style.colour, "size": 8}}
        traces.append(trace | {"line": {"color": style.colour, "dash": style.dash, "width": 1.8}})
    return traces


def _exit_marker(across: Sequence[Column], styles: Sequence[Style], view: MetricView, index: int) -> Trace:
    """A triangle on the edge where a run leaves the view."""
    leaving = view.exits[index]
    symbol = "triangle-up" if view.goal == "min" else "triangle-down"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(styles[leaving.run].label),
        "meta": {"run": styles[leaving.run].index},
        "x": plain(across[leaving.run][[leaving.row]]),
        "y": plain(np.array([view.edge])),
        "cliponaxis": False,
        "hovertemplate": f"{escape(view.notes[index])}<extra></extra>",
        "marker": {"symbol": symbol, "size": 11, "color": styles[leaving.run].colour},
    }


def _target_line(target: float) -> dict[str, Any]:
    """A dashed line across the whole chart, named at its left end, where curves have hardly begun."""
    label = {"text": f"target {target:g}", "textposition": "start", "font": {"color": _TARGET_COLOUR}}
    line = {"color": _TARGET_COLOUR, "dash": "dash", "width": 2}
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
    return {"type": "line", "layer": "between", **ends, "line": line, "label": label}


def _metric_axis(view: MetricView) -> dict[str, Any]:
    """The metric's axis, with its limits for both scales, between which the page switches."""
    ranges = {"linear": [min(0.0, view.low) if view.log else view.low, view.high]}
    if view.low > 0:
        ranges["log"] = [math.log10(view.low), math.log10(view.high)]
    scale = "log" if view.log else "linear"
    axis = {"title": {"text": escape(view.name)}, "type": scale, "range": ranges[scale], "exponentformat": "power"}
    return axis | {"ranges": ranges}


def _x_axis(title: str, columns: Sequence[Column], log: bool = False) -> dict[str, Any]:
    """An x axis, with its limits for both scales."""
    finite = [column[np.isfinite(column)] for column in columns]
    ends = [float(column.max()) for column in finite if column.size and column.max() > 0]
    scale = "log" if log else "linear"
    axis: dict[str, Any] = {"title": {"text": title}, "type": scale}
    if not ends:
        return axis
    ranges = {
        "linear": [0.0, 1.03 * max(ends)],
        "log": [math.log10(log_start(columns)), math.log10(1.2 * max(ends))],
    }
    return axis | {"range": ranges[scale], "ranges": ranges}


def _in_seconds(run: Run) -> bool:
    return run.summary.get("virtual_time_unit") == "s"


def _totals_differ(columns: Sequence[Column]) -> bool:
    """Whether one run sent over three times what another did, so that a linear axis would squeeze the frugal one."""
    ends = [float(column[-1]) for column in columns if column[-1] > 0]
    return bool(ends) and max(ends) > 3.0 * min(ends)


def _is_zero(column: Column) -> bool:
    finite = column[np.isfinite(column)]
    return bool(finite.size) and not finite.any()
