"""An entry's page: claims, table, interactive charts, settings and provenance in one file that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from plotly.offline import get_plotlyjs

from qafel.experiments.charts import charts_of, styles_of
from qafel.experiments.entry import Claim, Entry, Verdict
from qafel.experiments.panels import Panel
from qafel.experiments.provenance import Provenance
from qafel.experiments.tables import Table
from qafel.results.report_page import page
from qafel.results.report_parts import cards, chart_data, legend, scrolling
from qafel.version import __version__

_MARKS = {"pass": "✓ pass", "fail": "✗ fail", "not comparable": "– not comparable"}


def render_page(
    entry: Entry,
    table: Table,
    panels: Sequence[Panel],
    verdicts: Sequence[tuple[Claim, Verdict]],
    notes: Sequence[str],
    source: Provenance,
) -> str:
    """The page's HTML."""
    charts = charts_of(panels)
    sections = [
        f'<p class="lead">{escape(entry.paper)}. Made by <code>{escape(source.command)}</code>.</p>',
        "<h2>Published claims</h2>",
        _claims(verdicts),
        "<h2>Measured</h2>",
        table.html(),
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        '<h2>Charts</h2><p class="note">Drag to zoom, double-click to see all; tap a name to hide it.</p>',
        f"<section>{legend(styles_of(panels))}{cards(charts)}</section>",
        "<h2>Settings that differ</h2>",
        _differences(source),
        f"<details><summary>Settings that all runs share</summary>{_settings(source.common)}</details>",
        "<h2>Provenance</h2>",
        f"<p>{escape(source.sentence())}</p>",
        f"<footer>Written by qafel {escape(__version__)}.</footer>",
    ]
    return page(escape(f"{entry.title}"), "\n".join(sections), chart_data(charts), get_plotlyjs())


def _claims(verdicts: Sequence[tuple[Claim, Verdict]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_MARKS[verdict.result]}</th><td class="text">{escape(claim.text)}</td>'
        f'<td class="text">{escape(verdict.because)}</td><td class="text">{escape(claim.where)}</td></tr>'
        for claim, verdict in verdicts
    )
    head = "<thead><tr><th></th><th>claim</th><th>measured here</th><th>where</th></tr></thead>"
    return scrolling(f"<table>{head}<tbody>{rows}</tbody></table>")


def _differences(source: Provenance) -> str:
    keys = list(dict.fromkeys(key for own in source.differing.values() for key in own))
    if not keys:
        return "<p>All runs have the same settings, but for their seeds.</p>"
    head = "".join(f'<th scope="col">{escape(key)}</th>' for key in keys)
    rows = "".join(
        f'<tr><th scope="row">{escape(method)}</th>'
        + "".join(f'<td class="text">{escape(own.get(key, "–"))}</td>' for key in keys)
        + "</tr>"
        for method, own in source.differing.items()
    )
    return scrolling(f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>")


def _settings(common: dict[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td class="text">{escape(value)}</td></tr>'
        for key, value in common.items()
    )
    return scrolling(f"<table><tbody>{rows}</tbody></table>")
