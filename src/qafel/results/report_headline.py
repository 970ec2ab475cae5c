"""The report's first table, one for each group: a row per run, with what it learned, sent and took."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from qafel.results.report_groups import Group
from qafel.results.report_numbers import (
    UNKNOWN,
    human_bytes,
    human_count,
    human_metric,
    human_rate,
    human_ratio,
    human_seconds,
)
from qafel.results.report_parts import scrolling
from qafel.results.report_styles import Style
from qafel.results.runs import Run

_SENT = ("uploads", "up", "broadcast", "received", "traffic ratio", "staleness mean", "max", "wall time", "uploads/s")


def headline_table(group: Group) -> str:
    """How well each run learned, what it took to the target, what it sent, how stale its uploads were."""
    name = f'<span class="{"short" if len(group.metric) <= 12 else "long"}">{escape(group.metric)}</span>'
    to_target = ("uploads to target", "bytes to target") if group.targets else ()
    columns = ("run", f"final {name}", f"best {name}", *to_target, *_SENT)
    head = "".join(f'<th scope="col">{title}</th>' for title in columns)
    rows = "".join(_row(group, index) for index in range(len(group.runs)))
    return scrolling(f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>')


def _row(group: Group, index: int) -> str:
    run, reference = group.runs[index], group.runs[group.reference]
    cells = [human_metric(final_of(run)), human_metric(best_of(run, group.goal))]
    if group.targets:
        cells.append(_or_not(uploads_to_target(group, index), human_count(uploads_to_target(group, index))))
        cells.append(_or_not(bytes_to_target(group, index), human_bytes(bytes_to_target(group, index))))
    cells += [
        human_count(run.number("uploads")),
        human_bytes(run.number("upload_bytes_total")),
        human_bytes(run.number("broadcast_bytes_total")),
        human_bytes(run.number("received_bytes_total")),
        human_ratio(ratio(run.traffic_total, reference.traffic_total)),
        human_count(run.number("staleness_mean")),
        human_count(run.number("staleness_max")),
        human_seconds(run.number("wall_s")),
        human_rate(run.number("updates_per_s")),
    ]
    figures = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{_name(run, group.styles[index])}</th>{figures}</tr>'


def _name(run: Run, style: Style) -> str:
    word = "diverged" if run.diverged else "" if run.finished else "unfinished"
    tag = f' <span class="tag">{word}</span>' if word else ""
    return f'<span class="dot" style="background:{style.colour}"></span>{escape(style.label)}{tag}'


def _or_not(value: float, written: str) -> str:
    return "not reached" if math.isinf(value) else UNKNOWN if math.isnan(value) else written


def uploads_to_target(group: Group, index: int) -> float:
    """Uploads at the first evaluation that meets the run's target; infinite if none does, NaN without a target."""
    run = group.runs[index]
    return run.at_target(run.column("uploads"), group.goal)


def bytes_to_target(group: Group, index: int) -> float:
    """Bytes uploaded and broadcast until then."""
    run = group.runs[index]
    return run.at_target(run.traffic, group.goal)


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
    """One amount relative to another, NaN where that is not known."""
    return value / reference if 0 < reference < math.inf else math.nan
