"""Runs that diverged, or were not all made, pass no claim by what they leave out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.errors import NotComparable
from qafel.paper import ENTRIES
from qafel.paper.bits import PUBLISHED_KB
from qafel.paper.convex import DIRECT_QSGD, HIDDEN_QSGD, UNQUANTIZED
from qafel.paper.measured import ratios, reduction, to_target
from qafel.paper.neural import FEDBUFF, QAFEL
from qafel.paper.related import DIRECT, HIDDEN
from tests.paper.made_up import falling, made_up, measured, rising, verdicts

GONE = np.array([0.68, 0.5, math.nan])
"""Stops being finite."""


def by_seed(**metrics):
    """Runs of each method, one per seed."""
    return [made_up(method, metric, seed) for method, curves in metrics.items() for seed, metric in enumerate(curves)]


@pytest.mark.parametrize("ours", [falling(1e-3), GONE])
def test_nothing_is_close_to_a_reference_that_diverged(ours):
    """With the second seed only: a ratio of 0 or NaN must not vanish behind the first one's."""
    fine = falling(1e-3)
    found = measured(
        *by_seed(**{UNQUANTIZED: (fine, GONE), HIDDEN_QSGD: (fine, ours), DIRECT_QSGD: (falling(8e-3), ours)})
    )
    assert verdicts(ENTRIES["qafel-vs-direct-qsgd"], found) == ["not comparable", "not comparable"]
    assert "diverged" in ENTRIES["qafel-vs-direct-qsgd"].claims[0].verdict(found).because


def test_a_ratio_that_is_no_number_is_infinite():
    gap = falling(1e-3)
    gap[-3] = math.nan
    found = measured(*by_seed(**{UNQUANTIZED: (falling(1e-3),) * 2, HIDDEN_QSGD: (falling(1e-3), gap)}))
    assert ratios(found, HIDDEN_QSGD, UNQUANTIZED) == [pytest.approx(1.0), math.inf]
    with pytest.raises(NotComparable, match="diverged"):
        ratios(found, UNQUANTIZED, HIDDEN_QSGD)


@pytest.mark.parametrize(
    ("direct", "hidden", "expected"),
    [
        (falling(8e-3), falling(1e-3), "pass"),
        (GONE, falling(1e-3), "pass"),
        (falling(8e-3), GONE, "fail"),
        (GONE, GONE, "fail"),
    ],
)
def test_a_hidden_state_that_diverges_mitigates_nothing(direct, hidden, expected):
    found = measured(*by_seed(**{DIRECT: (falling(8e-3), direct), HIDDEN: (falling(1e-3), hidden)}))
    assert ENTRIES["related-work"].claims[2].verdict(found).result == expected


def uploads_of(kilobytes, seed=0, down=None):
    """A CelebA run per width, with payloads of this size up, and down unless it says otherwise."""
    return [
        made_up(
            f"{bits} bits",
            rising(0.9),
            seed,
            {"client": float(bits), "server": float(bits)},
            "celeba-fedbuff-c100",
            upload_bytes=round(1000 * size) + 64,
            broadcast_bytes=round(1000 * (size if down is None else down[bits])) + 64,
        )
        for bits, size in kilobytes.items()
    ]


def test_four_sizes_take_four_widths_and_every_run():
    claim = ENTRIES["bits"].claims[0]
    assert claim.verdict(measured(*uploads_of(PUBLISHED_KB))).result == "pass"
    for bits in PUBLISHED_KB:
        others = {width: size for width, size in PUBLISHED_KB.items() if width != bits}
        verdict = claim.verdict(measured(*uploads_of(others)))
        assert (verdict.result, f"client {bits}" in verdict.because) == ("not comparable", True)
    wrong = uploads_of(PUBLISHED_KB | {4: 16.0})
    verdict = claim.verdict(measured(*wrong, *uploads_of(PUBLISHED_KB, seed=1)))
    assert verdict.result == "fail"
    assert "15.380 to 16.000 kB at 4 bits" in verdict.because
    assert claim.verdict(measured(*uploads_of(PUBLISHED_KB, down=PUBLISHED_KB | {2: 9.0}))).result == "fail"


def test_a_reduction_is_over_the_seeds_that_both_have():
    """FedBuff's second seed takes longer; QAFeL was not run with it yet."""
    options = {"target": 0.6, "metric_goal": "max"}
    ours, fast, slow = (
        made_up(QAFEL, rising(0.8), 0, upload_bytes=100, **options),
        made_up(FEDBUFF, rising(0.8), 0, upload_bytes=800, **options),
        made_up(FEDBUFF, rising(0.61), 1, upload_bytes=800, **options),
    )
    sent_up = to_target("upload_bytes_total")
    assert reduction(sent_up, measured(ours), measured(fast, slow)) == 8.0
    with pytest.raises(NotComparable, match="no seed in common"):
        reduction(sent_up, measured(ours), measured(slow))


def test_a_reduction_without_a_common_seed_is_unknown_in_the_table():
    options = {"at": {"concurrency": 100.0}, "target": 0.6, "metric_goal": "max", "recipe": "cifar10-fedbuff-c100"}
    ours, theirs = (made_up(method, rising(0.8), seed, **options) for seed, method in enumerate((QAFEL, FEDBUFF)))
    for found in (measured(ours), measured(ours, theirs)):
        assert math.isnan(ENTRIES["cifar10"].table(found).rows[0][5])
