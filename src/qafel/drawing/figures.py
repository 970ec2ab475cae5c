"""Panels as a figure for print: PNG and PDF. Plain objects, no pyplot, no display; equal runs give equal pictures."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
    ScalarFormatter,
)

from qafel.drawing.chart import Axis, Panel, Series, labels_of, limits_of
from qafel.drawing.styles import PALETTE, thin
from qafel.runs.reading import Column

_INK, _MUTED, _GRID = "#1f2328", "#656d76", "#e4e7eb"


_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


_POINTS = 1500


_ACROSS = 3


def draw(panels: Sequence[Panel], title: str, footer: str) -> Figure:
    """All panels, about three in a row, under one legend; the footer says where they come from."""
    columns = min(len(panels), {4: 2, 7: 4, 8: 4}.get(len(panels), _ACROSS))
    rows = math.ceil(len(panels) / columns)
    size = (4.0 * columns + 0.6, 3.5 * rows + 1.1) if columns > 1 else (6.4, 4.6)
    figure = Figure(figsize=size, dpi=200, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    labels = labels_of(panels)
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, labels)
        if len(panels) > 1:
            axes.set_title(panel.title, fontsize=10, color=_INK, parse_math=False)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    _legend(figure, panels, labels, title)
    notes = " ".join(panel.note for panel in panels if panel.note)
    figure.supxlabel(f"{notes}\n{footer}" if notes else footer, fontsize=7.5, color=_MUTED, parse_math=False, wrap=True)
    return figure


def rendered(figure: Figure, suffix: Literal["png", "pdf"], description: str) -> bytes:
    """The figure as a file's content, with a description in its metadata and no date."""
    metadata = {"Description": description} if suffix == "png" else {"Subject": description, "CreationDate": None}
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(content, format=suffix, metadata=metadata)
    return content.getvalue()


def _draw(axes: Axes, panel: Panel, labels: Sequence[str]) -> None:
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _scale(axes, name, axis)
    low, high = limits_of(panel)
    axes.set_ylim(low, high)
    _narrow_log(axes.yaxis, panel.y, low, high)
    first, last = _ends(panel)
    _narrow_log(axes.xaxis, panel.x, first, last)
    if panel.x.limits is not None:
        axes.set_xlim(*panel.x.limits)
    elif panel.x.log and 0 < first == last:
        axes.set_xlim(first / 1.5, last * 1.5)  # one place alone has no width
    else:
        axes.margins(x=0.03)
    for series in panel.series:
        _draw_series(axes, series, labels.index(series.label), (low, high), panel.y.log)
    axes.grid(True, color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=8.5, length=3, which="major")
    axes.tick_params(length=0, which="minor")
    axes.set_xlabel(panel.x.label, color=_INK, size=9.5, parse_math=False)
    axes.set_ylabel(panel.y.label, color=_INK, size=9.5, parse_math=False)


def _draw_series(axes: Axes, series: Series, index: int, limits: tuple[float, float], log: bool) -> None:
    look = _look(series, index)
    y = _within(series.y, limits, log)
    rows = thin(y, _POINTS)
    x = series.x[rows]
    axes.plot(x, y[rows], zorder=3, **look)
    if series.low is None or series.high is None:
        pass
    elif series.kind == "curve":
        low, high = _within(series.low, limits, log)[rows], _within(series.high, limits, log)[rows]
        axes.fill_between(x, low, high, color=look["color"], alpha=0.22, linewidth=0, zorder=2)
    else:
        reach = np.stack((series.y - series.low, series.high - series.y)).clip(0)[:, rows]
        axes.errorbar(x, y[rows], reach, fmt="none", ecolor=look["color"], elinewidth=1.1, capsize=2.5, zorder=2)


def _look(series: Series, index: int) -> dict[str, Any]:
    colour = PALETTE[index % len(PALETTE)]
    dashes: Any = ("-", (0, (5, 2)), (0, (1, 1.5)))[index // len(PALETTE) % 3]
    if series.kind in ("reference", "rings"):
        ring = {"marker": "o" if series.kind == "rings" else "", "markersize": 10, "markerfacecolor": "none"}
        return {"color": _MUTED, "linestyle": (0, (4, 3)), "linewidth": 1.1, **ring}
    marker = "" if series.kind == "curve" and len(series.x) > 1 else _MARKERS[index % len(_MARKERS)]
    line = "" if series.kind == "points" else dashes
    width = 1.0 if len(series.x) > 300 else 1.4
    if index == 0 and series.kind == "curve":
        width *= 2.0  # the first one lies under all others: wide enough to be seen where they cover it
    return {"color": colour, "linestyle": line, "linewidth": width, "marker": marker, "markersize": 4.5}


def _within(values: Column, limits: tuple[float, float], log: bool) -> Column:
    """What lies far outside moves to just outside, or the renderer would overflow."""
    low, high = limits
    reach = 10 * (high - low)
    return np.where(np.isfinite(values), np.clip(values, low / 10 if log else low - reach, high + reach), np.nan)


def _scale(axes: Axes, name: str, axis: Axis) -> None:
    own = axes.xaxis if name == "x" else axes.yaxis
    if axis.log:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
        own.set_major_locator(LogLocator(numticks=8))
        own.set_minor_formatter(NullFormatter())
    if axis.ticks:
        own.set_major_locator(FixedLocator(list(axis.ticks)))
        own.set_minor_locator(NullLocator())
        own.set_major_formatter(ScalarFormatter())
    if axis.unit:
        own.set_major_formatter(EngFormatter(unit="B" if axis.unit == "B" else "", sep=" " if axis.unit == "B" else ""))


def _narrow_log(own: XAxis | YAxis, axis: Axis, low: float, high: float) -> None:
    """Within a decade or so, powers of ten alone would leave an axis without ticks."""
    if axis.log and not axis.ticks and 0 < low < high < 15 * low:
        own.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0), numticks=20))
        if not axis.unit:
            own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _ends(panel: Panel) -> tuple[float, float]:
    values = np.concatenate([series.x for series in panel.series])
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _legend(figure: Figure, panels: Sequence[Panel], labels: Sequence[str], title: str) -> None:
    first = {series.label: series for panel in reversed(panels) for series in reversed(panel.series)}
    handles = [Line2D([], [], **_look(first[label], index) | {"linewidth": 1.8}) for index, label in enumerate(labels)]
    width = 75 if len(panels) == 1 else 55 * min(len(panels), _ACROSS)
    legend = figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=max(1, min(len(labels), 6, width // (6 + max(len(label) for label in labels)))),
        frameon=False,
        fontsize=9,
        handlelength=2.0,
        labelcolor=_INK,
        title=title,
        title_fontsize=11.5,
    )
    legend.get_title().set(color=_INK, parse_math=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
