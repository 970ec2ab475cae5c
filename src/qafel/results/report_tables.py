"""The report's tables as HTML: headline figures, configurations and provenance. All text from files is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

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
from qafel.results.report_styles import Style, reference_of
from qafel.results.report_view import goal_of, name_of
from qafel.results.runs import Run

_PROVENANCE = ("task", "algorithm", "seed", "model_sha256", "hidden_state_sha256")


def lead_sentence(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """Say in one sentence which run ends best, and which sends least."""
    if len(runs) < 2:
        return ""
    goal, reference = goal_of(runs), reference_of(runs)
    sign = 1.0 if goal == "min" else -1.0
    finals = np.array([sign * final_of(run) for run in runs])
    parts = []
    if np.isfinite(finals).any():
        best = int(np.argmin(np.where(np.isfinite(finals), finals, np.inf)))
        adjective = "Lowest" if goal == "min" else "Highest"
        figure = human_metric(final_of(runs[best]))
        parts.append(f"{adjective} final {escape(name_of(runs))}: {_strong(styles[best].label)} with {figure}.")
    # A run that broke off or diverged into NaN sent little, but that is no merit.
    totals = np.array([run.traffic_total for run in runs])
    merits = np.where([run.finished for run in runs] & np.isfinite(finals) & np.isfinite(totals), totals, np.inf)
    if np.isfinite(merits).any():
        least = int(np.argmin(merits))
        ratio = human_ratio(_ratio(totals[least], totals[reference]))
        against = "" if least == reference else f", {ratio} the traffic of {_strong(styles[reference].label)}"
        parts.append(f"Least traffic: {_strong(styles[least].label)} with {human_bytes(totals[least])}{against}.")
    return " ".join(parts)


def headline_table(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """One row per run: how well it learned, what it sent, how stale its uploads were, how long it took."""
    reference = reference_of(runs)
    name = f"<span>{escape(name_of(runs))}</span>"
    head = (
        f"final {name}", f"best {name}", "uploads", "up", "broadcast", "received", "traffic ratio",
        "staleness mean", "max", "wall time", "uploads/s",
    )  # fmt: skip
    rows = []
    for run, style in zip(runs, styles, strict=True):
        cells = (
            human_metric(final_of(run)),
            human_metric(best_of(run, goal_of(runs))),
            human_count(run.number("uploads")),
            human_bytes(run.number("upload_bytes_total")),
            human_bytes(run.number("broadcast_bytes_total")),
            human_bytes(run.number("received_bytes_total")),
            human_ratio(_ratio(run.traffic_total, runs[reference].traffic_total)),
            human_count(run.number("staleness_mean")),
            human_count(run.number("staleness_max")),
            human_seconds(run.number("wall_s")),
            human_rate(run.number("updates_per_s")),
        )
        unfinished = "" if run.finished else ' <span class="tag">unfinished</span>'
        label = f'<span class="dot" style="background:{style.colour}"></span>{escape(style.label)}{unfinished}'
        rows.append(f'<tr><th scope="row">{label}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    columns = "".join(f'<th scope="col">{title}</th>' for title in ("run", *head))
    return scrolling(f'<table class="figures"><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table>')


def differences_table(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """The settings in which the runs differ, one row each."""
    configs = [flatten(run.config) for run in runs]
    keys = [key for key in _keys(configs) if len({config.get(key, UNKNOWN) for config in configs}) > 1]
    if not keys:
        return "<p>The runs have one and the same configuration.</p>"
    return _by_run(keys, configs, styles)


def provenance_table(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """What it takes to repeat a run and to recognise its result: seed, versions, digests."""
    facts = []
    for run in runs:
        summary = flatten(run.summary)
        chosen = {key: summary[key] for key in _PROVENANCE if key in summary}
        chosen |= {key: value for key, value in summary.items() if "version" in key.split(".")[0]}
        facts.append({"directory": run.path.resolve().name} | chosen)
    return _by_run(_keys(facts), facts, styles)


def full_configurations(runs: Sequence[Run], styles: Sequence[Style]) -> str:
    """Every setting of every run, folded away."""
    folded = []
    for run, style in zip(runs, styles, strict=True):
        rows = "".join(
            f'<tr><th scope="row">{escape(key)}</th><td class="text">{escape(value)}</td></tr>'
            for key, value in flatten(run.config).items()
        )
        table = scrolling(f"<table><tbody>{rows}</tbody></table>")
        folded.append(f"<details><summary>{escape(style.label)}</summary>{table}</details>")
    return "".join(folded)


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


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys and printable values of nested tables."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return flat


def _by_run(keys: Sequence[str], facts: Sequence[Mapping[str, str]], styles: Sequence[Style]) -> str:
    head = "".join(f'<th scope="col">{escape(style.label)}</th>' for style in styles)
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f'<td class="text">{escape(fact.get(key, UNKNOWN))}</td>' for fact in facts)
        + "</tr>"
        for key in keys
    )
    return scrolling(f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>")


def _keys(facts: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for fact in facts for key in fact))


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference > 0 else math.nan


def _strong(text: str) -> str:
    return f"<strong>{escape(text)}</strong>"
