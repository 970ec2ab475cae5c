"""Compares runs on one page, a single HTML file that works offline.

groups     runs of one task and metric; the visible part of the metric
charts     runs as panels
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np

from qafel.drawing.chart import Style
from qafel.drawing.page import Html, note, page, table
from qafel.errors import DataError
from qafel.files import write_atomically
from qafel.report.charts import charts_of, comparison_figure
from qafel.report.groups import Figure, Group, Repeats, flatten, of_seeds, run_labels
from qafel.runs.reading import Run, Spread, folder_name
from qafel.tasks.protocol import Goal
from qafel.text import UNKNOWN, human_bytes, human_count, human_metric, human_rate, human_ratio, human_seconds

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
    charts = charts_of(runs)
    groups, styles = charts.groups, charts.styles
    title = title or " · ".join(style.label for style in styles[:4]) + (" …" if len(styles) > 4 else "")
    hint = "Drag to zoom, double-click to reset. Click a run to hide it." + _BAND * any(own.repeated for own in groups)
    sections = [
        *_notes(groups, left_out),
        *(part for group in groups for part in _figures(group, alone=len(groups) == 1)),
        # Legend and charts in one section: the legend stays visible within it.
        *("<section><h2>Charts</h2>", note(hint), charts.html, "</section>"),
        *_settings(runs, groups, styles),
    ]
    return page(title, sections, charts.panels, styles)


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
        "To target: uploads and total bytes at the first evaluation that meets it. " * bool(group.targets),
        "Total bytes: up, broadcast (each broadcast counted once) and received (downloads of starting clients). "
        f"Ratio: total bytes relative to {group.styles[group.reference].label}. "
        "By all: if every client received every broadcast. 1 MB is 10⁶ bytes.",
    )
    return (
        "" if alone else f"<h2>{escape(group.title)}</h2>",
        f'<p class="lead">{lead_sentence(group)}</p>',
        headline_table(group),
        note("".join(parts)),
    )


def _settings(runs: Sequence[Run], groups: Sequence[Group], styles: Sequence[Style]) -> list[str]:
    by_label = {style.label: own for group in groups for own, style in group.styled}
    labels = [style.label for style in styles]
    members = [by_label[label] for label in labels]
    differing = ["<h2>Settings that differ</h2>", differences_table(members, labels)] if len(members) > 1 else []
    everything = ["<h2>All settings</h2>", full_configurations(members, labels)]
    return [*differing, *everything, "<h2>Provenance</h2>", provenance_table(runs, run_labels(runs))]


_SENT = (
    *("uploads", "total bytes", "ratio", "up", "broadcast", "received", "received by all"),
    *("staleness mean", "max", "wall time", "uploads/s"),
)

_total: Figure = attrgetter("total_bytes")
_PROVENANCE = ("task", "algorithm", "seed", "model_sha256", "hidden_state_sha256")


def headline_table(group: Group) -> str:
    """Return a row per label: metric, cost to the target, bytes, staleness and time.

    Metric and cost are mean ± standard deviation over seeds; the rest are means.
    """
    name = f'<span class="{"short" if len(group.metric) <= 12 else "long"}">{escape(group.metric)}</span>'
    to_target = ("uploads to target", "total bytes to target") if group.targets else ()
    seeds = ("seeds",) if group.repeated else ()
    columns = ("run", *seeds, Html(f"final {name}"), Html(f"best {name}"), *to_target, *_SENT)
    rows = (_headline(group, own, style) for own, style in group.styled)
    return table(columns, rows, numbers=True)


def _headline(group: Group, own: Repeats, style: Style) -> list[str]:
    def mean(figure: str) -> float:
        return own.spread(figure).mean

    final, best = own.spread(final_of), own.spread(lambda run: best_of(run, group.goal))
    cells = [_name(own, style), *([str(final.count)] if group.repeated else [])]
    cells += [_metric(final), _metric(best)]
    if group.targets:
        cells += [
            _or_not(own, to_target(group, "uploads"), human_count),
            _or_not(own, to_target(group, "bytes"), human_bytes),
        ]
    total, reference = own.spread(_total).mean, group.members[group.reference].spread(_total).mean
    return [
        *cells,
        human_count(mean("uploads")),
        human_bytes(total),
        human_ratio(ratio(total, reference)),
        human_bytes(mean("upload_bytes_total")),
        human_bytes(mean("broadcast_bytes_total")),
        human_bytes(mean("received_bytes_total")),
        human_bytes(mean("received_by_all_bytes_total")),
        human_count(mean("staleness_mean")),
        human_count(mean("staleness_max")),
        human_seconds(mean("wall_s")),
        human_rate(mean("updates_per_s")),
    ]


def _name(own: Repeats, style: Style) -> Html:
    count = len(own.runs)
    word, some = ("diverged", own.diverged) if own.diverged else ("unfinished", own.unfinished)
    text = f"{some} of {count} {word}" if count > 1 else word
    tag = f' <span class="tag">{text}</span>' if some else ""
    return Html(f'<span class="dot" style="background:{style.colour}"></span>{escape(style.label)}{tag}')


def _metric(spread: Spread) -> str:
    return spread.text(human_metric) if math.isfinite(spread.mean) else human_metric(spread.mean)


def _or_not(own: Repeats, figure: Figure, show: Callable[[float], str]) -> str:
    """Return the cost to the target if all seeds reached it, else the number that did."""
    reached = [math.isfinite(figure(run)) for run in own.ended]
    if not any(math.isinf(figure(run)) for run in own.ended):
        return own.spread(figure).text(show)
    return f"reached by {sum(reached)} of {len(reached)}" if any(reached) else "not reached"


def final_of(run: Run) -> float:
    """Return the final metric from the summary, else from the last row."""
    stated = run.number("metric_final")
    return float(run.column("metric")[-1]) if math.isnan(stated) else stated


def best_of(run: Run, goal: str) -> float:
    """Return the best metric from the summary, else from all rows."""
    stated = run.number("metric_best")
    metric = run.column("metric")
    metric = metric[np.isfinite(metric)]
    if not math.isnan(stated) or not metric.size:
        return stated
    return float(metric.min() if goal == "min" else metric.max())


def ratio(value: float, reference: float) -> float:
    """Return one amount relative to another, NaN if that is unknown."""
    return value / reference if 0 < reference < math.inf else math.nan


def lead_sentence(group: Group) -> str:
    """Return the winners as HTML: cost to the target, final metric, bytes. Empty for a single member.

    A winner is named only if its range over seeds does not overlap with any other. Diverged members never win, and
    unfinished ones never win by bytes.
    """
    if len(group.members) < 2:
        return ""
    sound = [not own.diverged for own in group.members]
    said = _reached(group, sound)
    lowest = "Lowest" if group.goal == "min" else "Highest"
    finals = [own.spread(final_of) for own in group.members]
    ended = [
        fair and not own.unfinished and math.isfinite(final.mean)
        for own, final, fair in zip(group.members, finals, sound, strict=True)
    ]
    said_least = [] if said else _winner(group, "Fewest total bytes", _total, ended, partial(_bytes, group))
    said += _winner(group, f"{lowest} final {escape(group.metric)}", final_of, sound, human_metric, group.goal)
    return " ".join([*said, *said_least])


def _reached(group: Group, sound: Sequence[bool]) -> list[str]:
    """Name the fewest uploads and bytes to the shared target. Empty without one, or if no member reached it."""
    if group.shared_target is None:
        return []
    goal = f"{escape(group.metric)} {'≤' if group.goal == 'min' else '≥'} {group.shared_target:g}"
    uploads, total = to_target(group, "uploads"), to_target(group, "bytes")
    return [
        *_winner(group, f"Fewest uploads to {goal}", uploads, sound, human_count),
        *_winner(group, "Fewest total bytes", total, sound, partial(_bytes, group, figure=total)),
    ]


def _winner(
    group: Group,
    what: str,
    figure: Figure,
    eligible: Sequence[bool],
    show: Callable[[float], str],
    goal: Goal = "min",
) -> list[str]:
    """Return a sentence that names the best eligible member by `what`, or those whose ranges overlap."""
    spreads = [own.spread(figure) for own in group.members]
    fair = [index for index, spread in enumerate(spreads) if eligible[index] and math.isfinite(spread.mean)]
    if not fair:
        return []
    best = (min if goal == "min" else max)(fair, key=lambda index: spreads[index].mean)
    level = [index for index in range(len(spreads)) if eligible[index] and not spreads[index].apart_from(spreads[best])]
    rivals = [index for index in level if index != best and not math.isnan(spreads[index].mean)]
    if not rivals:
        return [f"{what}: {_strong(group, best)} with {show(spreads[best].mean)}."]
    if all(spreads[index].low == spreads[index].high for index in (best, *rivals)):
        return [f"{what}: {_listed(group, sorted((best, *rivals)))} alike, with {show(spreads[best].mean)}."]
    return [f"{what}: no winner, the ranges over seeds of {_listed(group, (best, *rivals))} overlap."]


def _listed(group: Group, indices: Sequence[int]) -> str:
    """Return the labels as a list in words: a, b and 3 others."""
    names = [_strong(group, index) for index in indices]
    names = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} others"]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def to_target(group: Group, what: Literal["uploads", "bytes"]) -> Figure:
    """Return uploads or total bytes when a run first met its target. Infinite if never, NaN without a target."""
    return lambda run: run.at_target(run.column("uploads") if what == "uploads" else run.bytes_so_far, group.goal)


def _bytes(group: Group, value: float, figure: Figure = _total) -> str:
    """Return bytes and their ratio to the reference, unless it is the reference itself."""
    times = ratio(value, group.members[group.reference].spread(figure).mean)
    if times == 1 or not times > 0:
        return human_bytes(value)
    return f"{human_bytes(value)}, {human_ratio(times)} the total bytes of {_strong(group, group.reference)}"


def _strong(group: Group, index: int) -> str:
    return f"<strong>{escape(group.styles[index].label)}</strong>"


def differences_table(members: Sequence[Repeats], labels: Sequence[str]) -> str:
    """Return a row for each setting that differs among the members."""
    rows = [row for row in _rows([_settings_of(own) for own in members]) if len(set(row[1:])) > 1]
    same = "<p>The runs have the same configuration.</p>"
    return table(["", *labels], rows) if rows else same


def provenance_table(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return the facts to repeat a run and to verify its result: seed, versions, digests."""
    facts = []
    for run in runs:
        summary = flatten(run.summary)
        chosen = {key: summary[key] for key in _PROVENANCE if key in summary}
        chosen |= {key: value for key, value in summary.items() if "version" in key.split(".")[0]}
        facts.append({"directory": folder_name(run.path)} | chosen)
    return table(["", *labels], _rows(facts))


def full_configurations(members: Sequence[Repeats], labels: Sequence[str]) -> str:
    """Return all settings of all members, collapsed."""
    return "".join(
        f"<details><summary>{escape(label)}</summary>{table((), _settings_of(own).items())}</details>"
        for own, label in zip(members, labels, strict=True)
    )


def _settings_of(own: Repeats) -> dict[str, str]:
    """Return the settings of a member, with all its seeds."""
    settings = flatten(own.runs[0].config)
    if len(own.runs) > 1:
        seeds = sorted((run.config.get("seed", run.summary.get("seed")) for run in own.runs), key=str)
        settings |= {"seed": ", ".join(map(str, seeds))}
        if "name" in settings:
            settings["name"] = own.name
    return settings


def _rows(facts: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return a row for every key: the key and its value in each of the facts."""
    keys = dict.fromkeys(key for fact in facts for key in fact)
    return [[key, *(fact.get(key, UNKNOWN) for fact in facts)] for key in keys]
