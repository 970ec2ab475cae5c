"""The report's tables and what it says first: what each run learned, sent and took, its settings and provenance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from qafel.drawing.chart import Style
from qafel.drawing.page import Html, table
from qafel.report.groups import Group
from qafel.runs.reading import Run
from qafel.text import UNKNOWN, human_bytes, human_count, human_metric, human_rate, human_ratio, human_seconds

_SENT = (
    *("uploads", "up", "broadcast", "received", "received by all"),
    *("traffic ratio", "staleness mean", "max", "wall time", "uploads/s"),
)

_PROVENANCE = ("task", "algorithm", "seed", "model_sha256", "hidden_state_sha256")


def headline_table(group: Group) -> str:
    """How well each run learned, what it took to the target, what it sent, how stale its uploads were."""
    name = f'<span class="{"short" if len(group.metric) <= 12 else "long"}">{escape(group.metric)}</span>'
    to_target = ("uploads to target", "bytes to target") if group.targets else ()
    columns = ("run", Html(f"final {name}"), Html(f"best {name}"), *to_target, *_SENT)
    rows = (_row(group, run, style) for run, style in zip(group.runs, group.styles, strict=True))
    return table(columns, rows, numbers=True)


def _row(group: Group, run: Run, style: Style) -> list[str]:
    reference = group.runs[group.reference]
    cells = [_name(run, style), human_metric(final_of(run)), human_metric(best_of(run, group.goal))]
    if group.targets:
        uploads, traffic = _to_target(run, group)
        cells += [_or_not(uploads, human_count(uploads)), _or_not(traffic, human_bytes(traffic))]
    return [
        *cells,
        human_count(run.number("uploads")),
        human_bytes(run.number("upload_bytes_total")),
        human_bytes(run.number("broadcast_bytes_total")),
        human_bytes(run.number("received_bytes_total")),
        human_bytes(run.number("received_by_all_bytes_total")),
        human_ratio(ratio(run.traffic_total, reference.traffic_total)),
        human_count(run.number("staleness_mean")),
        human_count(run.number("staleness_max")),
        human_seconds(run.number("wall_s")),
        human_rate(run.number("updates_per_s")),
    ]


def _name(run: Run, style: Style) -> Html:
    word = "diverged" if run.diverged else "" if run.finished else "unfinished"
    tag = f' <span class="tag">{word}</span>' if word else ""
    return Html(f'<span class="dot" style="background:{style.colour}"></span>{escape(style.label)}{tag}')


def _or_not(value: float, written: str) -> str:
    return "not reached" if math.isinf(value) else UNKNOWN if math.isnan(value) else written


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
    """Say in HTML which run reached the target with least, which ended best, which sent least; empty for a single run.

    A run that diverged is never named best, nor is one that broke off named for having sent little.
    """
    if len(group.runs) < 2:
        return ""
    sound = [not run.diverged for run in group.runs]
    said = _reached(group, sound)
    sign, lowest = (1.0, "Lowest") if group.goal == "min" else (-1.0, "Highest")
    finals, totals = [final_of(run) for run in group.runs], [run.traffic_total for run in group.runs]
    ended = [run.finished and math.isfinite(final) for run, final in zip(group.runs, finals, strict=True)]
    best = _smallest([sign * final for final in finals], sound)
    least = None if said else _smallest(totals, [all(merits) for merits in zip(sound, ended, strict=True)])
    if best is not None:
        final = human_metric(finals[best])
        said.append(f"{lowest} final {escape(group.metric)}: {_strong(group, best)} with {final}.")
    if least is not None:
        said.append(f"Least traffic: {_strong(group, least)} with {_bytes(group, totals, least)}.")
    return " ".join(said)


def _reached(group: Group, sound: Sequence[bool]) -> list[str]:
    """The fewest uploads and bytes to the target that all runs share; empty if there is none, or none reached it."""
    uploads, traffic = zip(*(_to_target(run, group) for run in group.runs), strict=True)
    first, least = _smallest(uploads, sound), _smallest(traffic, sound)
    if group.shared_target is None or first is None:
        return []
    goal = f"{escape(group.metric)} {'≤' if group.goal == 'min' else '≥'} {group.shared_target:g}"
    said = [f"Fewest uploads to {goal}: {_strong(group, first)} with {human_count(uploads[first])}."]
    if least is not None:
        said.append(f"Fewest bytes: {_strong(group, least)} with {_bytes(group, traffic, least)}.")
    return said


def _to_target(run: Run, group: Group) -> tuple[float, float]:
    """Uploads and traffic of a run when it first met its target; infinite if it never did, NaN without a target."""
    return run.at_target(run.column("uploads"), group.goal), run.at_target(run.traffic, group.goal)


def _bytes(group: Group, figures: Sequence[float], index: int) -> str:
    """Bytes, and their ratio to those of the reference."""
    times = ratio(figures[index], figures[group.reference])
    if index == group.reference or not times > 0:
        return human_bytes(figures[index])
    return f"{human_bytes(figures[index])}, {human_ratio(times)} the traffic of {_strong(group, group.reference)}"


def _smallest(figures: Sequence[float], eligible: Sequence[bool]) -> int | None:
    """The index of the smallest finite figure among the eligible; the first of equals, None if there is none."""
    fair = [index for index, figure in enumerate(figures) if eligible[index] and math.isfinite(figure)]
    return min(fair, key=figures.__getitem__, default=None)


def _strong(group: Group, index: int) -> str:
    return f"<strong>{escape(group.styles[index].label)}</strong>"


def differences_table(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """The settings in which the runs differ, one row each."""
    rows = [row for row in _rows([flatten(run.config) for run in runs]) if len(set(row[1:])) > 1]
    same = "<p>The runs have one and the same configuration.</p>"
    return table(["", *(style.label for style in styles)], rows) if rows else same


def provenance_table(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """What it takes to repeat a run and to recognise its result: seed, versions, digests."""
    facts = []
    for run in runs:
        summary = flatten(run.summary)
        chosen = {key: summary[key] for key in _PROVENANCE if key in summary}
        chosen |= {key: value for key, value in summary.items() if "version" in key.split(".")[0]}
        facts.append({"directory": run.path.resolve().name} | chosen)
    return table(["", *(style.label for style in styles)], _rows(facts))


def full_configurations(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """Every setting of every run, folded away."""
    return "".join(
        f"<details><summary>{escape(style.label)}</summary>{table((), flatten(run.config).items())}</details>"
        for run, style in zip(runs, styles, strict=True)
    )


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys and printable values of nested tables."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return flat


def _rows(facts: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A row for every key of the facts: the key, and what each of them says."""
    keys = dict.fromkeys(key for fact in facts for key in fact)
    return [[key, *(fact.get(key, UNKNOWN) for fact in facts)] for key in keys]
