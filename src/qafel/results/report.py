"""One page that compares runs: tables and interactive charts in a single HTML file that works offline.

The same runs give the same bytes: no date, no random identifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from qafel.errors import DataError, OutputError
from qafel.results.report_chart import Chart
from qafel.results.report_charts import charts_of
from qafel.results.report_page import page
from qafel.results.report_parts import cards, chart_data, legend
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
    return page(escape(title), _body(runs, styles, charts), chart_data(charts), get_plotlyjs())


def _body(runs: Sequence[Run], styles: Sequence[Style], charts: Sequence[Chart]) -> str:
    reference = escape(styles[reference_of(runs)].label)
    sections = [
        f'<p class="lead">{lead_sentence(runs, styles)}</p>',
        _unfinished(runs, styles),
        headline_table(runs, styles),
        f'<p class="note">Traffic ratio: bytes uploaded plus broadcast (each broadcast counted once), relative to '
        f"{reference}. Received: bytes that all clients received together. 1 MB is 10⁶ bytes.</p>",
        '<h2>Charts</h2><p class="note">Drag to zoom, double-click to see all; tap a run to hide it.</p>',
        legend(styles, "Show or hide runs"),
        cards(charts),
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
