"""Ours: suboptimality against all bytes sent, for the whole family of quantizers in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from qafel.drawing.chart import Axis, Panel, Series
from qafel.paper.entry import Change, Claim, Entry, Scale, Verdict, mushrooms
from qafel.paper.measured import Measured, Missing, Spread, first_below, paired, settled, traffic
from qafel.paper.tables import Heading, Table, bytes_heading, metric_heading
from qafel.paper.targets import curve, ratios
from qafel.quantizers import parse
from qafel.runs.reading import Run
from qafel.sweeps.run import Planned

# Which pairs of quantizers are run on mushrooms, in families.


REFERENCE = "none"


FAMILIES: dict[str, dict[str, tuple[str, str]]] = {
    "none": {"none": ("none", "none")},
    "qsgd": {
        "qsgd:8": ("qsgd:8", "qsgd:8"),
        "qsgd:6": ("qsgd:6", "qsgd:6"),
        "qsgd:4": ("qsgd:4", "qsgd:4"),
        "qsgd:4+zstd": ("qsgd:4+zstd", "qsgd:4+zstd"),
        "qsgd:3 / scaled": ("qsgd:3", "scaled:qsgd:3"),
        "qsgd:2 / scaled": ("qsgd:2", "scaled:qsgd:2"),
    },
    "dithered": {
        "dithered:6": ("dithered:6", "dithered:6"),
        "dithered:4": ("dithered:4", "dithered:4"),
        "dithered:3": ("dithered:3", "dithered:3"),
    },
    "rotated": {
        "rotated:4": ("rotated:4", "rotated:4"),
        "rotated:3": ("rotated:3", "rotated:3"),
        "rotated:2 / scaled": ("rotated:2", "scaled:rotated:2"),
    },
    "sparse": {
        "qsgd:4 / top_k:0.1": ("qsgd:4", "top_k:0.1"),
        "qsgd:4 / top_k:0.01": ("qsgd:4", "top_k:0.01"),
        "rand_k:0.25 / top_k:0.25": ("rand_k:0.25", "top_k:0.25"),
    },
    "sign": {"qsgd:4 / sign": ("qsgd:4", "sign"), "qsgd:2 / sign": ("qsgd:2", "sign")},
}
"""Client and server quantizer by label, in families; one name for both where they are the same.

Without `affine`: it leaves tensors of one dimension as they are, and this model is one.
"""


PAIRS = {label: pair for family in FAMILIES.values() for label, pair in family.items()}


ON_THE_WAY = {
    "none": "none", "qsgd": "qsgd:4", "dithered": "dithered:4", "rotated": "rotated:3",
    "sparse": "qsgd:4 / top_k:0.01", "sign": "qsgd:4 / sign",
}  # fmt: skip
"""Of every family the pair whose curve is shown."""


def plan(scale: Scale) -> list[Planned]:
    return mushrooms(
        scale,
        {
            label: (
                "mushrooms-qafel-4bit",
                ()
                if (client, server) == ("qsgd:4", "qsgd:4")
                else (
                    Change(
                        _tag(client, server),
                        (f'algorithm.client_quantizer="{client}"', f'algorithm.server_quantizer="{server}"'),
                    ),
                ),
            )
            for label, (client, server) in PAIRS.items()
        },
    )


def _tag(client: str, server: str) -> str:
    text = client if client == server else f"{client}-{server}"
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in text)


LEVELS = (0.1, 0.01)
"""Suboptimalities to which bytes are counted."""


WITHIN = 1.1
"""Up to a tenth more suboptimality counts as the same end."""


def bytes_to(level: float, run: Run) -> float:
    """All bytes until f(x) − f* is at or below a level."""
    return first_below(run, level, "upload_bytes_total") + first_below(run, level, "broadcast_bytes_total")


_to_target = partial(bytes_to, LEVELS[-1])


def _sent(run: Run) -> float:
    return run.traffic_total


def _table(measured: Measured) -> Table:
    headings = (
        Heading("client / server"),
        metric_heading("δ_c"),
        metric_heading("δ_s"),
        metric_heading("f(x) − f* in the end"),
        bytes_heading("all bytes"),
        *(bytes_heading(f"bytes to {level:g}") for level in LEVELS),
        Heading(f"of FedBuff's to {LEVELS[-1]:g}", lambda value: f"{value:.3f}×"),
        Heading("on the front"),
    )
    front = _front(measured)
    rows = []
    for label in measured.methods:
        size = int(measured.runs(label)[0].number("dimension"))
        rows.append(
            (
                label,
                *(parse(spec).delta(size) for spec in PAIRS[label]),
                measured.spread(settled, label),
                measured.spread(_sent, label).mean,
                *(measured.spread(partial(bytes_to, level), label) for level in LEVELS),
                _of_fedbuff(measured, label),
                "yes" if label in front else "",
            )
        )
    return Table(headings, tuple(rows))


def _of_fedbuff(measured: Measured, label: str) -> Spread:
    """Bytes to the last level over FedBuff's, seed by seed; unknown where there is nothing to compare."""
    try:
        found = paired(_to_target, measured.planned(label), measured.planned(REFERENCE))
    except Missing:
        return Spread.of(())
    return Spread.of(ours / theirs if math.isfinite(theirs) else math.nan for ours, theirs in found)


