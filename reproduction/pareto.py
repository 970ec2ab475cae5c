"""Additional: suboptimality against all bytes, for pairs of quantizers of all families."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from qafel.drawing.chart import Axis, Panel, Series
from qafel.quantizers import parse
from qafel.runs import Run, Spread
from qafel.search import RunSpec
from qafel.text import human_bytes
from reproduction.comparison import (
    EntryRuns,
    NotComparable,
    Paired,
    at_level,
    end_ratio,
    if_comparable,
    level_ratio,
    settled,
    traffic,
)
from reproduction.display import Table, TableColumn, curve, not_empty, points
from reproduction.entry import Change, Claim, Entry, Extent, Verdict, mushrooms
from reproduction.statistics import every

REFERENCE = "none"


def _both(*specs: str) -> dict[str, tuple[str, str]]:
    return {spec: (spec, spec) for spec in specs}


FAMILIES: dict[str, dict[str, tuple[str, str]]] = {
    "none": _both("none"),
    "qsgd": _both("qsgd:8", "qsgd:6", "qsgd:4", "qsgd:4+zstd")
    | {"qsgd:3 / scaled": ("qsgd:3", "scaled:qsgd:3"), "qsgd:2 / scaled": ("qsgd:2", "scaled:qsgd:2")},
    "dithered": _both("dithered:6", "dithered:4", "dithered:3"),
    "rotated": _both("rotated:4", "rotated:3") | {"rotated:2 / scaled": ("rotated:2", "scaled:rotated:2")},
    "sparse": {
        "qsgd:4 / top_k:0.1": ("qsgd:4", "top_k:0.1"),
        "qsgd:4 / top_k:0.01": ("qsgd:4", "top_k:0.01"),
        "rand_k:0.25 / top_k:0.25": ("rand_k:0.25", "top_k:0.25"),
    },
    "sign": {"qsgd:4 / sign": ("qsgd:4", "sign"), "qsgd:2 / sign": ("qsgd:2", "sign")},
}
"""Client and server quantizer by label, in families. Equal quantizers have one name.

`affine` is left out: it does not quantize one-dimensional tensors, and this model is one.
"""

PAIRS = {label: pair for family in FAMILIES.values() for label, pair in family.items()}

ON_THE_WAY = {
    "none": "none", "qsgd": "qsgd:4", "dithered": "dithered:4", "rotated": "rotated:3",
    "sparse": "qsgd:4 / top_k:0.01", "sign": "qsgd:4 / sign",
}  # fmt: skip
"""The pair of each family in the panel of curves."""

LEVELS = (0.1, 0.01)
"""The suboptimalities where bytes are counted."""

WITHIN = 1.1
"""The factor in suboptimality that counts as the same end."""


def _plan(extent: Extent) -> list[RunSpec]:
    # The recipe has qsgd:4.
    changes = {label: [] if label == "qsgd:4" else [pair_change(*pair)] for label, pair in PAIRS.items()}
    return mushrooms(extent, {label: ("mushrooms-qafel-4bit", change) for label, change in changes.items()})


def pair_change(client: str, server: str) -> Change:
    """These quantizers, with a tag that names them."""
    text = client if client == server else f"{client}-{server}"
    tag = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in text)
    return Change(tag, (f'algorithm.client_quantizer="{client}"', f'algorithm.server_quantizer="{server}"'))


def _bytes_to(level: float, run: Run) -> float:
    """All bytes until f(x) − f* reaches a level."""
    return at_level(run, level, traffic(run))


def _sent(run: Run) -> float:
    return run.number("upload_bytes_total") + run.number("broadcast_bytes_total")


def _table(measured: EntryRuns) -> Table:
    front = _front(measured)

    def delta(of: int, runs: EntryRuns) -> float:
        return parse(PAIRS[runs.methods[0]][of]).delta(int(runs.runs()[0].number("dimension")))

    def share(runs: EntryRuns) -> Spread:
        return _of_fedbuff(measured, runs.methods[0])

    return Table.of(
        "client / server",
        measured.by_method(),
        TableColumn("δ_c", partial(delta, 0)),
        TableColumn("δ_s", partial(delta, 1)),
        TableColumn.spread("final f(x) − f*", settled),
        TableColumn.mean("all bytes", _sent, human_bytes),
        *(TableColumn.spread(f"bytes to {level:g}", partial(_bytes_to, level), human_bytes) for level in LEVELS),
        TableColumn(f"of FedBuff's to {LEVELS[-1]:g}", share, lambda value: f"{value:.3f}×"),
        TableColumn("on the front", lambda runs: "yes" if runs.methods[0] in front else ""),
    )


def _of_fedbuff(measured: EntryRuns, label: str) -> Spread:
    """Bytes to the last level over FedBuff's, per seed; empty if not comparable."""
    figure = partial(_bytes_to, LEVELS[-1])
    found: Paired = if_comparable(lambda: measured.of(label).paired(figure, measured.of(REFERENCE)), [])
    return Spread.of(ours / theirs if math.isfinite(theirs) else math.nan for ours, theirs in found)


