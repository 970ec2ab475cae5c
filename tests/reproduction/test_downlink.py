"""All bytes with downloads, and uploads to equal losses, from runs made up."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reproduction.downlink import CHOSEN, CONVEX_STARTS, WINDOW, loss_ratio, smoothed_loss, uploads_at_loss
from reproduction.entries import ENTRIES
from reproduction.entry import Extent
from reproduction.neural import FEDBUFF
from reproduction.statistics import UNKNOWN
from reproduction.store import Store
from tests.reproduction.made_up import made_up, measured, verdicts

ENTRY = ENTRIES["downlink-cifar10"]
RESULTS = Path(__file__).parents[2] / "reproduction/results"
STEPS = np.arange(101)


def network(method, seed, slower, size, received, noise=0.0):
    """A run that needs `slower` times the steps to each loss and to the target, with messages of `size` bytes."""
    steps = STEPS / slower
    rough = noise * np.random.default_rng(seed).normal(size=steps.size)
    columns = {"loss": 2.5 * np.exp(-steps / 40) + rough, "received_bytes_total": received * 10 * STEPS}
    facts = {"target": 0.6, "metric_goal": "max", "received_bytes_total": received * 1000}
    accuracy = 0.1 + 0.5 * steps / 80
    sizes = {"upload_bytes": size, "broadcast_bytes": size}
    return made_up(method, accuracy, seed, recipe="cifar10-fedbuff-c100", columns=columns, **sizes, **facts)


def linked(slower, size, received, seeds=5):
    theirs = [network(FEDBUFF, seed, 1.0, 100_000, 100_000) for seed in range(seeds)]
    return measured(*theirs, *(network(CHOSEN, seed, slower, size, received) for seed in range(seeds)))


def row_of(found, method):
    """The cells of a method's row, by their titles."""
    table = ENTRY.table(found)
    (row,) = (row for row in table.rows if row[0] == method)
    return dict(zip((heading.title for heading in table.headings), row, strict=True))


@pytest.mark.parametrize(
    ("slower", "size", "received", "expected"),
    [
        (1.05, 2_000, 4_000, ["pass", "pass"]),
        (1.05, 2_000, 20_000, ["fail", "pass"]),  # few bytes up and broadcast, many received
        (1.2, 2_000, 3_000, ["fail", "fail"]),
        (1.12, 2_000, 3_000, ["pass", "fail"]),
    ],
)
def test_claims_count_received_bytes_and_uploads(slower, size, received, expected):
    assert verdicts(ENTRY, linked(slower, size, received)) == expected


def test_uploads_to_equal_losses_are_those_of_the_slower_run():
    (_, theirs), (_, ours) = network(FEDBUFF, 0, 1.0, 1, 1), network(CHOSEN, 0, 1.25, 1, 1)
    assert uploads_at_loss(ours, theirs) == pytest.approx(1.25, rel=0.01)


def test_a_run_needs_exactly_its_own_uploads_to_its_losses():
    _, run = network(FEDBUFF, 0, 1.0, 1, 1, noise=0.2)
    assert np.diff(smoothed_loss(run)).max() > 0.0
    assert uploads_at_loss(run, run) == pytest.approx(1.0, abs=1e-12)


def test_a_run_that_reaches_none_of_the_losses_has_no_ratio():
    (_, theirs), (_, ours) = network(FEDBUFF, 0, 1.0, 1, 1), network(CHOSEN, 0, 50.0, 1, 1)
    assert math.isnan(uploads_at_loss(ours, theirs))


def test_a_run_without_the_loss_or_shorter_than_the_mean_is_not_comparable():
    _, theirs = network(FEDBUFF, 0, 1.0, 1, 1)
    _, silent = made_up(CHOSEN, np.linspace(0.1, 0.6, 101), recipe="cifar10-fedbuff-c100", metric_goal="max")
    _, short = made_up(CHOSEN, [0.1, 0.2], recipe="cifar10-fedbuff-c100", columns={"loss": [2.5, 2.4]})
    for run in (silent, short):
        assert math.isnan(uploads_at_loss(run, theirs))
        assert math.isnan(uploads_at_loss(theirs, run))
    found = measured(network(FEDBUFF, 0, 1.0, 1, 1), network(CHOSEN, 0, 50.0, 1, 1))
    assert verdicts(ENTRY, found)[1] == "not comparable"
    assert row_of(found, CHOSEN)["of FedBuff's, equal loss"] == UNKNOWN


