"""Draws panels as interactive Plotly charts in one HTML file that makes no network request.

A content security policy allows only the scripts whose digests it lists: unescaped text could not run. The same content
gives the same bytes: the page has neither a date nor random identifiers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.drawing.chart import DASHES, Axis, Bars, Panel, Series, Style, Values, limits_of, panel_styles, thin
from qafel.lazy import require_installed
from qafel.version import __version__

Trace: TypeAlias = dict[str, Any]

_POINTS = 14_000  # limit for all curves of a chart together
_UNITS: dict[str, dict[str, Any]] = {
    "": {},
    "B": {"tickformat": ".3~s", "ticksuffix": "B", "tickangle": 0},
    "count": {"tickformat": ".3~s"},
    "integer": {"tickformat": "d"},
    "%": {"tickformat": ".0%"},
}


@final
class Html(str):
    """Text that is already HTML. All other text is escaped."""

    __slots__ = ()


def page(
    title: str,
    sections: Iterable[str],
    panels: Sequence[Panel],
    styles: Sequence[Style] = (),
    *,
    live_script: str = "",
    live_style: str = "",
) -> str:
    """Return the page as HTML.

    title         plain text
    sections      HTML, including the `cards` of all `panels`
    styles        the styles of the legend; by default one for each label
    live_script   an additional script, which may contact the server of the page
    live_style    additional CSS
    """
    require_installed("a page", "draw", plotly="Plotly")
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  (slow to load)

    scripts = [get_plotlyjs(), _file("page.js"), *([live_script] if live_script else [])]
    allowed = " ".join(map(_digest, scripts))
    connects = "; connect-src 'self'" if live_script else ""
    return Template(_file("page.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}{connects}",
        title=escape(title),
        style=_file("page.css") + live_style,
        body="\n".join(filter(None, sections)),
        version=escape(__version__),
        charts=charts_json(panels, styles or panel_styles(panels)),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def note(text: str) -> str:
    """Return a paragraph in small print."""
    return f'<p class="note">{_cell(text)}</p>' if text else ""


def legend(styles: Sequence[Style], label: str = "Show or hide") -> str:
    """Return a button for every style, which shows or hides it in all charts. `label` is for screen readers."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-style="{style.index}"><svg viewBox="0 0 22 8" '
        f'aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" stroke="{style.colour}" stroke-width="3" '
        f'stroke-dasharray="{" ".join(map(str, DASHES[style.dash]))}"/></svg>{escape(style.label)}</button>'
        for style in styles
    )
    return f'<div class="legend" role="group" aria-label="{escape(label)}">{buttons}</div>'


