"""The front and the bytes of pairs of quantizers, from runs made up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.drawing.chart import Axis, Panel, Series, panel_styles
from qafel.runs.reading import Spread
from reproduction.entries import ENTRIES
from reproduction.pareto import FAMILIES, PAIRS, REFERENCE
from tests.reproduction.made_up import drawn, falling, made_up, measured

ENTRY = ENTRIES["pareto"]


OTHERS = [label for label in PAIRS if label != REFERENCE]


FRUGAL, WASTEFUL, POOR = ((1e-3, 100), (1e-3, 800), (1.2e-3, 100))
"""Where a pair ends, and bytes per message; FedBuff has 1e-3 and 500."""


def pair(label, level, size, seed=0, slower=1.0):
    metric = level + (falling(0.0) ** (1 / slower))
    return made_up(label, metric, seed, upload_bytes=size, broadcast_bytes=size)


def pairs(*kinds, reference=True):
    """So many pairs of each kind, with three seeds."""
    chosen = [kind for count, kind in kinds for _ in range(count)]
    listed = [(REFERENCE, (1e-3, 500))] * reference + list(zip(OTHERS, chosen, strict=False))
    return measured(*(pair(label, *kind, seed) for label, kind in listed for seed in (0, 1, 2)))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pairs((17, FRUGAL)), "pass"),
        (pairs((9, FRUGAL), (8, WASTEFUL)), "pass"),
        (pairs((8, FRUGAL), (9, WASTEFUL)), "fail"),
        (pairs((8, FRUGAL), (9, POOR)), "fail"),
        (pairs((9, FRUGAL)), "pass"),
        (pairs((9, WASTEFUL)), "fail"),
        (pairs((1, FRUGAL)), "not comparable"),
        (pairs((8, FRUGAL), (8, POOR)), "not comparable"),
        (pairs((17, FRUGAL), reference=False), "not comparable"),
    ],
)
def test_most_pairs_must_use_fewer_bytes_to_the_same_end(found, expected):
    assert ENTRY.claims[0].verdict(found).result == expected


def test_pairs_whose_seeds_do_not_agree_are_undecided():
    lists = [(REFERENCE, 1e-3, seed) for seed in (0, 1)]
    lists += [(label, level, seed) for label in OTHERS for seed, level in enumerate((0.9e-3, 1.3e-3))]
    found = measured(*(pair(label, level, 500 if label == REFERENCE else 100, seed) for label, level, seed in lists))
    assert ENTRY.claims[0].verdict(found).result == "undecided"


def test_the_verdict_counts_the_pairs():
    because = ENTRY.claims[0].verdict(pairs((10, FRUGAL), (7, POOR))).because
    assert because == (
        "10 of 17 pairs need fewer bytes to 0.01 and end within a tenth of FedBuff, with 0.20 to 0.20 times the bytes"
    )


def test_bytes_are_compared_seed_by_seed():
    """FedBuff is slow with the second seed, and so is the pair, which was run with no other."""
    found = measured(pair(REFERENCE, 1e-3, 500), pair(REFERENCE, 1e-3, 500, 1, 3.0), pair("qsgd:4", 1e-3, 250, 1, 3.0))
    cell = ENTRY.table(found).rows[1][7]
    assert (cell.mean, cell.count) == (0.5, 1)


def front(*ends):
    """Which are on the front, of pairs that send ever more and end so with either seed."""
    found = measured(
        *(
            pair(label, level, 100 + 10 * place, seed)
            for place, (label, levels) in enumerate(zip(OTHERS, ends, strict=False))
            for seed, level in enumerate(levels)
        )
    )
    return [place for place, row in enumerate(ENTRY.table(found).rows) if row[-1] == "yes"]


def test_ranges_that_overlap_are_ties_and_the_cheaper_pair_wins():
    assert front((1.00e-3, 1.02e-3), (0.99e-3, 1.01e-3)) == [0]
    assert front((1.00e-3, 1.02e-3), (0.50e-3, 0.52e-3)) == [0, 1]
    assert front((1.00e-3, 1.02e-3), (1.03e-3, 1.05e-3)) == [0]


def test_the_cheaper_pair_wins_no_seed_that_it_was_not_run_with():
    """The second seed is unlucky for both; only the dearer pair has it, and its range would reach over the other's."""
    assert front((1.00e-3,), (0.90e-3, 1.10e-3)) == [0, 1]


def test_figures_keep_their_spread():
    found = measured(*(pair(label, *FRUGAL, seed, 1 + seed) for label in (REFERENCE, *OTHERS) for seed in (0, 1)))
    row = ENTRY.table(found).rows[0]
    assert all(isinstance(row[place], Spread) for place in (3, 5, 6, 7))
    assert row[6].std > 0
    _, way = ENTRY.panels(found)
    for series in way.series:
        assert (series.high > series.low).any()


def test_references_take_no_colour_from_what_is_measured():
    """Grey themselves, they come last in the legend."""
    labels = [style.label for style in panel_styles(ENTRY.panels(pairs((17, FRUGAL))))]
    assert labels == [*FAMILIES, "Pareto front"]
    first = Series("line", np.ones(2), np.ones(2), kind="reference")
    second = Series("measured", np.ones(2), np.ones(2))
    styles = panel_styles([Panel("a", "", Axis("x"), Axis("y"), (first, second))])
    assert [style.label for style in styles] == ["measured", "line"]


def test_the_front_is_named_below_the_figure_where_nothing_is_covered():
    panel = ENTRY.panels(pairs((17, FRUGAL)))[0]
    rings = panel.series[-1]
    assert (rings.label, rings.kind) == ("Pareto front", "rings")
    assert panel.note == f"On the front: {', '.join(rings.hover)}."


def gone():
    """Some pairs, of which one diverged, without FedBuff."""
    lost = made_up(OTHERS[0], np.array([0.68, 0.5, math.nan]), status="diverged")
    return measured(*pairs((3, FRUGAL), reference=False).pairs[2:], lost)


@pytest.mark.parametrize(
    ("found", "result"), [(pairs((17, FRUGAL)), "pass"), (gone(), "not comparable")], ids=["full", "partial"]
)
def test_outputs_are_made_for_all_runs_and_for_some(found, result):
    assert drawn(ENTRY, found)["claims"][0]["result"] == result


def test_outputs_are_made_where_every_pair_diverged():
    lost = [made_up(label, np.array([0.68, 0.5, math.nan]), status="diverged") for label in (REFERENCE, *OTHERS)]
    assert drawn(ENTRY, measured(*lost))["claims"]
