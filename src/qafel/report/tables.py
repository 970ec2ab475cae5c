"""The report's tables and what it says first: what each run learned, sent and took, its settings and provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
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

_PROVENANCE = ("task", "algorithm", "seed", "model_sha256", "hidden_state_sha256")


def headline_table(group: Group) -> str:
    """How well the runs learned, what it took to the target, what they sent, how stale uploads were; a row per label.

    What tells methods apart is a mean ± standard deviation over seeds, the rest a mean.
    """
    name = f'<span class="{"short" if len(group.metric) <= 12 else "long"}">{escape(group.metric)}</span>'
    to_target = ("uploads to target", "bytes to target") if group.targets else ()
    seeds = ("seeds",) if group.repeated else ()
    columns = ("run", *seeds, Html(f"final {name}"), Html(f"best {name}"), *to_target, *_SENT)
    rows = (_row(group, own, style) for own, style in zip(group.members, group.styles, strict=True))
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
    said = f"{some} of {count} {word}" if count > 1 else word
    tag = f' <span class="tag">{said}</span>' if some else ""
    return Html(f'<span class="dot" style="background:{style.colour}"></span>{escape(style.label)}{tag}')


def _metric(spread: Spread) -> str:
    return spread.text(human_metric) if math.isfinite(spread.mean) else human_metric(spread.mean)


def _or_not(own: Repeats, figure: Figure, show: Callable[[float], str]) -> str:
    """What it took to the target, if all seeds reached it; else how many did."""
    reached = [math.isfinite(figure(run)) for run in own.ended]
    if not any(math.isinf(figure(run)) for run in own.ended):
        return own.spread(figure).text(show)
    return f"reached by {sum(reached)} of {len(reached)}" if any(reached) else "not reached"


def final_of(run: Run) -> float:
    """The final metric: as the summary says, else that of the last row."""
    stated = run.number("metric_final")
    return float(run.column("metric")[-1]) if math.isnan(stated) else stated


def best_of(run: Run, goal: str) -> float:
    """The best metric: as the summary says, else the best of all rows."""
    stated = run.number("metric_best")
    metric = run.column("metric")
    metric = metric[np.isfinite(metric)]
    if not math.isnan(stated) or not metric.size:
        return stated
    return float(metric.min() if goal == "min" else metric.max())


def ratio(value: float, reference: float) -> float:
    """One amount relative to another, NaN if that is unknown."""
    return value / reference if 0 < reference < math.inf else math.nan


def lead_sentence(group: Group) -> str:
    """Say in HTML which runs reached the target with least, which ended best, which sent least; empty for a single one.

    A winner is named only where its range over seeds is apart from all others'. Runs that diverged are never named
    best, nor are such that broke off named for having sent little.
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
    """The fewest uploads and bytes to the target that all runs share; empty if there is none, or none reached it."""
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
    """A sentence: who of the eligible is best by `what`, or whose ranges over seeds are not apart; none if unknown."""
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
    """The labels of these, the first few in words: a, b and 3 others."""
    names = [_strong(group, index) for index in indices]
    names = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} others"]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def to_target(group: Group, what: Literal["uploads", "bytes"]) -> Figure:
    """Uploads or traffic of a run when it first met its target; infinite if it never did, NaN without a target."""
    return lambda run: run.at_target(run.column("uploads") if what == "uploads" else run.traffic, group.goal)


def _traffic(run: Run) -> float:
    return run.traffic_total


def _bytes(group: Group, value: float, figure: Figure = _traffic) -> str:
    """Bytes, and their ratio to those of the reference, unless they are its own."""
    times = ratio(value, group.members[group.reference].spread(figure).mean)
    if times == 1 or not times > 0:
        return human_bytes(value)
    return f"{human_bytes(value)}, {human_ratio(times)} the traffic of {_strong(group, group.reference)}"


def _strong(group: Group, index: int) -> str:
    return f"<strong>{escape(group.styles[index].label)}</strong>"


def differences_table(members: Sequence[Repeats], labels: Sequence[str]) -> str:
    """The settings in which the runs differ, one row each; their own seeds side by side."""
    rows = [row for row in _rows([_settings(own) for own in members]) if len(set(row[1:])) > 1]
    same = "<p>The runs have one and the same configuration.</p>"
    return table(["", *labels], rows) if rows else same


def provenance_table(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """What it takes to repeat a run and to recognise its result: seed, versions, digests."""
    facts = []
    for run in runs:
        summary = flatten(run.summary)
        chosen = {key: summary[key] for key in _PROVENANCE if key in summary}
        chosen |= {key: value for key, value in summary.items() if "version" in key.split(".")[0]}
        facts.append({"directory": folder_name(run.path)} | chosen)
    return table(["", *labels], _rows(facts))


def full_configurations(members: Sequence[Repeats], labels: Sequence[str]) -> str:
    """Every setting of all runs, folded away."""
    return "".join(
        f"<details><summary>{escape(label)}</summary>{table((), _settings(own).items())}</details>"
        for own, label in zip(members, labels, strict=True)
    )


def _settings(own: Repeats) -> dict[str, str]:
    """The settings of runs that differ only by seed."""
    settings = flatten(own.runs[0].config)
    if len(own.runs) > 1:
        seeds = sorted((run.config.get("seed", run.summary.get("seed")) for run in own.runs), key=str)
        settings |= {"seed": ", ".join(map(str, seeds))}
        if "name" in settings:
            settings["name"] = own.name
    return settings


def _rows(facts: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A row for every key of the facts: the key, and what each of them says."""
    keys = dict.fromkeys(key for fact in facts for key in fact)
    return [[key, *(fact.get(key, UNKNOWN) for fact in facts)] for key in keys]
