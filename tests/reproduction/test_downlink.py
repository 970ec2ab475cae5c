"""All bytes with downloads, and uploads to equal losses, from runs made up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reproduction.downlink import CHOSEN, WINDOW, smoothed_loss, uploads_at_loss
from reproduction.entries import ENTRIES
from reproduction.entry import Extent
from reproduction.neural import FEDBUFF
from tests.reproduction.made_up import made_up, measured, verdicts

ENTRY = ENTRIES["downlink-cifar10"]
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


def test_the_smoothed_loss_is_a_mean_over_nine_evaluations():
    _, run = network(FEDBUFF, 0, 1.0, 1, 1)
    found = smoothed_loss(run)
    assert len(found) == 101 - WINDOW + 1
    assert found[0] == pytest.approx(run.column("loss")[:WINDOW].mean())


def test_the_table_counts_all_bytes():
    rows = {row[0]: row for row in ENTRY.table(linked(1.05, 2_000, 4_000)).rows}
    titles = [heading.title for heading in ENTRY.table(linked(1.05, 2_000, 4_000)).headings]
    total, parts = titles.index("all bytes"), [titles.index(name) for name in ("uploaded", "broadcast")]
    # 80 steps to the target: 800 uploads, 80 broadcasts, and as many downloads as uploads
    assert rows[FEDBUFF][total].mean == 80 * (10 * 100_000 + 100_000 + 10 * 100_000)
    assert [rows[FEDBUFF][part].mean for part in parts] == [80 * 1_000_000, 80 * 100_000]


def test_fedbuff_and_the_chosen_starts_have_five_seeds():
    runs = ENTRY.plan(Extent())
    counts = {method: sum(run.method == method for run in runs) for method in {run.method for run in runs}}
    assert counts[FEDBUFF] == counts[CHOSEN] == 5
    assert set(counts.values()) == {3, 5}
    assert len({run.folder for run in runs}) == len(runs)


def test_the_convex_entry_has_rare_starters():
    for run in ENTRIES["downlink-mushrooms"].plan(Extent()):
        assert run.config.value("task.clients") == 2000
