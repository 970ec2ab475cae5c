"""Ours: how few bytes reach the published target on CIFAR-10, from the published 4 bits down to a quarter of a bit."""

from __future__ import annotations

from functools import partial

from qafel.drawing.chart import Panel
from qafel.errors import NotComparable
from qafel.paper.display import Table, TableColumn, accuracy_panel, three_digits
from qafel.paper.entry import Claim, Entry, Extent, Verdict, repeated, uploads_limit
from qafel.paper.measured import EntryRuns, Paired, best_accuracy, met_target, to_target
from qafel.paper.neural import FEDBUFF, QAFEL
from qafel.paper.pareto import pair_change
from qafel.paper.statistics import every, power, ratio
from qafel.runs.reading import Run
from qafel.runs.seeds import Spread
from qafel.sweeps.making import Planned
from qafel.text import human_bytes, human_count

MOST_UPLOADS = 120_000

FIRST = "0.75 / 1"
OURS = {
    "2 / 2": ("trellis:2", "trellis:2,scale=least"),
    "1 / 1": ("trellis:1", "trellis:1,scale=least"),
    "0.5 / 1": ("trellis:0.5", "trellis:1,scale=least"),
    "0.5 / 0.5": ("trellis:0.5", "trellis:0.5,scale=least"),
    "0.25 / 0.5": ("trellis:0.25", "trellis:0.5,scale=least"),
}
"""Client and server quantizer by label, bits a coordinate up and down. `FIRST` has a recipe of its own."""


def _plan(extent: Extent) -> list[Planned]:
    """FedBuff, the published 4 bits and six pairs of ours."""
    run = partial(repeated, extent, "cifar10")
    runs = [*run(FEDBUFF, "cifar10-fedbuff-c100"), *run(QAFEL, "cifar10-qafel-c100")]
    runs += run(FIRST, "cifar10-qafel-c100-trellis")
    for label, pair in OURS.items():
        runs += run(label, "cifar10-qafel-c100", pair_change(*pair), uploads_limit(MOST_UPLOADS))
    return runs


def _sent(run: Run) -> float:
    """All bytes to the target, up and broadcast."""
    return to_target("upload_bytes_total")(run) + to_target("broadcast_bytes_total")(run)


def _received(run: Run) -> float:
    """What clients had downloaded when the target was met: runs end there."""
    return run.number("received_bytes_total") if met_target(run) else float("inf")


def _times_fewer(measured: EntryRuns, runs: EntryRuns) -> Spread:
    return Spread.of(theirs / ours for ours, theirs in _paired(measured, runs.methods[0]))


def _paired(measured: EntryRuns, label: str) -> Paired:
    """All bytes of a pair and of FedBuff, seed by seed."""
    return measured.of(label).paired(_sent, measured.of(FEDBUFF))


def _table(measured: EntryRuns) -> Table:
    return Table.of(
        "bits up / down",
        measured.by_method(),
        TableColumn.spread("uploads to target", to_target("uploads"), human_count),
        TableColumn.spread("up and broadcast", _sent, human_bytes),
        TableColumn("times fewer", partial(_times_fewer, measured), lambda value: f"{value:.1f}×"),
        TableColumn.spread("received by starts", _received, human_bytes),
        TableColumn.spread("best accuracy", best_accuracy, three_digits),
    )


def _panels(measured: EntryRuns) -> list[Panel]:
    return [accuracy_panel(measured, "bytes", "by bytes", "bytes"), accuracy_panel(measured, "uploads", "by uploads")]


def _saves(measured: EntryRuns, least: float, most: float | None = None) -> Verdict:
    """Some pair needs so many times fewer bytes than FedBuff, and at most so many times its uploads."""
    said, found = [], []
    for label in (FIRST, *OURS):
        if not measured.has(label):
            continue
        fewer = ratio(_paired(measured, label)).inverse
        more = ratio(measured.of(label).paired(to_target("uploads"), measured.of(FEDBUFF)))
        found.append(every((fewer.at_least(least), True if most is None else more.at_most(most))))
        if fewer.estimate >= least and (most is None or more.estimate <= most):
            said.append(f"{label}: {fewer} times fewer bytes with {more} times the uploads, {power([fewer])}")
    if not found:
        raise NotComparable("no pair of ours was run")
    holds = True if True in found else None if said or None in found else False
    return Verdict.of(holds, "; ".join(said) or "no pair has both in the mean")


ENTRY = Entry(
    "pareto-cifar10",
    "CIFAR-10: the fewest bytes to the target",
    "ours, not in the paper",
    "1.5 h",
    _plan,
    _table,
    _panels,
    (
        Claim("ours", "35 times fewer bytes than FedBuff with at most 1.2 times the uploads",
              partial(_saves, least=35.0, most=1.2)),
        Claim("ours", "60 times fewer bytes where more uploads are allowed", partial(_saves, least=60.0)),
    ),
    lambda _: (
        "Step sizes are the published ones for every pair. Received: what starting clients download, the broadcasts "
        "since their last start or a snapshot of x̂, whichever is shorter.",
    ),
)  # fmt: skip
