"""Draws panels for print, as PNG, PDF or SVG. It needs no display; equal panels give equal bytes."""

from __future__ import annotations

import base64
import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
from matplotlib import colormaps, ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from qafel.drawing.chart import (
    DASHES,
    Axis,
    Bars,
    Ends,
    Panel,
    Series,
    Style,
    Values,
    limits_of,
    panel_styles,
    thin,
)
from qafel.errors import OutputError
from qafel.files import write_atomically

_INK, _MUTED, _GRID = "#1f2328", "#656d76", "#e4e7eb"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SYMBOLS = {"circle": "o", "circle-open": "o", "x-thin-open": "x", "triangle-up": "^", "triangle-down": "v"}
_UNITS = {"B": ("B", " "), "count": ("", "")}
_POINTS = 1500
_SUFFIXES = (".png", ".pdf", ".svg")


def draw(
    panels: Sequence[Panel], title: str = "", footer: str = "", styles: Sequence[Style] = (), columns: int = 0
) -> Figure:
    """Draw all panels under one legend.

    title     text above the legend
    footer    text below the panels, after their notes
    styles    the styles of the legend; by default one for each label
    columns   panels per row; by default about three
    """
    styles = styles or panel_styles(panels)
    columns = columns or min(len(panels), {4: 2, 7: 4, 8: 4}.get(len(panels), 3))
    rows = math.ceil(len(panels) / columns)
    size = (4.0 * columns + 0.6, 3.5 * rows + 1.1) if columns > 1 else (6.4, 4.6)
    figure = Figure(figsize=size, dpi=200, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    named = {style.label: style for style in styles}
    for axes, panel in zip(grid, panels, strict=False):
        room = size[0] / columns - 0.5, (size[1] - 1.1) / rows - 0.4
        _draw_panel(axes, panel, named, room)
        if len(panels) > 1:
            axes.set_title(_wrapped(panel.title, room[0], 10), fontsize=10, color=_INK, parse_math=False)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    _legend(figure, panels, [style for style in styles if style.label], _wrapped(title, size[0], 11.5))
    notes = " ".join(dict.fromkeys(panel.note for panel in panels if panel.note))
    below = "\n".join(filter(None, (notes, footer)))
    figure.supxlabel(below, fontsize=7.5, color=_MUTED, parse_math=False, wrap=True)
    return figure


def rendered(figure: Figure, suffix: str, description: str = "") -> bytes:
    """Return the content of a .png, .pdf or .svg file, with `description` in its metadata and without a date."""
    named = {"Subject" if suffix == ".pdf" else "Description": description} if description else {}
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix, {})
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A label may have letters that the font lacks; a box replaces them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(content, format=suffix.lstrip("."), metadata=named | undated)
    return content.getvalue()


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure to `path` in the format of its suffix: .png, .pdf or .svg."""
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise OutputError(f"{path} must end in one of {', '.join(_SUFFIXES)}: the suffix chooses the format")
    write_atomically(path, rendered(figure, path.suffix.lower()), make_folder=True)
    return path


@final
class Plot:
    """A figure for notebooks and scripts."""

    def __init__(self, figure: Figure) -> None:
        """Wrap the matplotlib `figure`, which can still be changed."""
        self.figure = figure

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the picture to `path` in the format of its suffix: .png, .pdf or .svg."""
        return save_figure(self.figure, Path(path))

    def __repr__(self) -> str:
        return 'Plot: a notebook shows it, .save("plot.png") writes it, .figure is matplotlib\'s'

    def _repr_html_(self) -> str:
        """Return the SVG inside an image, so that several on one page do not share styles and names."""
        content = base64.b64encode(rendered(self.figure, ".svg")).decode()
        return f'<img alt="plot" style="max-width:100%" src="data:image/svg+xml;base64,{content}">'


def _wrapped(text: str, inches: float, points: float) -> str:
    """Wrap the text into lines that fit into the figure."""
    return "\n".join(textwrap.wrap(text, max(8, int(inches * 72 / (0.58 * points))))) or text


