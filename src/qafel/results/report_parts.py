"""The parts of which every page is put together: legend, chart cards, the charts' data, tables that scroll."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from qafel.results.report_chart import Chart
from qafel.results.report_styles import Style

_DASHES = {"solid": "", "dash": "5 3", "dot": "2 2", "dashdot": "6 2 2 2"}


def legend(styles: Sequence[Style], label: str = "Show or hide") -> str:
    """A button for every name, which shows or hides it in all charts."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-run="{index}"><svg viewBox="0 0 22 8" aria-hidden="true">'
        f'<line x1="0" y1="4" x2="22" y2="4" stroke="{style.colour}" stroke-width="3" '
        f'stroke-dasharray="{_DASHES[style.dash]}"/></svg>{escape(style.label)}</button>'
        for index, style in enumerate(styles)
    )
    return f'<div class="legend" role="group" aria-label="{escape(label)}">{buttons}</div>'


def cards(charts: Sequence[Chart]) -> str:
    """A place for every chart, with its title, notes and switches."""
    return f'<div class="charts">{"".join(_card(chart) for chart in charts)}</div>'


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


def chart_data(charts: Sequence[Chart]) -> str:
    """The charts as JSON that cannot end its script element early."""
    content = [{"key": chart.key, "traces": chart.traces, "layout": chart.layout} for chart in charts]
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def scrolling(table: str) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    return f'<div class="scroll" tabindex="0">{table}</div>'
