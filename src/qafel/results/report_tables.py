"""The report's tables of configurations and provenance, as HTML. All text from files is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from qafel.results.report_numbers import UNKNOWN
from qafel.results.report_parts import scrolling
from qafel.results.report_styles import Style
from qafel.results.runs import Run

_PROVENANCE = ("task", "algorithm", "seed", "model_sha256", "hidden_state_sha256")


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
