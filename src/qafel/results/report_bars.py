"""The report's bar charts: staleness of the uploads, and traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from qafel.results.report_chart import BYTES_AXIS, Chart, Trace, plain
from qafel.results.report_numbers import human_bytes
from qafel.results.report_styles import Style, short_labels
from qafel.results.runs import Run

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
