"""Panels as interactive charts: plain Plotly figures, as the report's page draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qafel.drawing.chart import BYTES_AXIS, COUNT_AXIS, Axis, Chart, Panel, Series, Trace, labels_of, limits_of, plain
from qafel.drawing.styles import DASHES, PALETTE, Style, thin

_POINTS = 900


_REFERENCE = "#8C8C8C"


def styles_of(panels: Sequence[Panel]) -> tuple[Style, ...]:
    """One style per label, the same in every chart and in the figure for print."""
    references = {series.label for panel in panels for series in panel.series if series.kind in ("reference", "rings")}
    return tuple(
        Style(label, _REFERENCE, "dash")
        if label in references
        else Style(label, PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)])
        for index, label in enumerate(labels_of(panels))
    )


def charts_of(panels: Sequence[Panel]) -> tuple[Chart, ...]:
    styles = {style.label: (index, style) for index, style in enumerate(styles_of(panels))}
    return tuple(
        Chart(
            panel.key,
            panel.title,
            (panel.note,) if panel.note else (),
            tuple(trace for series in panel.series for trace in _traces(panel, series, *styles[series.label])),
            {"xaxis": _axis(panel.x, _x_limits(panel)), "yaxis": _axis(panel.y, limits_of(panel))},
            _toggles(panel),
            wide=len(panels) == 1,
            height=440 if len(panels) == 1 else 340,
        )
        for panel in panels
    )


def _traces(panel: Panel, series: Series, index: int, style: Style) -> list[Trace]:
    rows = thin(series.y, _POINTS)
    common: Trace = {"type": "scatter", "name": escape(style.label), "meta": {"run": index}}
    mode = {"curve": "lines", "points": "markers", "reference": "lines"}.get(series.kind, "lines+markers")
    if len(rows) == 1:
        mode = "markers"
    unit = "B" if panel.x.unit == "B" else ""
    trace = common | {
        "x": plain(series.x[rows]),
        "y": plain(series.y[rows]),
        "mode": mode,
        "line": {"color": style.colour, "dash": style.dash, "width": 1.8},
        "marker": {"color": style.colour, **_marker(series)},
        "hovertemplate": f"%{{x:.4~s}}{unit}, %{{y:.4~g}}<extra>%{{fullData.name}}</extra>",
    }
    if words := series.hover:
        trace |= {
            "text": [escape(text) for text in words],
            "hovertemplate": f"%{{text}}<br>%{{x:.4~s}}{unit}, %{{y:.4~g}}<extra></extra>",
        }
    if series.low is None or series.high is None:
        return [trace]
    if series.kind == "curve":
        return [_band(common, series, rows, style), trace]
    up, down = (series.high - series.y)[rows], (series.y - series.low)[rows]
    bars = {"type": "data", "symmetric": False, "array": plain(up), "arrayminus": plain(down), "color": style.colour}
    return [trace | {"error_y": bars | {"thickness": 1.2, "width": 3}}]


def _marker(series: Series) -> dict[str, Any]:
    return {"size": 15, "symbol": "circle-open"} if series.kind == "rings" else {"size": 8}


def _band(common: Trace, series: Series, rows: NDArray[np.int64], style: Style) -> Trace:
    """The range over seeds: along the top, and back along the bottom."""
    assert series.low is not None
    assert series.high is not None
    finite = rows[np.isfinite(series.low[rows]) & np.isfinite(series.high[rows])]
    low = np.maximum(series.low[finite], 1e-300) if (series.y[np.isfinite(series.y)] > 0).all() else series.low[finite]
    return common | {
        "x": plain(np.concatenate((series.x[finite], series.x[finite][::-1]))),
        "y": plain(np.concatenate((series.high[finite], low[::-1]))),
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": f"rgba({', '.join(str(int(style.colour[at : at + 2], 16)) for at in (1, 3, 5))}, 0.18)",
        "hoverinfo": "skip",
    }


def _axis(axis: Axis, limits: tuple[float, float] | None) -> dict[str, Any]:
    scale = "log" if axis.log else "linear"
    found: dict[str, Any] = {"title": {"text": escape(axis.label)}, "type": scale, "exponentformat": "power"}
    if axis.unit:
        found |= BYTES_AXIS if axis.unit == "B" else COUNT_AXIS
    if axis.ticks:
        found |= {"tickvals": list(axis.ticks), "ticktext": [f"{tick:g}" for tick in axis.ticks]}
    if limits is None:
        return found
    ranges = {"linear": list(limits)}
    if limits[0] > 0:
        ranges["log"] = [math.log10(limits[0]), math.log10(limits[1])]
    return found | {"range": ranges[scale], "ranges": ranges} if scale in ranges else found


def _x_limits(panel: Panel) -> tuple[float, float] | None:
    if panel.x.limits is not None:
        return panel.x.limits
    values = np.concatenate([series.x for series in panel.series]) if panel.series else np.zeros(0)
    values = values[np.isfinite(values) & ((values > 0) | (not panel.x.log))]
    if not values.size or values.min() == values.max():
        return None
    low, high = float(values.min()), float(values.max())
    if panel.x.log:
        room = (high / low) ** 0.04
        return low / room, high * room
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def _toggles(panel: Panel) -> tuple[str, ...]:
    """The axes on which a logarithm is possible, for the reader to switch."""
    x, y = _x_limits(panel), limits_of(panel)
    return tuple(name for name, limits in (("x", x), ("y", y)) if limits is not None and limits[0] > 0)