def cards(panels: Sequence[Panel]) -> str:
    """Return the HTML of every chart: title, note, switches and an empty plot."""
    return f'<div class="charts">{"".join(_card(panel, alone=len(panels) == 1) for panel in panels)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> str:
    """Return a table that scrolls if it is wider than the page.

    head      the column names, or empty
    rows      the cells of each row; the first names the row
    numbers   align the other cells to the right, on one line
    """
    named = "".join(f'<th scope="col">{_cell(title)}</th>' for title in head)
    start = "<td>" if numbers else '<td class="text">'
    body = "".join(
        f'<tr><th scope="row">{_cell(first)}</th>{"".join(f"{start}{_cell(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    opened = '<table class="figures">' if numbers else "<table>"
    above = f"<thead><tr>{named}</tr></thead>" if head else ""
    return f'<div class="scroll" tabindex="0">{opened}{above}<tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _card(panel: Panel, alone: bool) -> str:
    toggles = "".join(
        f'<button type="button" data-chart="{panel.key}" data-axis="{name}" '
        f'aria-pressed="{str(axis.log).lower()}">log {name}</button>'
        for name, axis in (("x", panel.x), ("y", panel.y))
        if not axis.fixed and len(limits_of(panel, "x" if name == "x" else "y")) > 1
    )
    wide = " wide" if panel.wide or alone else ""
    height = max(340, 80 + 42 * len(panel.y.names)) if panel.arrangement == "rows" else 440 if alone else 340
    return (
        f'<section class="card chart{wide}"><header><h3>{escape(panel.title)}</h3>{toggles}</header>'
        f'{note(panel.note)}<div class="plot" id="plot-{panel.key}" style="height:{height}px"></div></section>'
    )


def charts_json(panels: Sequence[Panel], styles: Sequence[Style], points: int = _POINTS) -> str:
    """Return all charts as JSON that is safe inside a script element. A chart has about `points` points at most."""
    named = {style.label: style for style in styles}
    charts = [
        {"key": panel.key, "traces": traces_of(panel, named, points), "layout": layout_of(panel)} for panel in panels
    ]
    text = json.dumps(charts, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def traces_of(panel: Panel, styles: dict[str, Style], points: int = _POINTS) -> list[Trace]:
    """Return the panel's curves and bars as Plotly traces. The legend's buttons use `meta.style`.

    All text is escaped: Plotly interprets some HTML.
    """
    limit = max(120, min(1200, points // max(1, len(panel.series))))
    found = []
    for series in panel.series:
        style, rows = styles[series.label], thin(series.y, limit)
        if panel.x.log:
            rows = rows[series.x[rows] > 0]  # Plotly would draw zeros as a line from the left edge
        if series.kind == "curve" and series.low is not None and series.high is not None:
            # A logarithmic axis cannot show zero.
            low = np.maximum(series.low, 1e-300) if panel.y.log else series.low
            found.append(_band(series.x, low, series.high, rows, style))
        found.append(_curve(panel, series, rows, style))
    return found + [_bars(bars, panel.arrangement == "rows", styles[bars.label]) for bars in panel.bars]


def layout_of(panel: Panel) -> dict[str, Any]:
    """Return the Plotly layout of the panel. The page's script adds targets, row names and colours."""
    return {
        "barmode": "group" if panel.arrangement == "grouped" else "stack",
        "bargap": 0.15,
        "xaxis": _axis(panel, panel.x, limits_of(panel, "x")),
        "yaxis": _axis(panel, panel.y, limits_of(panel, "y")),
        "targets": list(panel.targets),
        "rows": [escape(name) for name in panel.y.names] if panel.arrangement == "rows" else [],
    }


def _named(style: Style) -> Trace:
    return {"name": escape(style.label), "meta": {"style": style.index}}


def _curve(panel: Panel, series: Series, rows: NDArray[np.int64], style: Style) -> Trace:
    unit = "B" if panel.x.unit == "B" else ""
    values = f"%{{x:.4~s}}{unit}, %{{y:.4~g}}"
    lines = series.kind not in ("points", "marks") and (len(rows) > 1 or series.is_reference)
    markers = series.kind in ("points", "line-and-points", "rings", "marks") or not lines
    symbol, size = ("circle-open", 17) if series.kind == "rings" else (series.symbol, 8)
    outline = {"width": 1.5 if symbol.endswith("open") else 0}
    marker: dict[str, Any] = {"color": style.colour, "symbol": symbol, "size": size, "line": outline}
    if series.shade is not None:
        marker |= {"color": _plain(series.shade[rows]), "colorscale": "Viridis", "cmin": 0, "cmax": 1}
    trace: Trace = _named(style) | {
        "type": "scatter",
        "x": _plain(series.x[rows]),
        "y": _plain(series.y[rows]),
        "mode": "+".join(word for word, there in (("lines", lines), ("markers", markers)) if there),
        "line": {"color": style.colour, "dash": style.dash, "width": 1.8},
        "marker": marker,
        "hovertemplate": f"{values}<extra>%{{fullData.name}}</extra>",
    }
    if series.kind == "steps":
        trace["line"]["shape"] = "hv"
    if series.symbol.startswith("triangle"):
        # It is on the edge of the chart.
        trace |= {"cliponaxis": False, "marker": marker | {"size": 11}}
    if series.hover:
        template = "%{text}" if series.kind == "marks" else f"%{{text}}<br>{values}"
        trace |= {"text": [_lines(series.hover[row]) for row in rows], "hovertemplate": f"{template}<extra></extra>"}
    if series.kind != "curve" and series.low is not None and series.high is not None:
        up, down = _plain((series.high - series.y)[rows]), _plain((series.y - series.low)[rows])
        bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": style.colour}
        trace["error_y"] = bars | {"thickness": 1.2, "width": 3}
    return trace


def _band(x: Values, low: Values, high: Values, rows: NDArray[np.int64], style: Style) -> Trace:
    """Return the band between `low` and `high`: along the top, and back along the bottom."""
    rows = rows[np.isfinite(low[rows]) & np.isfinite(high[rows])]
    return _named(style) | {
        "type": "scatter",
        "x": _plain(np.concatenate((x[rows], x[rows][::-1]))),
        "y": _plain(np.concatenate((high[rows], low[rows][::-1]))),
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": f"rgba({', '.join(str(int(style.colour[at : at + 2], 16)) for at in (1, 3, 5))}, 0.18)",
        "hoverinfo": "skip",
    }


def _bars(bars: Bars, lying: bool, style: Style) -> Trace:
    at, length = _plain(bars.at), _plain(bars.length)
    return _named(style) | {
        "type": "bar",
        "orientation": "h" if lying else "v",
        "x": length if lying else at,
        "y": at if lying else length,
        "marker": {"color": style.colour, "opacity": bars.opacity},
        "customdata": [_lines(words) for words in bars.hover],
        "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
        "text": [""] * (len(at) - 1) + [escape(bars.text)],
        "textposition": "outside",
        "cliponaxis": False,
    }


def _axis(panel: Panel, axis: Axis, limits: dict[Any, tuple[float, float]]) -> dict[str, Any]:
    """Return a Plotly axis. `ranges` has the limits of both scales for the page's script."""
    found = {"title": {"text": escape(axis.label)}, "type": axis.scale, "exponentformat": "power", **_UNITS[axis.unit]}
    if axis.ticks or axis.names:
        texts = [escape(name) for name in axis.names] or [f"{tick:g}" for tick in axis.ticks]
        found |= {"tickvals": list(axis.ticks) or list(range(len(axis.names))), "ticktext": texts}
    ranges = {
        scale: [math.log10(end) for end in ends] if scale == "log" else list(ends) for scale, ends in limits.items()
    }
    if axis.scale in ranges:
        found |= {"range": ranges[axis.scale], "ranges": ranges}
    elif panel.bars:
        found["rangemode"] = "tozero"
    return found


def _lines(words: str) -> str:
    return escape(words).replace("\n", "<br>")


def _plain(values: Values) -> list[float | None]:
    """Return numbers with six significant digits for JSON. NaN and infinity become gaps."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]