def _points(measured: Measured) -> dict[str, tuple[Spread, Spread]]:
    """All bytes and settled suboptimality of every pair that stayed finite."""
    found = {label: (measured.spread(_sent, label), measured.spread(settled, label)) for label in measured.methods}
    return {label: point for label, point in found.items() if math.isfinite(point[1].mean)}


def _front(measured: Measured) -> list[str]:
    """The pairs that no other beats, by bytes."""
    points = _points(measured)
    found = [label for label in points if not any(_beats(measured, other, label) for other in points)]
    return sorted(found, key=lambda label: points[label][0].mean)


def _beats(measured: Measured, label: str, other: str) -> bool:
    """Whether a pair sends less than another and ends as low, or lower for as much.

    Two ends are equal where their ranges over the common seeds overlap: noise puts no pair on the front.
    """
    try:
        sent, ends = (paired(figure, measured.planned(label), measured.planned(other)) for figure in (_sent, settled))
    except Missing:
        return False
    saved = sum(theirs - ours for ours, theirs in sent)
    ours, theirs = (Spread.of(values) for values in zip(*ends, strict=True))
    return ours.high < theirs.low if saved == 0 else saved > 0 and ours.low <= theirs.high


def _panels(measured: Measured) -> list[Panel]:
    points, best = _points(measured), _front(measured)
    scatter = [
        _scatter(family, "points", {label: points[label] for label in pairs if label in points})
        for family, pairs in FAMILIES.items()
    ]
    front = replace(_scatter("Pareto front", "rings", {label: points[label] for label in best}), low=None, high=None)
    across = Axis("all bytes, up and broadcast", log=True, unit="B")
    way = {family: label for family, label in ON_THE_WAY.items() if measured.has(label)}
    curves = [curve(family, measured.runs(label), traffic, across) for family, label in way.items()]
    uploads = f"after {measured.runs()[0].number('uploads'):,.0f} uploads"
    panels = (
        ("front", uploads, "f(x) − f* in the end", (*scatter, front), f"On the front: {', '.join(best)}."),
        ("curves", "on the way", "f(x) − f*", curves, f"On the way: {', '.join(way.values())}."),
    )
    shown = [
        Panel(key, title, across, Axis(y, log=True), tuple(one for one in series if len(one.x)), note)
        for key, title, y, series, note in panels
    ]
    return [panel for panel in shown if panel.series]


def _scatter(label: str, kind: Literal["points", "rings"], points: Mapping[str, tuple[Spread, Spread]]) -> Series:
    sent, ends = [sent for sent, _ in points.values()], [end for _, end in points.values()]
    return Series(
        label,
        np.array([spread.mean for spread in sent]),
        np.array([spread.mean for spread in ends]),
        np.array([spread.low for spread in ends]),
        np.array([spread.high for spread in ends]),
        kind=kind,
        hover=tuple(points),
    )


def _notes(measured: Measured) -> tuple[str, ...]:
    return (
        "On the front: no other pair ends as low with fewer bytes. Ends whose ranges over the common seeds overlap "
        "count as equal.",
    )


def _frugal(measured: Measured) -> Verdict:
    """Most pairs need fewer bytes than FedBuff to the same level with every seed, and end within a tenth of it."""
    if not measured.has(REFERENCE):
        raise Missing("the runs without quantizers are missing")
    pairs = [label for label in PAIRS if label != REFERENCE]
    judged = {label: found for label in pairs if (found := _saves(measured, label)) is not None}
    good, unknown, half = sum(judged.values()), len(pairs) - len(judged), len(pairs) / 2
    if good <= half < good + unknown:
        raise Missing(f"{unknown} of {len(pairs)} pairs have no seed in common with the runs without quantizers")
    used = [_of_fedbuff(measured, label).mean for label in judged if judged[label]]
    times = f", with {min(used):.2f} to {max(used):.2f} times the bytes" if used else ""
    return Verdict.of(
        good > half,
        f"{good} of {len(pairs)} pairs need fewer bytes to {LEVELS[-1]:g} and end within a tenth of FedBuff{times}",
    )


def _saves(measured: Measured, label: str) -> bool | None:
    """Whether a pair does with every seed; None if it has none in common with FedBuff."""
    if not (measured.has(label) and (share := _of_fedbuff(measured, label)).count):
        return None
    return share.high < 1 and max(ratios(measured, label, REFERENCE)) <= WITHIN


ENTRY = Entry(
    "pareto",
    "Suboptimality against all bytes, for the family of quantizers",
    "ours, not in the paper",
    "8 min",
    plan,
    _table,
    _panels,
    (Claim("Section IV-B", "QAFeL generally uses fewer bytes than FedBuff (here: most pairs of quantizers)", _frugal),),
    _notes,
)