def _draw_panel(axes: Axes, panel: Panel, styles: dict[str, Style], room: tuple[float, float]) -> None:
    """Draw the panel. `room`: the largest width and height of its labels, in inches."""
    x, y = limits_of(panel, "x").get(panel.x.scale), limits_of(panel, "y").get(panel.y.scale)
    _scale(axes, "x", panel.x, x)
    _scale(axes, "y", panel.y, y)
    for series in panel.series:
        _draw_series(axes, series, styles[series.label], y or (-math.inf, math.inf), panel)
    if panel.bars:
        _draw_bars(axes, panel, styles)
    for target in panel.targets:
        axes.axhline(target, color=_MUTED, linestyle=(0, DASHES["dash"]), linewidth=1.0, zorder=1)
        place: Any = axes.get_yaxis_transform()
        words: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": _MUTED}
        axes.annotate(f"target {target:g}", (0.01, target), (0, 3), xycoords=place, **words)
    axes.grid(True, color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=8.5, length=3, which="major")
    axes.tick_params(length=0, which="minor")
    axes.set_xlabel(_wrapped(panel.x.label, room[0], 9.5), color=_INK, size=9.5, parse_math=False)
    axes.set_ylabel(_wrapped(panel.y.label, room[1], 9.5), color=_INK, size=9.5, parse_math=False)


def _draw_series(axes: Axes, series: Series, style: Style, limits: Ends, panel: Panel) -> None:
    log = panel.y.log
    y = _within(series.y, limits, log)
    rows = thin(y, _POINTS)
    if panel.x.log:
        rows = rows[series.x[rows] > 0]  # zeros would be drawn as a line from the left edge
    x = series.x[rows]
    if series.kind == "marks":
        _draw_marks(axes, series, rows, style)
        return
    look = _look(series, style)
    axes.plot(x, y[rows], zorder=3, **look)
    if series.low is None or series.high is None:
        return
    if series.kind == "curve":
        low, high = _within(series.low, limits, log)[rows], _within(series.high, limits, log)[rows]
        axes.fill_between(x, low, high, color=style.colour, alpha=0.22, linewidth=0, zorder=2)
    else:
        reach = np.stack((series.y - series.low, series.high - series.y)).clip(0)[:, rows]
        axes.errorbar(x, y[rows], reach, fmt="none", ecolor=style.colour, elinewidth=1.1, capsize=2.5, zorder=2)


def _draw_marks(axes: Axes, series: Series, rows: NDArray[np.int64], style: Style) -> None:
    colours: Any = style.colour if series.shade is None else colormaps["viridis"](series.shade[rows])
    hollow = series.symbol == "circle-open"
    look: dict[str, Any] = {"facecolors": "none", "edgecolors": colours} if hollow else {"c": colours}
    axes.scatter(series.x[rows], series.y[rows], marker=_SYMBOLS[series.symbol], clip_on=False, zorder=5, **look)


def _look(series: Series, style: Style) -> dict[str, Any]:
    """Return matplotlib's options for a line of this style."""
    dashes: Any = (0, DASHES[style.dash]) if DASHES[style.dash] else "-"
    if series.is_reference:
        ring = {"marker": "o" if series.kind == "rings" else "", "markersize": 10, "markerfacecolor": "none"}
        return {"color": style.colour, "linestyle": dashes, "linewidth": 1.1, **ring}
    line = series.kind in ("curve", "steps")
    width = 1.0 if len(series.x) > 300 else 1.4
    if style.index == 0 and line:
        width *= 2.0  # the first line is below all others, and visible beside them
    return {
        "color": style.colour,
        "linestyle": "" if series.kind == "points" else dashes,
        "linewidth": width,
        "marker": "" if line and len(series.x) != 1 else _MARKERS[style.index % len(_MARKERS)],
        "markersize": 4.5,
        "drawstyle": "steps-post" if series.kind == "steps" else "default",
    }


