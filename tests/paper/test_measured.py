"""Figures over seeds, and groups of runs compared on the seeds that both have."""

from __future__ import annotations

import math

import pytest

from qafel.errors import NotComparable
from qafel.paper.convex import HIDDEN_QSGD, UNQUANTIZED
from qafel.paper.measured import ratios, to_target
from qafel.paper.neural import FEDBUFF, QAFEL
from tests.paper.made_up import by_seed, falling, made_up, measured, rising


def test_a_ratio_that_is_no_number_is_infinite():
    gap = falling(1e-3)
    gap[-3] = math.nan
    found = measured(*by_seed(**{UNQUANTIZED: (falling(1e-3),) * 2, HIDDEN_QSGD: (falling(1e-3), gap)}))
    assert ratios(found, HIDDEN_QSGD, UNQUANTIZED) == [pytest.approx(1.0), math.inf]
    with pytest.raises(NotComparable, match="diverged"):
        ratios(found, UNQUANTIZED, HIDDEN_QSGD)


def test_a_reduction_is_over_the_seeds_that_both_have():
    """FedBuff's second seed takes longer; QAFeL was not run with it yet."""
    options = {"target": 0.6, "metric_goal": "max"}
    ours, fast, slow = (
        made_up(QAFEL, rising(0.8), 0, upload_bytes=100, **options),
        made_up(FEDBUFF, rising(0.8), 0, upload_bytes=800, **options),
        made_up(FEDBUFF, rising(0.61), 1, upload_bytes=800, **options),
    )
    sent_up = to_target("upload_bytes_total")
    assert measured(ours).reduction(sent_up, measured(fast, slow)) == 8.0
    with pytest.raises(NotComparable, match="no seed in common"):
        measured(ours).reduction(sent_up, measured(slow))
