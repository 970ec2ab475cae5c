"""Claims on mushrooms: noise is no divergence, a slow fall no level, seeds are compared alike; Table I's traits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reproduction.comparison import best_level, settled
from reproduction.convex import (
    DIRECT,
    DIRECT_QSGD,
    DIRECT_TOP,
    FEDBUFF,
    HIDDEN,
    HIDDEN_QSGD,
    HIDDEN_TOP,
    LOCAL_STEPS,
    MCM,
    PLAIN_MCM,
    QAFEL,
    UNQUANTIZED,
)
from reproduction.entries import ENTRIES
from reproduction.entry import Extent
from tests.reproduction.made_up import GONE, by_seed, drawn, falling, made_up, measured, verdicts


def convex(name, **levels):
    """An entry's verdicts on runs that settle at these levels, three seeds each."""
    pairs = [made_up(method, metric, seed) for method, metric in levels["runs"].items() for seed in (0, 1, 2)]
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

    def found(gone, fine):
        """Both direct methods diverge with so many seeds, and stay where the unquantized one is with the others."""
        pairs = []
        for seed in range(gone + fine):
            pairs.append(made_up(UNQUANTIZED, falling(1e-3), seed))
            metric, status = (GONE, "diverged") if seed < gone else (falling(1e-3), "finished")
            pairs += [made_up(method, metric, seed, status=status) for method in (DIRECT_QSGD, DIRECT_TOP)]
        return verdicts(ENTRIES["direct-vs-unquantized"], measured(*pairs))

    assert found(3, 0) == ["pass", "pass"]
    assert found(1, 2) == found(2, 1) == found(1, 0) == ["undecided", "undecided"], "not with every seed of three"
    assert found(0, 3) == ["fail", "fail"]


def test_a_slow_run_has_not_failed_to_converge():
    """Far from the unquantized run, but still falling: more steps may bring it there."""
    slow = np.geomspace(0.68, 8e-3, 101)
    assert convex(
        "qafel-vs-direct-qsgd", runs={UNQUANTIZED: falling(1e-3), HIDDEN_QSGD: falling(1e-3), DIRECT_QSGD: slow}
    ) == [
        "pass",
        "undecided",
    ]


@pytest.mark.parametrize(("more_is_worse", "expected"), [(True, "undecided"), (False, "fail")])
def test_where_a_run_is_still_falling_nobody_knows_where_it_will_end(more_is_worse, expected):
    """P = 1 still falls; the others end higher, or lower, with more steps."""
    pairs = []
    for steps in LOCAL_STEPS:
        level = 1e-3 * (steps if more_is_worse else 40 - steps)
        metric = level + 0.68 * np.exp(-np.arange(101) * steps / 40)
        pairs += [made_up(f"P = {steps}", metric, seed) for seed in (0, 1)]
    assert verdicts(ENTRIES["local-steps"], measured(*pairs)) == ["pass", expected]


def test_what_one_seed_shows_and_the_others_do_not_is_undecided():
    """P = 32 ends higher than P = 16 with two seeds of three, and lower with the third."""
    pairs = local_steps(RISING, seeds=(0, 1)) + local_steps([*RISING[:-1], 0.9 * RISING[-2]], seeds=(2,))
    assert ENTRIES["local-steps"].claims[1].verdict(measured(*pairs)).result == "undecided"
    alone = ENTRIES["local-steps"].claims[1].verdict(measured(*local_steps(RISING, seeds=(0,))))
    assert alone.result == "undecided"


DIVERGES = ENTRIES["direct-vs-unquantized"].claims[1]


def test_a_noisy_plateau_is_no_divergence():
    """Its lowest value is far below where it stays, its lowest level is not."""
    noise = np.random.default_rng(0).lognormal(sigma=0.5, size=101)
    plateau = made_up(DIRECT_TOP, falling(0.01) * noise)
    assert plateau[1].column("metric").min() < best_level(plateau[1]) / 2

    def verdict(metric, seeds):
        return DIVERGES.verdict(measured(*(made_up(DIRECT_TOP, metric, seed) for seed in range(seeds))))

    assert verdict(falling(0.01) * noise, 3).result == "fail"
    away = np.concatenate((falling(0.01)[:50], np.linspace(0.01, 0.2, 51))) * noise
    assert verdict(away, 3).result == "pass"
    assert "37 %" in verdict(away, 3).because
    assert verdict(away, 2).result == "undecided"


def local_steps(levels, fall=1.0, seeds=(0, 1)):
    """Runs that fall ever faster with P to these levels, and go on falling by a factor over their second half."""
    pairs = []
    for steps, level in zip(LOCAL_STEPS, levels, strict=True):
        late = np.concatenate((np.ones(51), np.geomspace(1, fall, 40), np.full(10, fall)))
        metric = level * late + 0.68 * np.exp(-np.arange(101) * (1 + steps))
        pairs += [made_up(f"P = {steps}", metric, seed) for seed in seeds]
    return pairs