def _finite(measured: EntryRuns) -> dict[str, tuple[Spread, Spread]]:
    """All bytes and the final suboptimality of every pair that stayed finite."""
    found = {label: (measured.spread(_sent, label), measured.spread(settled, label)) for label in measured.methods}
    return {label: point for label, point in found.items() if math.isfinite(point[1].mean)}


def _front(measured: EntryRuns) -> list[str]:
    """The pairs that no other pair beats, sorted by bytes."""
    finite = _finite(measured)

    def beaten(label: str) -> bool:
        return any(if_comparable(partial(_beats, measured, other, label), False) for other in finite)

    return sorted((label for label in finite if not beaten(label)), key=lambda label: finite[label][0].mean)


def _beats(measured: EntryRuns, label: str, other: str) -> bool:
    """Whether a pair sends less than another and ends as low, or sends as much and ends lower.

    Two ends are equal if their ranges over common seeds overlap.
    """
    sent, ends = (measured.of(label).paired(figure, measured.of(other)) for figure in (_sent, settled))
    saved = sum(theirs - ours for ours, theirs in sent)
    ours, theirs = (Spread.of(values) for values in zip(*ends, strict=True))
    return ours.high < theirs.low if saved == 0 else saved > 0 and ours.low <= theirs.high


def _panels(measured: EntryRuns) -> list[Panel]:
    finite, best = _finite(measured), _front(measured)

    def scatter(name: str, labels: Iterable[str]) -> Series:
        shown = [label for label in labels if label in finite]
        sent, ends = [finite[label][0].mean for label in shown], [finite[label][1] for label in shown]
        return replace(points(name, sent, ends), kind="points", hover=tuple(shown))

    families = [scatter(family, pairs) for family, pairs in FAMILIES.items()]
    front = replace(scatter("Pareto front", best), kind="rings", low=None, high=None)
    way = {family: label for family, label in ON_THE_WAY.items() if measured.has(label)}
    curves = [curve(family, measured.runs(label), "bytes") for family, label in way.items()]
    uploads = f"after {measured.runs()[0].number('uploads'):,.0f} uploads"
    x = Axis("all bytes, up and broadcast", log=True, unit="B")
    end, low = (Axis(label, log=True) for label in ("final f(x) − f*", "f(x) − f*"))
    return not_empty(
        [
            Panel("front", uploads, x, end, (*families, front), f"On the front: {', '.join(best)}."),
            Panel("curves", "on the way", x, low, tuple(curves), f"On the way: {', '.join(way.values())}."),
        ]
    )


def _frugal(measured: EntryRuns) -> Verdict:
    """Whether most pairs need fewer bytes than FedBuff to a level, and end within a tenth of it."""
    if not measured.has(REFERENCE):
        raise NotComparable("the runs without quantizers are missing")
    pairs = [label for label in PAIRS if label != REFERENCE]
    missing = [label for label in pairs if not _of_fedbuff(measured, label).count]
    judged = {label: _saves(measured, label, len(pairs)) for label in pairs if label not in missing}
    good, half = sum(found is True for found in judged.values()), len(pairs) / 2
    unknown = sum(found is None for found in judged.values())
    if good <= half < good + unknown + len(missing) and missing:
        raise NotComparable(f"{len(missing)} of {len(pairs)} pairs share no seed with the runs without quantizers")
    holds = True if good > half else None if good + unknown > half else False
    used = [_of_fedbuff(measured, label).mean for label in judged if judged[label]]
    times = f", with {min(used):.2f} to {max(used):.2f} times the bytes" if used else ""
    need = f"{good} of {len(pairs)} pairs need fewer bytes to {LEVELS[-1]:g}"
    return Verdict.of(holds, f"{need} and end within a tenth of FedBuff{times}")


def _saves(measured: EntryRuns, label: str, among: int) -> bool | None:
    """Whether a pair saves bytes and ends as low, by intervals that are widened for the number of pairs."""
    ours, theirs = measured.of(label), measured.of(REFERENCE)
    if not all(run.first_at(LEVELS[-1], "min") is not None for run in theirs.runs()):
        return None
    needed, ends = level_ratio(LEVELS[-1], ours, theirs, traffic), end_ratio(measured, label, REFERENCE)
    return every((needed.corrected(among).below(1.0), ends.corrected(among).at_most(WITHIN)))


ENTRY = Entry(
    "pareto",
    "Suboptimality against all bytes, for the family of quantizers",
    "not in the paper",
    "8 min",
    _plan,
    _table,
    _panels,
    (Claim("Section IV-B", "QAFeL generally uses fewer bytes than FedBuff (here: most pairs of quantizers)", _frugal),),
    lambda _: (
        "On the front: no other pair ends as low with fewer bytes. Ends are equal if their ranges over common seeds "
        "overlap.",
    ),
)
