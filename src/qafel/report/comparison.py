"""Figures for print: the metric against server steps and against bytes, as PNG or PDF.

Figures are plain objects; nothing here touches pyplot, so no global state and no display is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from qafel.drawing.styles import Style, styles_of, thin
from qafel.errors import DataError, OutputError
from qafel.report.groups import Group, MetricView, groups_of, log_start, metric_view
from qafel.runs.reading import Column, Run

_INK, _MUTED, _GRID = "#1f2328", "#656d76", "#e4e7eb"


_LINES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5))}


_POINTS = 1500


_SUFFIXES = (".png", ".pdf", ".svg")


def comparison_figure(runs: Sequence[Run]) -> Figure:
    """Draw the metric of all runs twice: against server steps, and against bytes up and broadcast. Runs of another
    task or metric have a row of their own.
    """
    if not runs:
        raise DataError("there is no run to draw: name at least one run directory")
    groups = groups_of(runs)
    views = [metric_view(group) for group in groups]
    figure = Figure(figsize=(9.6, 4.2 * len(groups)), dpi=200, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(groups), 2, sharey="row", squeeze=False)
    for (left, right), group, view in zip(rows, groups, views, strict=True):
        _draw_group(left, right, group, view)
        if len(groups) > 1:
            left.set_title(group.task, loc="left", fontsize=10, color=_INK, parse_math=False)
    _legend(figure, styles_of(runs), views)
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure in the format of the path's suffix: .png, .pdf or .svg."""
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise OutputError(f"{path} should end in one of {', '.join(_SUFFIXES)}: the suffix chooses the format")
    # A timestamp would make equal figures differ.
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix.lower())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            # A run's name may hold letters that the font lacks; a box in the legend is enough to say so.
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            figure.savefig(path, metadata=undated)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}): choose another place") from None
    return path


def _draw_group(left: Axes, right: Axes, group: Group, view: MetricView) -> None:
    steps = "version" if any("version" in run.history for run in group.runs) else "uploads"
    _draw(left, group.runs, group.styles, view, [run.column(steps) for run in group.runs])
    _draw(right, group.runs, group.styles, view, [run.traffic for run in group.runs])
    left.set_xlabel("server steps" if steps == "version" else "uploads")
    left.xaxis.set_major_formatter(EngFormatter(sep=" "))
    left.set_ylabel(view.name, parse_math=False)
    right.set_xlabel("bytes uploaded and broadcast")
    _scale_bytes(right, [run.traffic for run in group.runs])


def _draw(axes: Axes, runs: Sequence[Run], styles: Sequence[Style], view: MetricView, across: Sequence[Column]) -> None:
    axes.set_yscale("log" if view.log else "linear")
    axes.set_ylim(view.low, view.high)
    for target in view.targets:
        axes.axhline(target, color=_MUTED, linestyle=_LINES["dash"], linewidth=1.0, zorder=1)
        place: Any = axes.get_yaxis_transform()
        words: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": _MUTED}
        axes.annotate(f"target {target:g}", (0.01, target), (0, 3), xycoords=place, **words)
    for run, style, x in zip(runs, styles, across, strict=True):
        y = view.within_reach(run.column("metric"))
        rows = thin(y, _POINTS)
        line = _LINES[style.dash]
        marker = "o" if len(y) == 1 else ""
        axes.plot(x[rows], y[rows], color=style.colour, linestyle=line, linewidth=1.3, marker=marker, markersize=4)
    for leaving in view.exits:
        x = across[leaving.run][leaving.row]
        symbol = "^" if view.goal == "min" else "v"
        axes.plot(x, view.edge, symbol, color=styles[leaving.run].colour, markersize=7, clip_on=False, zorder=5)
    axes.margins(x=0.015)
    axes.grid(True, color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=9, length=3, which="major")
    axes.tick_params(length=0, which="minor")
    axes.xaxis.label.set(color=_INK, size=10)
    axes.yaxis.label.set(color=_INK, size=10)


def _scale_bytes(axes: Axes, across: Sequence[Column]) -> None:
    """Log scale where totals differ by more than half a decade; else the frugal runs would be a vertical line."""
    totals = np.array([column[-1] for column in across])
    totals = totals[np.isfinite(totals) & (totals > 0)]
    if totals.size and totals.max() > 3.0 * totals.min():
        axes.set_xscale("log")
        axes.set_xlim(left=log_start(across))
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=" "))


def _legend(figure: Figure, styles: Sequence[Style], views: Sequence[MetricView]) -> None:
    handles = [Line2D([], [], color=style.colour, linestyle=_LINES[style.dash], linewidth=2) for style in styles]
    legend = figure.legend(
        handles,
        [style.label for style in styles],
        loc="outside upper center",
        ncols=max(1, min(len(styles), 5, 110 // (6 + max(len(style.label) for style in styles)))),
        frameon=False,
        fontsize=9.5,
        handlelength=2.0,
        labelcolor=_INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    if any(view.notes for view in views):
        goals = {view.goal for view in views if view.exits}
        arrows = "".join(arrow for goal, arrow in (("min", "▲ "), ("max", "▼ ")) if goal in goals)
        notes = arrows + " ".join(note for view in views for note in view.notes)
        figure.supxlabel(notes, fontsize=8, color=_MUTED, parse_math=False, wrap=True)