RISING = [1e-3 * (10 + steps) for steps in LOCAL_STEPS]


@pytest.mark.parametrize(("fall", "expected"), [(1.0, "pass"), (0.93, "pass"), (0.7, "undecided")])
def test_a_run_that_falls_by_a_third_over_its_second_half_has_not_settled(fall, expected):
    assert ENTRIES["local-steps"].claims[1].verdict(measured(*local_steps(RISING, fall))).result == expected


def test_local_steps_are_compared_over_common_seeds():
    """The third seed ends far lower; it was run only with the most local steps, which must not profit."""
    lucky = local_steps([*RISING[:-1], 1e-6], seeds=(2,))[-1]
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


RELATED = ENTRIES["related-work"]


TRAITS, MITIGATES, HIDDEN_HELPS, MCM_MITIGATES = RELATED.claims


def test_the_related_works_section_is_cited_for_what_it_says():
    assert {claim.where for claim in ENTRIES["direct-vs-unquantized"].claims} == {"Section I-A"}
    assert HIDDEN_HELPS.where == "Section I-A"


SYNCHRONOUS = {"staleness_max": 0}


METHODS = {
    "FedAvg": SYNCHRONOUS,
    MCM: SYNCHRONOUS | {"upload_bytes": 100},
    PLAIN_MCM: SYNCHRONOUS,
    "FedAsync": {"per_step": 1},
    FEDBUFF: {},
    QAFEL: {"upload_bytes": 100},
    DIRECT: {"per_step": 1, "upload_bytes": 100},
    HIDDEN: {"per_step": 1, "upload_bytes": 100},
}


ENDS = {DIRECT: 2e-3}


def related(ends=ENDS, seeds=(0, 1), **methods):
    """Runs of all methods with the traits that Table I gives them, but for those given."""
    return measured(
        *(
            made_up(method, falling(ends.get(method, 1e-3)), seed, **options | methods.get(method, {}))
            for method, options in METHODS.items()
            for seed in seeds
        )
    )


def test_table_1s_traits_pass():
    assert [claim.verdict(related()).result for claim in RELATED.claims] == ["by construction", *["pass"] * 3]


@pytest.mark.parametrize(
    ("method", "trait"),
    [
        ("FedAvg", {"staleness_max": 2}),
        (MCM, {"upload_bytes": 500}),
        ("FedAsync", {"per_step": 10}),
        (FEDBUFF, {"staleness_max": 0}),
        (FEDBUFF, {"upload_bytes": 100}),
        (QAFEL, {"per_step": 1}),
    ],
)
def test_a_trait_other_than_table_1s_fails(method, trait):
    verdict = TRAITS.verdict(related(**{method: trait}))
    assert (verdict.result, verdict.because) == ("fail", f"otherwise for {method}")


@pytest.mark.parametrize(("claim", "method"), [(MITIGATES, QAFEL), (MCM_MITIGATES, MCM)], ids=["QAFeL", "MCM"])
@pytest.mark.parametrize(("level", "expected"), [(0.9e-3, "pass"), (1.2e-3, "pass"), (1.4e-3, "fail")])
def test_error_is_mitigated_if_the_end_is_close_to_the_unquantized_one(claim, method, level, expected):
    assert claim.verdict(related(ENDS | {method: level})).result == expected


def test_where_direct_quantization_does_no_harm_nothing_is_mitigated():
    for verdict in [claim.verdict(related({})) for claim in RELATED.claims[1:]]:
        assert (verdict.result, "no error here" in verdict.because) == ("not comparable", True)


def test_mcms_reference_is_mcm_without_quantizers():
    planned = {run.method: run.config for run in RELATED.plan(Extent((0,)))}
    ours, plain = planned[MCM], planned[PLAIN_MCM]
    assert {plain.algorithm.client_quantizer, plain.algorithm.server_quantizer} == {"none"}
    quantizers = {"client_quantizer": "none", "server_quantizer": "none"}
    assert ours.algorithm.model_copy(update=quantizers) == plain.algorithm


def some():
    """Only three methods, each with seeds of its own."""
    pairs = [pair for pair in related().pairs if pair[0].method in (QAFEL, FEDBUFF, HIDDEN)]
    return measured(*(pair for pair in pairs if (pair[0].config.seed == 0) == (pair[0].method == QAFEL)))


@pytest.mark.parametrize(
    ("found", "results"),
    [(related(), {"by construction", "pass"}), (some(), {"not comparable"})],
    ids=["full", "partial"],
)
def test_related_works_outputs_are_made_for_all_runs_and_for_some(found, results):
    assert {claim["result"] for claim in drawn(RELATED, found)["claims"]} == results


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
    high, low = [falling(8e-3)] * 2, [falling(1e-3)] * 2
    ends = {DIRECT: (*high, direct), HIDDEN: (*low, hidden), FEDBUFF: (*low, falling(1e-3))}
    found = measured(*by_seed(**ends))
    assert ENTRIES["related-work"].claims[2].verdict(found).result == expected
