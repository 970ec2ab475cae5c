"""Ours: all the paper's methods on one network, at one concurrency, to a target that is stated before.

Where the published target is out of reach, on a part of the data, the target is what FedBuff reaches with a seed that
no other run has, less one point.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from qafel.drawing.chart import Axis, Panel, Series
from qafel.errors import NotComparable
from qafel.paper import neural
from qafel.paper.bits import MOST_UPLOADS
from qafel.paper.display import ACROSS, Across, Table, TableColumn, accuracy_panel, curve, three_digits
from qafel.paper.entry import Change, Claim, Entry, Extent, Verdict, configuration, repeated, uploads_limit
from qafel.paper.measured import EntryRuns, best_accuracy, diverges, has_settled, met_target
from qafel.paper.neural import DIRECT, FEDASYNC, FEDASYNC_DIRECT, FEDBUFF, PUBLISHED_TARGETS, QAFEL, SIMILAR
from qafel.runs.reading import Run
from qafel.sweeps.making import Planned
from qafel.text import human_count

METHODS = (FEDBUFF, QAFEL, DIRECT, FEDASYNC, FEDASYNC_DIRECT)

PLACES = {"shakespeare-small": 10}
"""The concurrency of a family, where not 100."""


def _plan(extent: Extent) -> list[Planned]:
    """Every method; those that may never meet the target end sooner than the recipes of CIFAR-10 say."""
    family = extent.family or "cifar10"
    place = PLACES.get(family, 100)
    task = configuration(f"{family}-fedbuff-c{place}", 0).task.name
    limit = {method: uploads_limit(MOST_UPLOADS[family]) for method in METHODS[2:]} if family in MOST_UPLOADS else {}
    return neural.plan(task, METHODS, extent, (place,), {} if extent.uploads else limit)


def _both(measured: EntryRuns, method: str = QAFEL, reference: str = FEDBUFF) -> neural.Comparisons:
    return neural.by_place(measured, method, reference, measured.places("concurrency"))


def _direct_fails(measured: EntryRuns) -> Verdict:
    """Some seed of direct FedBuff diverges, or settles below the target, where QAFeL meets it with every seed."""
    fair = EntryRuns.on_common_seeds(measured.of(DIRECT), measured.of(QAFEL))
    if not all(map(met_target, fair.runs(QAFEL))):
        raise NotComparable("QAFeL did not meet the target with every seed")
    runs = fair.runs(DIRECT)
    missed = [run for run in runs if not met_target(run)]
    gone, stuck = sum(map(diverges, missed)), sum(not diverges(run) and has_settled(run) for run in missed)
    said = f"of {len(runs)} seeds {len(runs) - len(missed)} met the target, {gone} diverged, {stuck} stalled below it"
    slow = len(missed) - gone - stuck
    holds = True if gone + stuck else None if slow else False
    return Verdict.of(holds, f"{said}{f', {slow} were still rising' if slow else ''}")


def _more_broadcast(measured: EntryRuns) -> Verdict:
    compared = {reference: _both(measured, FEDASYNC_DIRECT, reference) for reference in (FEDBUFF, QAFEL)}
    return neural.more_broadcast_bytes(compared)


def _panels(measured: EntryRuns) -> list[Panel]:
    """Accuracy by uploads, and by all bytes."""
    keys: tuple[Across, ...] = ("uploads", "bytes")
    return [accuracy_panel(measured, key, ACROSS[key][0], key) for key in keys]


_claim = partial(Claim, "Section IV-B, on one network")
CLAIMS = (
    _claim("QAFeL's number of uploads remains similar", lambda runs: neural.similar_uploads(_both(runs), SIMILAR)),
    _claim("QAFeL uploads at least 5 times fewer bytes", lambda runs: neural.fewer_bytes(_both(runs), 5.0)),
    Claim("Fig. 9, on one network", "Direct FedBuff stalls or diverges for some seed, QAFeL for none", _direct_fails),
    neural.TEN_TIMES,
    _claim(
        "Direct FedAsync is close to the unquantized one in uploads",
        lambda runs: neural.similar_uploads(_both(runs, FEDASYNC_DIRECT, FEDASYNC), SIMILAR),
    ),
    _claim(
        "Quantized FedAsync broadcasts more bytes than FedBuff, and an order of magnitude more than QAFeL",
        _more_broadcast,
    ),
)

ENTRY = Entry(
    "methods",
    "All methods side by side on a network",
    "ours, not in the paper",
    "hours",
    _plan,
    neural.table,
    _panels,
    CLAIMS,
    neural.notes,
)

PILOTS = {"celeba-part": 30_000, "shakespeare-small": 1_500}
"""The families whose target is made, and the uploads of the run that makes it."""
PILOT_SEED = 100
LESS = 0.01


def _pilots(extent: Extent) -> list[Planned]:
    """FedBuff on each part, to no target; with one seed, which no run has that the target is for."""
    runs = []
    for family, uploads in PILOTS.items():
        recipe = f"{family}-fedbuff-c{PLACES.get(family, 100)}"
        task = configuration(recipe, 0).task.name
        # The recipe's target is what this run is to find.
        ends = f"stop.uploads={uploads}", "stop.at_target=false", f"evaluation.target={PUBLISHED_TARGETS[task]}"
        pilot = replace(extent, seeds=(PILOT_SEED,))
        runs += repeated(pilot, task, family, recipe, Change("pilot", ends))
    return runs


def made_target(run: Run) -> float:
    """The best evaluation less one point, to three digits."""
    return round(best_accuracy(run) - LESS, 3)


def _pilot_panel(runs: EntryRuns) -> Panel:
    """A pilot's accuracy, and the target that it makes."""
    (run,), name = runs.runs(), runs.methods[0]
    shown = curve(name, [run], "uploads")
    made = Series("target", shown.x[[0, -1]], np.full(2, made_target(run)), kind="reference")
    return Panel(name, name, ACROSS["uploads"][1], Axis("accuracy"), (shown, made))


def _pilots_table(measured: EntryRuns) -> Table:
    return Table.of(
        "part",
        measured.by_method(),
        TableColumn.mean("uploads", "uploads", human_count),
        TableColumn.mean("best accuracy", best_accuracy, three_digits),
        TableColumn.mean("target", made_target, three_digits),
    )


TARGETS = Entry(
    "targets",
    "The targets on parts of the data, from a run of FedBuff with a seed of its own",
    "ours, not in the paper",
    "9 min",
    _pilots,
    _pilots_table,
    lambda measured: [_pilot_panel(runs) for runs in measured.by_method()],
    (),
)
