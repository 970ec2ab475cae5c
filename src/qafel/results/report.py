"""One page that compares runs: tables and interactive charts in a single HTML file that works offline.

The same runs give the same bytes: no date, no random identifier.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from qafel.errors import DataError, OutputError
from qafel.results.report_chart import Chart
from qafel.results.report_charts import charts_of
from qafel.results.report_page import page
from qafel.results.report_styles import Style, reference_of, styles_of
from qafel.results.report_tables import (
    differences_table,
    full_configurations,
    headline_table,
    lead_sentence,
    provenance_table,
)
from qafel.results.report_view import metric_view
from qafel.results.runs import Run
from qafel.version import __version__

_SVG_DASHES = {"solid": "", "dash": "5 3", "dot": "2 2", "dashdot": "6 2 2 2"}


def write_report(runs: Sequence[Run], path: Path, title: str = "") -> Path:
    """Write the page that compares the runs, colours in the order given."""
    path = Path(path)
    text = render_report(runs, title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}): choose another place") from None
    return path


def render_report(runs: Sequence[Run], title: str = "") -> str:
    """The page's HTML."""
    if not runs:
        raise DataError("there is no run to report on: name at least one run directory")
    styles, view = styles_of(runs), metric_view(runs)
    charts = charts_of(runs, styles, view)
    title = title or " · ".join(style.label for style in styles[:4]) + (" …" if len(styles) > 4 else "")
    return page(escape(title), _body(runs, styles, charts), _data(charts), get_plotlyjs())


def _body(runs: Sequence[Run], styles: Sequence[Style], charts: Sequence[Chart]) -> str:
    reference = escape(styles[reference_of(runs)].label)
    sections = [
        f'<p class="lead">{lead_sentence(runs, styles)}</p>',
        _unfinished(runs, styles),
        headline_table(runs, styles),
        f'<p class="note">Traffic ratio: bytes uploaded plus broadcast (each broadcast counted once), relative to '
        f"{reference}. Received: bytes that all clients received together. 1 MB is 10⁶ bytes.</p>",
        '<h2>Charts</h2><p class="note">Drag to zoom, double-click to see all; tap a run to hide it.</p>',
        _legend(styles),
        f'<div class="charts">{"".join(_card(chart) for chart in charts)}</div>',
    ]
    if len(runs) > 1:
        sections += ["<h2>Settings that differ</h2>", differences_table(runs, styles)]
    sections += ["<h2>All settings</h2>", full_configurations(runs, styles)]
    sections += ["<h2>Provenance</h2>", provenance_table(runs, styles)]
    return "\n".join((*sections, f"<footer>Written by qafel {escape(__version__)}.</footer>"))


def _unfinished(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    labels = [style.label for run, style in zip(runs, styles, strict=True) if not run.finished]
    if not labels:
        return ""
    return f'<p class="note">Not finished, shown up to the last evaluation: {escape(", ".join(labels))}.</p>'


def _legend(styles: Sequence[Style]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-run="{index}"><svg viewBox="0 0 22 8" aria-hidden="true">'
        f'<line x1="0" y1="4" x2="22" y2="4" stroke="{style.colour}" stroke-width="3" '
        f'stroke-dasharray="{_SVG_DASHES[style.dash]}"/></svg>{escape(style.label)}</button>'
        for index, style in enumerate(styles)
    )
    return f'<div class="legend" role="group" aria-label="Show or hide runs">{buttons}</div>'


def _card(chart: Chart) -> str:
    toggles = "".join(
        f'<button type="button" data-chart="{chart.key}" data-axis="{axis}" '
        f'aria-pressed="{str(chart.layout[f"{axis}axis"]["type"] == "log").lower()}">log {axis}</button>'
        for axis in chart.toggles
    )
    notes = f'<p class="note">{escape(" ".join(chart.notes))}</p>' if chart.notes else ""
    wide = " wide" if chart.wide else ""
    return (
        f'<section class="card chart{wide}"><header><h3>{escape(chart.title)}</h3>{toggles}</header>'
        f'{notes}<div class="plot" id="plot-{chart.key}" style="height:{chart.height}px"></div></section>'
    )


def _data(charts: Sequence[Chart]) -> str:
    """The charts as JSON that cannot end its script element early."""
    content = [{"key": chart.key, "traces": chart.traces, "layout": chart.layout} for chart in charts]
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
