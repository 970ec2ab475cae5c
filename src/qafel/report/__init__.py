"""Any runs compared on one page: a single HTML file that works offline, which is put together here.

groups     which runs belong together, and which part of their metric to show
charts     runs as panels
tables     runs as tables
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from qafel.drawing.chart import Panel, Style
from qafel.drawing.page import cards, legend, note, page
from qafel.errors import DataError
from qafel.files import write_atomically
from qafel.report.charts import comparison_figure, report_panels
from qafel.report.groups import Group, groups_of, run_styles
from qafel.report.tables import differences_table, full_configurations, headline_table, lead_sentence, provenance_table
from qafel.runs.reading import Run

__all__ = ["comparison_figure", "render_report", "write_report"]


def write_report(runs: Sequence[Run], path: Path, title: str = "", left_out: Sequence[str] = ()) -> Path:
    """Write the page that compares the runs to `path`.

    Colours follow the order of `runs`; `title` is by default their names; the page names what was `left_out`.
    """
    path = Path(path)
    write_atomically(path, render_report(runs, title, left_out).encode(), make_folder=True)
    return path


def render_report(runs: Sequence[Run], title: str = "", left_out: Sequence[str] = ()) -> str:
    """The page's HTML; the arguments are those of `write_report`."""
    if not runs:
        raise DataError("there is no run to report on: name at least one run directory")
    styles, groups = run_styles(runs), groups_of(runs)
    panels = [report_panels(group, f"-{number}" if number else "") for number, group in enumerate(groups)]
    title = title or " · ".join(style.label for style in styles[:4]) + (" …" if len(styles) > 4 else "")
    sections = [
        *_notes(runs, styles, groups, left_out),
        *(part for group in groups for part in _figures(group, alone=len(groups) == 1)),
        *_charts(groups, styles, panels),
        *_settings(runs, styles),
    ]
    return page(title, sections, [panel for own in panels for panel in own], styles)


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
    return [note(text) for text in notes]


def _figures(group: Group, alone: bool) -> tuple[str, ...]:
    """A group's lead and table, under its own title if there are others."""
    target = "To target: at the first evaluation that meets it, bytes up and broadcast. " if group.targets else ""
    reference = group.styles[group.reference].label
    return (
        "" if alone else f"<h2>{escape(group.title)}</h2>",
        f'<p class="lead">{lead_sentence(group)}</p>',
        headline_table(group),
        note(
            f"{target}Traffic ratio: bytes uploaded plus broadcast (each broadcast counted once), relative "
            f"to {reference}. Received: what the clients that took part fetched; by all: if every client took every "
            "broadcast. 1 MB is 10⁶ bytes."
        ),
    )


def _charts(groups: Sequence[Group], styles: Sequence[Style], panels: Sequence[Sequence[Panel]]) -> tuple[str, ...]:
    """Legend and charts in a section of their own, so that the legend does not follow the reader any further."""
    titles = [f"<h3>{escape(group.title)}</h3>" if len(groups) > 1 else "" for group in groups]
    return (
        "<section><h2>Charts</h2>",
        note("Drag to zoom, double-click to see all; tap a run to hide it."),
        legend(styles, "Show or hide runs"),
        *(title + cards(own) for title, own in zip(titles, panels, strict=True)),
        "</section>",
    )


def _settings(runs: Sequence[Run], styles: Sequence[Style]) -> list[str]:
    differing = ["<h2>Settings that differ</h2>", differences_table(runs, styles)] if len(runs) > 1 else []
    everything = ["<h2>All settings</h2>", full_configurations(runs, styles)]
    return [*differing, *everything, "<h2>Provenance</h2>", provenance_table(runs, styles)]