def _draw_bars(axes: Axes, panel: Panel, styles: dict[str, Style]) -> None:
    places = np.unique(np.concatenate([bars.at for bars in panel.bars]))
    step = float(np.diff(places).min()) if len(places) > 1 else 1.0
    beside = len(panel.bars) if panel.arrangement == "grouped" else 1
    rows = panel.arrangement == "rows"
    width, base = 0.9 * step / beside, np.zeros(len(places))
    for number, bars in enumerate(panel.bars):
        own = np.searchsorted(places, bars.at)
        at = bars.at + width * (number % beside - (beside - 1) / 2)
        draw_bars = axes.barh if rows else axes.bar
        draw_bars(at, bars.length, width, base[own], color=_fill(bars, styles[bars.label]))
        if beside == 1:
            base[own] += bars.length
        if rows and bars.text:
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "size": 8}
            axes.annotate(_wrapped(bars.text, 1.2, 8), (base[own[-1]], at[-1]), (3, 0), **place)
    if rows:
        axes.invert_yaxis()


def _fill(bars: Bars, style: Style) -> str:
    """Return the style's colour mixed with white, by the opacity of the bars."""
    parts = (int(style.colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - bars.opacity * (255 - part)):02x}" for part in parts)


def _within(values: Values, limits: Ends, log: bool) -> Values:
    """Move distant values close to the limits: the renderer would overflow."""
    low, high = limits
    reach = 10 * (high - low)
    return np.where(np.isfinite(values), np.clip(values, low / 10 if log else low - reach, high + reach), np.nan)


def _scale(axes: Axes, name: str, axis: Axis, limits: Ends | None) -> None:
    own: Any = getattr(axes, f"{name}axis")
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
        own.set_major_locator(ticker.LogLocator(numticks=8))
        own.set_minor_formatter(ticker.NullFormatter())
    if axis.log and limits is not None and math.floor(math.log10(limits[1])) <= math.ceil(math.log10(limits[0])):
        # Fewer than two powers of ten. A range above a factor of 5 has two ticks of 1, 2, 5, 10, …
        narrow = limits[1] < 5 * limits[0]
        own.set_major_locator(ticker.AutoLocator() if narrow else ticker.LogLocator(subs=(1, 2, 5)))
        own.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.10g}"))
    if axis.ticks or axis.names:
        names = [_wrapped(words, 1.5, 8.5) for words in axis.names]
        own.set_ticks(axis.ticks or range(len(axis.names)), names or [f"{tick:g}" for tick in axis.ticks])
        own.set_minor_locator(ticker.NullLocator())
    elif axis.unit == "integer":
        own.set_major_locator(ticker.MaxNLocator(integer=True))
    elif axis.unit == "%":
        own.set_major_formatter(ticker.PercentFormatter(1.0))
    elif axis.unit:
        unit, space = _UNITS[axis.unit]
        own.set_major_formatter(ticker.EngFormatter(unit, sep=space))
    if limits is not None:
        axes.set(**{f"{name}lim": limits})


def _legend(figure: Figure, panels: Sequence[Panel], styles: Sequence[Style], title: str) -> None:
    nothing = Series("", np.zeros(0), np.zeros(0))
    first = {series.label: series for panel in reversed(panels) for series in reversed(panel.series)}
    bars = {bars.label: bars for panel in panels for bars in panel.bars}
    handles = [
        Patch(color=_fill(bars[style.label], style))
        if style.label in bars
        else Line2D([], [], **_look(first.get(style.label, nothing), style) | {"linewidth": 1.8})
        for style in styles
    ]
    labels = [_wrapped(style.label, figure.get_figwidth() - 0.8, 9) for style in styles]
    width = 75 if len(panels) == 1 else 55 * min(len(panels), 3)
    legend = figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=max(1, min(len(labels), 6, width // (6 + max(len(label) for label in labels)))),
        frameon=False,
        fontsize=9,
        handlelength=2.0,
        labelcolor=_INK,
        title=title or None,
        title_fontsize=11.5,
    )
    legend.get_title().set(color=_INK, parse_math=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
