"""The report's bar charts: staleness of the uploads, and traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from qafel.results.report_chart import BYTES_AXIS, Chart, Trace, plain
from qafel.results.report_numbers import human_bytes
from qafel.results.report_styles import Style
from qafel.results.runs import Run

_BINS = 24
_PARTS = {"upload_bytes_total": ("uploaded", 1.0), "broadcast_bytes_total": ("broadcast", 0.45)}
_RECEIVED = {"received_bytes_total": ("received", 1.0)}


def staleness_chart(runs: Sequence[Run], styles: Sequence[Style]) -> Chart:
    """The share of uploads at every staleness τ, side by side, in at most a few dozen bins."""
    histograms = [run.staleness_histogram for run in runs]
    longest = max((int(np.flatnonzero(counts)[-1]) + 1 for counts in histograms if counts.any()), default=0)
    width = max(1, math.ceil(longest / _BINS))
    starts = np.arange(0, longest, width)
    names = [f"τ = {start}" if width == 1 else f"τ = {start}–{start + width - 1}" for start in starts]
    traces = []
    for index, (counts, style) in enumerate(zip(histograms, styles, strict=True)):
        if not counts.any():
            continue
        padded = np.zeros(len(starts) * width)
        padded[: min(len(counts), longest)] = counts[:longest]
        share = padded.reshape(-1, width).sum(axis=1) / counts.sum()
        bar = _bar(index, style) | {"x": starts.tolist(), "y": plain(share), "customdata": names}
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
    """Bytes that all clients received together."""
    traces, layout = _stacked(runs, styles, _RECEIVED)
    layout["xaxis"]["title"] = {"text": "bytes received, per recipient"}
    return Chart("received", "Received by all clients", (), traces, layout, height=_height(runs))


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
            bar = _bar(index, style) | {"x": [value], "y": [index], "orientation": "h"}
            bar["marker"] = bar["marker"] | {"opacity": opacity}
            bar["hovertemplate"] = f"{human_bytes(value)} {word}<extra>%{{fullData.name}}</extra>"
            label = human_bytes(total) if column == list(known)[-1] else ""
            traces.append(bar | {"text": [label], "textposition": "outside", "cliponaxis": False})
    labels = [escape(_shortened(style.label)) for style in styles]
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        # Room for the label beyond the longest bar.
        "xaxis": {"range": [0.0, 1.3 * longest or 1.0], "nticks": 4} | BYTES_AXIS,
        "yaxis": {
            "range": [len(runs) - 0.5, -0.5],
            "showgrid": False,
            "tickvals": list(range(len(runs))),
            "ticktext": labels,
        },
    }
    return tuple(traces), layout


def _bar(index: int, style: Style) -> Trace:
    return {"type": "bar", "name": escape(style.label), "meta": {"run": index}, "marker": {"color": style.colour}}


def _height(runs: Sequence[Run]) -> int:
    return max(340, 80 + 26 * len(runs))


def _shortened(label: str) -> str:
    return label if len(label) <= 24 else f"{label[:14]}…{label[-9:]}"