def test_a_run_that_diverges_fails_both_claims():
    found = linked(1.05, 2_000, 4_000)
    planned, run = found.pairs[-1]
    gone = replace(run, history={**run.history, "metric": np.append(np.full(100, 0.2), np.nan)})
    assert uploads_at_loss(gone, found.pairs[0][1]) == math.inf
    assert verdicts(ENTRY, measured(*found.pairs[:-1], (planned, gone))) == ["fail", "fail"]


def test_a_run_that_misses_its_target_leaves_both_claims_open_above():
    slow = [network(CHOSEN, seed, 1.4, 2_000, 4_000) for seed in range(5)]
    found = measured(*linked(1.0, 1, 1).pairs[:5], *slow)
    ratio = loss_ratio(found.of(CHOSEN), found.of(FEDBUFF))
    assert (ratio.low, ratio.high) == (pytest.approx(1.4, rel=0.02), math.inf)
    assert verdicts(ENTRY, found)[1] == "fail"
    cells = row_of(found, CHOSEN)
    assert (cells["of FedBuff's"], cells["times fewer"]) == ("∞", UNKNOWN)


def test_the_table_needs_no_reference_and_no_whole_run():
    found = linked(1.05, 2_000, 4_000)
    assert row_of(found.of(CHOSEN), CHOSEN)["times fewer"] == UNKNOWN
    assert row_of(found, FEDBUFF)["of FedBuff's, equal loss"] == "1"


def test_times_fewer_is_the_geometric_mean_of_the_claim():
    times = [20.0, 45.0]
    theirs = [network(FEDBUFF, seed, 1.0, 90_000, 90_000) for seed in range(2)]
    ours = [network(CHOSEN, seed, 1.0, 90_000 / by, 90_000 / by) for seed, by in enumerate(times)]
    assert str(row_of(measured(*theirs, *ours), CHOSEN)["times fewer"]).startswith("30 ")


def test_the_smoothed_loss_is_a_mean_over_nine_evaluations():
    _, run = network(FEDBUFF, 0, 1.0, 1, 1)
    found = smoothed_loss(run)
    assert len(found) == 101 - WINDOW + 1
    assert found[0] == pytest.approx(run.column("loss")[:WINDOW].mean())


def test_the_table_counts_all_bytes():
    cells = row_of(linked(1.05, 2_000, 4_000), FEDBUFF)
    # 80 steps to the target: 800 uploads, 80 broadcasts, and as many downloads as uploads
    assert cells["all bytes"].mean == 80 * (10 * 100_000 + 100_000 + 10 * 100_000)
    assert [cells[part].mean for part in ("uploaded", "broadcast")] == [80 * 1_000_000, 80 * 100_000]


def test_fedbuff_and_the_chosen_starts_have_five_seeds():
    runs = ENTRY.plan(Extent())
    counts = {method: sum(run.method == method for run in runs) for method in {run.method for run in runs}}
    assert counts[FEDBUFF] == counts[CHOSEN] == 5
    assert set(counts.values()) == {3, 5}
    assert len({run.folder for run in runs}) == len(runs)


def test_stored_runs_on_mushrooms_reach_the_level_where_bytes_are_counted():
    entry = ENTRIES["downlink-mushrooms"]
    pairs = Store(Path("none"), RESULTS).load(entry.plan(Extent((0,), exact_seeds=True)))
    assert len(pairs) == len(CONVEX_STARTS)
    table = entry.table(measured(*pairs))
    for row in table.rows:
        assert all(math.isfinite(cell.mean) for cell in row[1:-1]), row[0]
        assert row[-1] != UNKNOWN


def test_the_convex_entry_has_rare_starters():
    for run in ENTRIES["downlink-mushrooms"].plan(Extent()):
        assert run.config.value("task.clients") == 2000
