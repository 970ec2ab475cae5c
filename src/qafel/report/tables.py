"""The report's tables and its lead sentence: results, traffic, settings and provenance of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from operator import attrgetter
from typing import Literal

import numpy as np

from qafel.drawing.chart import Style
from qafel.drawing.page import Html, table
from qafel.report.groups import Group, flatten
from qafel.runs.reading import Run, folder_name
from qafel.runs.seeds import Figure, Repeats, Spread
from qafel.tasks.protocol import Goal
from qafel.text import UNKNOWN, human_bytes, human_count, human_metric, human_rate, human_ratio, human_seconds

_SENT = (
    *("uploads", "up", "broadcast", "received", "received by all"),
    *("traffic ratio", "staleness mean", "max", "wall time", "uploads/s"),
)

_traffic: Figure = attrgetter("traffic_total")
_PROVENANCE = ("task", "algorithm", "seed", "model_sha256", "hidden_state_sha256")


def headline_table(group: Group) -> str:
    """Return a row per label: metric, cost to the target, traffic, staleness and time.

    Metric and cost are mean ± standard deviation over seeds; the rest are means.
    """
    name = f'<span class="{"short" if len(group.metric) <= 12 else "long"}">{escape(group.metric)}</span>'
    to_target = ("uploads to target", "bytes to target") if group.targets else ()
    seeds = ("seeds",) if group.repeated else ()
    columns = ("run", *seeds, Html(f"final {name}"), Html(f"best {name}"), *to_target, *_SENT)
    rows = (_row(group, own, style) for own, style in group.styled)
    return table(columns, rows, numbers=True)


def _row(group: Group, own: Repeats, style: Style) -> list[str]:
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
    reference = group.members[group.reference].spread(_traffic).mean
    return [
        *cells,
        human_count(mean("uploads")),
        human_bytes(mean("upload_bytes_total")),
        human_bytes(mean("broadcast_bytes_total")),
        human_bytes(mean("received_bytes_total")),
        human_bytes(mean("received_by_all_bytes_total")),
        human_ratio(ratio(own.spread(_traffic).mean, reference)),
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
    """Return the winners as HTML: cost to the target, final metric, traffic. Empty for a single member.

    A winner is named only if its range over seeds does not overlap with any other. Diverged members never win, and
    unfinished ones never win by traffic.
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
    said_least = [] if said else _winner(group, "Least traffic", _traffic, ended, partial(_bytes, group))
    said += _winner(group, f"{lowest} final {escape(group.metric)}", final_of, sound, human_metric, group.goal)
    return " ".join([*said, *said_least])


def _reached(group: Group, sound: Sequence[bool]) -> list[str]:
    """Name the fewest uploads and bytes to the shared target. Empty without one, or if no member reached it."""
    if group.shared_target is None:
        return []
    goal = f"{escape(group.metric)} {'≤' if group.goal == 'min' else '≥'} {group.shared_target:g}"
    uploads, traffic = to_target(group, "uploads"), to_target(group, "bytes")
    return [
        *_winner(group, f"Fewest uploads to {goal}", uploads, sound, human_count),
        *_winner(group, "Fewest bytes", traffic, sound, partial(_bytes, group, figure=traffic)),
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
    """Return a figure: uploads or bytes when a run first met its target. Infinite if never, NaN without a target."""
    return lambda run: run.at_target(run.column("uploads") if what == "uploads" else run.traffic, group.goal)


def _bytes(group: Group, value: float, figure: Figure = _traffic) -> str:
    """Return bytes and their ratio to the reference, unless it is the reference itself."""
    times = ratio(value, group.members[group.reference].spread(figure).mean)
    if times == 1 or not times > 0:
        return human_bytes(value)
    return f"{human_bytes(value)}, {human_ratio(times)} the traffic of {_strong(group, group.reference)}"


def _strong(group: Group, index: int) -> str:
    return f"<strong>{escape(group.styles[index].label)}</strong>"


def differences_table(members: Sequence[Repeats], labels: Sequence[str]) -> str:
    """Return a row for each setting that differs among the members."""
    rows = [row for row in _rows([_settings(own) for own in members]) if len(set(row[1:])) > 1]
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
        f"<details><summary>{escape(label)}</summary>{table((), _settings(own).items())}</details>"
        for own, label in zip(members, labels, strict=True)
    )


def _settings(own: Repeats) -> dict[str, str]:
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
