"""One page that compares runs: tables and interactive charts in a single HTML file that works offline.

The same runs give the same bytes: no date, no random identifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from qafel.drawing.chart import Chart
from qafel.drawing.page import cards, chart_data, legend, page
from qafel.drawing.styles import Style, styles_of
from qafel.errors import DataError, OutputError
from qafel.report.charts import charts_of
from qafel.report.groups import Group, groups_of
from qafel.report.tables import differences_table, full_configurations, headline_table, lead_sentence, provenance_table
from qafel.runs.reading import Run
from qafel.version import __version__


def write_report(runs: Sequence[Run], path: Path, title: str = "", left_out: Sequence[str] = ()) -> Path:
    """Write the page that compares the runs, colours in the order given; it names what was left out."""
    path = Path(path)
    text = render_report(runs, title, left_out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}): choose another place") from None
    return path


def render_report(runs: Sequence[Run], title: str = "", left_out: Sequence[str] = ()) -> str:
    """The page's HTML."""
    if not runs:
        raise DataError("there is no run to report on: name at least one run directory")
    styles, groups = styles_of(runs), groups_of(runs)
    charts = [charts_of(group, f"-{number}" if number else "") for number, group in enumerate(groups)]
    title = title or " · ".join(style.label for style in styles[:4]) + (" …" if len(styles) > 4 else "")
    body = [
        *_notes(runs, styles, groups, left_out),
        *(_figures(group, alone=len(groups) == 1) for group in groups),
        _charts(groups, styles, charts),
        *_settings(runs, styles),
        f"<footer>Written by qafel {escape(__version__)}.</footer>",
    ]
    data = chart_data([chart for own in charts for chart in own])
    return page(escape(title), "\n".join(body), data, get_plotlyjs())


def _notes(runs: Sequence[Run], styles: Sequence[Style], groups: Sequence[Group], left_out: Sequence[str]) -> list[str]:
    """What a reader must know before comparing anything."""
    labels = [(run, style.label) for run, style in zip(runs, styles, strict=True)]
    notes = []
    if len(groups) > 1:
        notes.append(
            "The runs differ in task or metric, so each kind is compared by itself, without ratios between kinds."
        )
    if diverged := [label for run, label in labels if run.diverged]:
        notes.append(f"Diverged, and not among the best below: {', '.join(diverged)}.")
    if unfinished := [label for run, label in labels if not run.finished]:
        notes.append(f"Not finished, shown up to the last evaluation: {', '.join(unfinished)}.")
    if left_out:
        notes.append(f"Left out: {', '.join(left_out)}.")
    return [f'<p class="note">{escape(note)}</p>' for note in notes]


def _figures(group: Group, alone: bool) -> str:
    """A group's lead and table, under its own title if there are others."""
    reference = escape(group.styles[group.reference].label)
    target = "To target: at the first evaluation that meets it, bytes up and broadcast. " if group.targets else ""
    parts = (
        "" if alone else f"<h2>{escape(group.title)}</h2>",
        f'<p class="lead">{lead_sentence(group)}</p>',
        headline_table(group),
        f'<p class="note">{target}Traffic ratio: bytes uploaded plus broadcast (each broadcast counted once), relative '
        f"to {reference}. Received: bytes that all clients received together. 1 MB is 10⁶ bytes.</p>",
    )
    return "\n".join(filter(None, parts))


def _charts(groups: Sequence[Group], styles: Sequence[Style], charts: Sequence[Sequence[Chart]]) -> str:
    """Legend and charts in a section of their own, so that the legend does not follow the reader any further."""
    titles = [f"<h3>{escape(group.title)}</h3>" if len(groups) > 1 else "" for group in groups]
    parts = (
        '<section><h2>Charts</h2><p class="note">Drag to zoom, double-click to see all; tap a run to hide it.</p>',
        legend(styles, "Show or hide runs"),
        *(title + cards(own) for title, own in zip(titles, charts, strict=True)),
        "</section>",
    )
    return "\n".join(parts)


def _settings(runs: Sequence[Run], styles: Sequence[Style]) -> list[str]:
    differing = ["<h2>Settings that differ</h2>", differences_table(runs, styles)] if len(runs) > 1 else []
    everything = ["<h2>All settings</h2>", full_configurations(runs, styles)]
    return [*differing, *everything, "<h2>Provenance</h2>", provenance_table(runs, styles)]
