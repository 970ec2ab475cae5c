"""Ours: suboptimality against all bytes sent, for the whole family of quantizers in both directions."""

from __future__ import annotations

import math

import numpy as np

from qafel.experiments.entry import Claim, Entry, Verdict
from qafel.experiments.measured import Measured, Missing, band, first_below, settled, traffic
from qafel.experiments.panels import Axis, Panel, Series
from qafel.experiments.plan import Change, Planned, Scale, mushrooms
from qafel.experiments.tables import Heading, Table, bytes_heading, metric_heading, ratio_heading
from qafel.quantizers import parse
from qafel.results.runs import Run

REFERENCE = "none"
LEVELS = (0.1, 0.01)
"""Suboptimalities to which bytes are counted."""
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
_ON_THE_WAY = {
    "none": "none", "qsgd": "qsgd:4", "dithered": "dithered:4", "rotated": "rotated:3",
    "sparse": "qsgd:4 / top_k:0.01", "sign": "qsgd:4 / sign",
}  # fmt: skip


def _plan(scale: Scale) -> list[Planned]:
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


def bytes_to(level: float, run: Run) -> float:
    """All bytes until f(x) − f* is at or below a level."""
    return first_below(run, level, "upload_bytes_total") + first_below(run, level, "broadcast_bytes_total")


def _table(measured: Measured) -> Table:
    headings = (
        Heading("client / server"),
        metric_heading("δ_c"),
        metric_heading("δ_s"),
        metric_heading("f(x) − f* in the end"),
        bytes_heading("all bytes"),
        *(bytes_heading(f"bytes to {level:g}") for level in LEVELS),
        ratio_heading(f"of FedBuff's to {LEVELS[-1]:g}"),
        Heading("on the front"),
    )
    front = _front(measured)
    rows = []
    for label in measured.methods:
        run = measured.runs(label)[0]
        size = int(run.number("dimension"))
        to = [measured.spread(lambda run, level=level: bytes_to(level, run), label) for level in LEVELS]  # type: ignore[misc]
        rows.append(
            (
                label,
                *(parse(spec).delta(size) for spec in PAIRS[label]),
                measured.spread(settled, label),
                measured.spread(lambda run: run.traffic_total, label).mean,
                *(spread.mean for spread in to),
                to[-1].mean / _reference(measured, LEVELS[-1]),
                "yes" if label in front else "",
            )
        )
    return Table(headings, tuple(rows))


def _reference(measured: Measured, level: float) -> float:
    return measured.spread(lambda run: bytes_to(level, run), REFERENCE).mean if measured.has(REFERENCE) else math.nan


def _points(measured: Measured) -> dict[str, tuple[float, float]]:
    """All bytes and settled suboptimality of every pair, means over seeds."""
    return {
        label: (
            measured.spread(lambda run: run.traffic_total, label).mean,
            measured.spread(settled, label).mean,
        )
        for label in measured.methods
    }


def _front(measured: Measured) -> list[str]:
    """The pairs that no other beats in bytes and suboptimality both, by bytes."""
    points = {label: point for label, point in _points(measured).items() if math.isfinite(point[1])}
    best, front = math.inf, []
    for label, (_, level) in sorted(points.items(), key=lambda item: item[1]):
        if level < best:
            best = level
            front.append(label)
    return front


def _panels(measured: Measured) -> tuple[Panel, ...]:
    points = {label: point for label, point in _points(measured).items() if math.isfinite(point[1])}
    scatter = [
        _scatter(measured, family, {label: points[label] for label in pairs if label in points})
        for family, pairs in FAMILIES.items()
    ]
    best = _front(measured)
    front = np.array([points[label] for label in best])
    scatter.append(Series("Pareto front", front[:, 0], front[:, 1], kind="reference", texts=tuple(best)))
    curves = [
        Series(family, curve.x[1:], curve.mean[1:])
        for family, label in _ON_THE_WAY.items()
        if measured.has(label) and (curve := band(measured.runs(label), traffic))
    ]
    uploads = measured.runs()[0].number("uploads")
    across = Axis("all bytes, up and broadcast", log=True, unit="B")
    note = f"On the way: {', '.join(_ON_THE_WAY.values())}."
    return (
        Panel("front", f"after {uploads:,.0f} uploads", across, Axis("f(x) − f* in the end", log=True), tuple(scatter)),
        Panel("curves", "on the way", across, Axis("f(x) − f*", log=True), tuple(curves), note),
    )


def _scatter(measured: Measured, family: str, points: dict[str, tuple[float, float]]) -> Series:
    spreads = [measured.spread(settled, label) for label in points]
    return Series(
        family,
        np.array([sent for sent, _ in points.values()]),
        np.array([end for _, end in points.values()]),
        np.array([spread.low for spread in spreads]),
        np.array([spread.high for spread in spreads]),
        kind="points",
        hover=tuple(points),
    )


def _frugal(measured: Measured) -> Verdict:
    """Some pair reaches FedBuff's suboptimality, up to a tenth, with less than a third of its bytes."""
    points = _points(measured)
    if REFERENCE not in points:
        raise Missing("the runs without quantizers are missing")
    sent, level = points[REFERENCE]
    good = {label: sent / own for label, (own, end) in points.items() if end <= 1.1 * level and label != REFERENCE}
    if not good:
        return Verdict.of(False, "no pair ends within a tenth of FedBuff's suboptimality")
    best = max(good, key=lambda label: good[label])
    return Verdict.of(good[best] > 3, f"{best} ends within a tenth of FedBuff with {good[best]:.2f} times fewer bytes")


ENTRY = Entry(
    "pareto",
    "Suboptimality against all bytes, for the family of quantizers",
    "ours, not in the paper",
    "8 min",
    _plan,
    _table,
    _panels,
    (Claim("Section IV-B", "QAFeL generally uses fewer bytes than FedBuff (here: a third, to the same end)", _frugal),),
)
