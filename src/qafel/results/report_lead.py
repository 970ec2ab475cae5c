"""What the report says first: which run reached the target with least, which ended best, which sent least.

A run that diverged is never praised, nor one that broke off for having sent little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from qafel.results.report_groups import Group
from qafel.results.report_headline import bytes_to_target, final_of, ratio, uploads_to_target
from qafel.results.report_numbers import human_bytes, human_count, human_metric, human_ratio


def lead_sentence(group: Group) -> str:
    """Say it in a few sentences of HTML; nothing of a single run."""
    if len(group.runs) < 2:
        return ""
    reached = _reached(group)
    return " ".join(filter(None, (reached, _ends_best(group), "" if reached else _sends_least(group))))


def _reached(group: Group) -> str:
    """The fewest uploads and bytes to the target that all runs share; empty if there is none, or none reached it."""
    target = group.shared_target
    if target is None:
        return ""
    uploads = [uploads_to_target(group, index) for index in range(len(group.runs))]
    traffic = [bytes_to_target(group, index) for index in range(len(group.runs))]
    first, least = (_smallest(figures, _sound(group)) for figures in (uploads, traffic))
    if first is None:
        return ""
    sign = "≤" if group.goal == "min" else "≥"
    goal = f"{escape(group.metric)} {sign} {target:g}"
    text = f"Fewest uploads to {goal}: {_strong(group, first)} with {human_count(uploads[first])}."
    if least is None:
        return text
    return f"{text} Fewest bytes: {_strong(group, least)} with {_bytes(group, traffic, least)}."


def _ends_best(group: Group) -> str:
    sign = 1.0 if group.goal == "min" else -1.0
    best = _smallest([sign * final_of(run) for run in group.runs], _sound(group))
    if best is None:
        return ""
    adjective = "Lowest" if group.goal == "min" else "Highest"
    figure = human_metric(final_of(group.runs[best]))
    return f"{adjective} final {escape(group.metric)}: {_strong(group, best)} with {figure}."


def _sends_least(group: Group) -> str:
    totals = [run.traffic_total for run in group.runs]
    merits = [
        sound and run.finished and math.isfinite(final_of(run))
        for sound, run in zip(_sound(group), group.runs, strict=True)
    ]
    least = _smallest(totals, merits)
    return "" if least is None else f"Least traffic: {_strong(group, least)} with {_bytes(group, totals, least)}."


def _bytes(group: Group, figures: Sequence[float], index: int) -> str:
    """Bytes, and what they are of the reference's."""
    reference = group.reference
    times = ratio(figures[index], figures[reference])
    if index == reference or not times > 0:
        return human_bytes(figures[index])
    return f"{human_bytes(figures[index])}, {human_ratio(times)} the traffic of {_strong(group, reference)}"


def _sound(group: Group) -> list[bool]:
    return [not run.diverged for run in group.runs]


def _smallest(figures: Sequence[float], eligible: Sequence[bool]) -> int | None:
    """Where the smallest finite figure of those is; the first, if there are several."""
    fair = np.where(np.array(eligible) & np.isfinite(figures), figures, np.inf)
    return int(np.argmin(fair)) if np.isfinite(fair).any() else None


def _strong(group: Group, index: int) -> str:
    return f"<strong>{escape(group.styles[index].label)}</strong>"
