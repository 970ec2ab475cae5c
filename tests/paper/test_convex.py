"""Claims on mushrooms: noise is no divergence, a slow fall no level, and seeds are compared alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.paper import ENTRIES
from qafel.paper.convex import DIRECT_QSGD, DIRECT_TOP, HIDDEN_QSGD, HIDDEN_TOP, LOCAL_STEPS, UNQUANTIZED, lowest_level
from qafel.paper.measured import settled
from tests.paper.made_up import GONE, by_seed, falling, made_up, measured, verdicts


def convex(name, **levels):
    """An entry's verdicts on runs that settle at these levels, two seeds each."""
    pairs = [made_up(method, metric, seed) for method, metric in levels["runs"].items() for seed in (0, 1)]
    return verdicts(ENTRIES[name], measured(*pairs))


AWAY = np.concatenate((falling(0.01)[:50], np.linspace(0.011, 0.2, 51)))
"""Falls at first, and moves away again."""


@pytest.mark.parametrize(
    ("name", "runs", "expected"),
    [
        ("direct-vs-unquantized", {DIRECT_QSGD: falling(8e-3), DIRECT_TOP: AWAY}, ["pass", "pass"]),
        ("direct-vs-unquantized", {DIRECT_QSGD: falling(1e-3), DIRECT_TOP: falling(8e-3)}, ["fail", "fail"]),
        ("qafel-vs-direct-qsgd", {HIDDEN_QSGD: falling(1.1e-3), DIRECT_QSGD: falling(8e-3)}, ["pass", "pass"]),
        ("qafel-vs-direct-qsgd", {HIDDEN_QSGD: falling(8e-3), DIRECT_QSGD: falling(1e-3)}, ["fail", "fail"]),
        ("qafel-vs-direct-topk", {HIDDEN_TOP: falling(1.1e-3), DIRECT_TOP: AWAY}, ["pass", "pass"]),
        ("qafel-vs-direct-topk", {HIDDEN_TOP: AWAY, DIRECT_TOP: falling(1e-3)}, ["fail", "fail"]),
    ],
)
def test_convex_claims_pass_and_fail_as_the_runs_say(name, runs, expected):
    assert convex(name, runs={UNQUANTIZED: falling(1e-3), **runs}) == expected


def test_a_run_that_stopped_being_finite_diverged():
    _, run = made_up(DIRECT_TOP, GONE, status="diverged")
    assert settled(run) == math.inf
    runs = {UNQUANTIZED: falling(1e-3), DIRECT_QSGD: GONE, DIRECT_TOP: GONE}
    pairs = [made_up(method, metric, status="diverged") for method, metric in runs.items() if method != UNQUANTIZED]
    found = measured(made_up(UNQUANTIZED, falling(1e-3)), *pairs)
    assert verdicts(ENTRIES["direct-vs-unquantized"], found) == ["pass", "pass"]


def test_a_slow_run_has_not_failed_to_converge():
    """Far from the unquantized run, but still falling: more steps may bring it there."""
    slow = np.geomspace(0.68, 8e-3, 101)
    assert convex(
        "qafel-vs-direct-qsgd", runs={UNQUANTIZED: falling(1e-3), HIDDEN_QSGD: falling(1e-3), DIRECT_QSGD: slow}
    ) == [
        "pass",
        "fail",
    ]


@pytest.mark.parametrize(("more_is_worse", "expected"), [(True, "pass"), (False, "fail")])
def test_more_local_steps_end_higher_or_the_claim_fails(more_is_worse, expected):
    pairs = []
    for steps in LOCAL_STEPS:
        level = 1e-3 * (steps if more_is_worse else 40 - steps)
        metric = level + 0.68 * np.exp(-np.arange(101) * steps / 40)
        pairs.append(made_up(f"P = {steps}", metric))
    assert verdicts(ENTRIES["local-steps"], measured(*pairs)) == ["pass", expected]


DIVERGES = ENTRIES["direct-vs-unquantized"].claims[1]


def test_a_noisy_plateau_is_no_divergence():
    """Its lowest value is far below where it stays, its lowest level is not."""
    noise = np.random.default_rng(0).lognormal(sigma=0.5, size=101)
    plateau = made_up(DIRECT_TOP, falling(0.01) * noise)
    assert plateau[1].column("metric").min() < lowest_level(plateau[1]) / 2
    assert DIVERGES.verdict(measured(plateau)).result == "fail"
    away = made_up(DIRECT_TOP, np.concatenate((falling(0.01)[:50], np.linspace(0.01, 0.2, 51))) * noise)
    assert DIVERGES.verdict(measured(away)).result == "pass"


def local_steps(levels, fall=1.0, seeds=(0,)):
    """Runs that fall ever faster with P to these levels, and go on falling by a factor over their second half."""
    pairs = []
    for steps, level in zip(LOCAL_STEPS, levels, strict=True):
        late = np.concatenate((np.ones(51), np.geomspace(1, fall, 40), np.full(10, fall)))
        metric = level * late + 0.68 * np.exp(-np.arange(101) * (1 + steps))
        pairs += [made_up(f"P = {steps}", metric, seed) for seed in seeds]
    return pairs


RISING = [1e-3 * (10 + steps) for steps in LOCAL_STEPS]


@pytest.mark.parametrize(("fall", "expected"), [(1.0, "pass"), (0.93, "pass"), (0.7, "not comparable")])
def test_a_run_that_falls_by_a_third_over_its_second_half_has_not_settled(fall, expected):
    assert ENTRIES["local-steps"].claims[1].verdict(measured(*local_steps(RISING, fall))).result == expected


def test_local_steps_are_compared_over_common_seeds():
    """The second seed ends far lower; it was run only with the most local steps, which must not profit."""
    lucky = local_steps([*RISING[:-1], 1e-6], seeds=(1,))[-1]
    worse = ENTRIES["local-steps"].claims[1]
    assert worse.verdict(measured(*local_steps(RISING), lucky)).result == "pass"
    assert worse.verdict(measured(*local_steps(RISING[::-1]))).result == "fail"


@pytest.mark.parametrize("ours", [falling(1e-3), GONE])
def test_nothing_is_close_to_a_reference_that_diverged(ours):
    """With the second seed only: a ratio of 0 or NaN must not vanish behind the first one's."""
    fine = falling(1e-3)
    found = measured(
        *by_seed(**{UNQUANTIZED: (fine, GONE), HIDDEN_QSGD: (fine, ours), DIRECT_QSGD: (falling(8e-3), ours)})
    )
    assert verdicts(ENTRIES["qafel-vs-direct-qsgd"], found) == ["not comparable", "not comparable"]
    assert "diverged" in ENTRIES["qafel-vs-direct-qsgd"].claims[0].verdict(found).because
