"""Compares runs on one page, a single HTML file that works offline.

groups     runs of one task and metric; the visible part of the metric
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
from qafel.report.groups import Group, all_styles, groups_of, of_seeds, run_labels
from qafel.report.tables import differences_table, full_configurations, headline_table, lead_sentence, provenance_table
from qafel.runs.reading import Run

_BAND = " For several seeds, the curve is the mean and the band the range. A seed that ends early counts until its end."

__all__ = ["comparison_figure", "render_report", "write_report"]


def write_report(runs: Sequence[Run], path: Path, title: str = "", left_out: Sequence[str] = ()) -> Path:
    """Write the page that compares the runs to `path`.

    runs       the runs; colours follow their order
    title      the page's title; by default the names of the runs
    left_out   the names of runs that could not be shown; the page lists them
    """
    path = Path(path)
    write_atomically(path, render_report(runs, title, left_out).encode(), make_folder=True)
    return path


def render_report(runs: Sequence[Run], title: str = "", left_out: Sequence[str] = ()) -> str:
    """Return the page's HTML. The arguments are those of `write_report`."""
    if not runs:
        raise DataError("no run to report on: name at least one run directory")
    groups = groups_of(runs)
    styles = all_styles(groups)
    panels = [report_panels(group, f"-{number}" if number else "") for number, group in enumerate(groups)]
    title = title or " · ".join(style.label for style in styles[:4]) + (" …" if len(styles) > 4 else "")
    sections = [
        *_notes(groups, left_out),
        *(part for group in groups for part in _figures(group, alone=len(groups) == 1)),
        *_charts(groups, styles, panels),
        *_settings(runs, groups, styles),
    ]
    return page(title, sections, [panel for own in panels for panel in own], styles)


def _notes(groups: Sequence[Group], left_out: Sequence[str]) -> list[str]:
    """Return the notes to read before any comparison."""
    labelled = [pair for group in groups for pair in group.styled]
    notes = []
    if len(groups) > 1:
        notes.append(
            "The runs differ in task or metric. Each kind is compared separately, without ratios between kinds."
        )
    if diverged := [of_seeds(style.label, own.diverged, own) for own, style in labelled if own.diverged]:
        notes.append(f"Diverged, and not among the best below: {', '.join(diverged)}.")
    if unfinished := [of_seeds(style.label, own.unfinished, own) for own, style in labelled if own.unfinished]:
        notes.append(f"Not finished, shown up to the last evaluation: {', '.join(unfinished)}.")
    if left_out:
        notes.append(f"Left out: {', '.join(left_out)}.")
    return [note(text) for text in notes]


def _figures(group: Group, alone: bool) -> tuple[str, ...]:
    """Return a group's lead and table, with a title if there are other groups."""
    several = len(group.members) > 1
    single = several and any(len(own.ended) == 1 for own in group.members)
    parts = (
        "Values are mean ± standard deviation over seeds, or the mean. A winner is named only if its range over seeds "
        "does not overlap with any other. " * group.repeated,
        "A single seed does not show a range: its difference may be chance. " * single,
        "To target: uploads, and bytes up and broadcast, at the first evaluation that meets it. " * bool(group.targets),
        "Traffic ratio: bytes uploaded plus broadcast (each broadcast counted once), relative "
        f"to {group.styles[group.reference].label}. Received: downloads of the participating clients. "
        "By all: if every client received every broadcast. 1 MB is 10⁶ bytes.",
    )
    return (
        "" if alone else f"<h2>{escape(group.title)}</h2>",
        f'<p class="lead">{lead_sentence(group)}</p>',
        headline_table(group),
        note("".join(parts)),
    )


def _charts(groups: Sequence[Group], styles: Sequence[Style], panels: Sequence[Sequence[Panel]]) -> tuple[str, ...]:
    """Return legend and charts in one section: the legend stays visible within it."""
    titles = [f"<h3>{escape(group.title)}</h3>" if len(groups) > 1 else "" for group in groups]
    return (
        "<section><h2>Charts</h2>",
        note(
            "Drag to zoom, double-click to reset. Click a run to hide it." + _BAND * any(own.repeated for own in groups)
        ),
        legend(styles, "Show or hide runs"),
        *(title + cards(own) for title, own in zip(titles, panels, strict=True)),
        "</section>",
    )


def _settings(runs: Sequence[Run], groups: Sequence[Group], styles: Sequence[Style]) -> list[str]:
    by_label = {style.label: own for group in groups for own, style in group.styled}
    labels = [style.label for style in styles]
    members = [by_label[label] for label in labels]
    differing = ["<h2>Settings that differ</h2>", differences_table(members, labels)] if len(members) > 1 else []
    everything = ["<h2>All settings</h2>", full_configurations(members, labels)]
    return [*differing, *everything, "<h2>Provenance</h2>", provenance_table(runs, run_labels(runs))]
