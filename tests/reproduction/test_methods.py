"""All methods on a network: targets that were made before, and claims from runs made up to pass or to fail them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reproduction.entries import ENTRIES
from reproduction.entry import Extent
from reproduction.methods import CLAIMS, METHODS, PILOTS, made_target
from reproduction.neural import DIRECT, FEDASYNC, FEDASYNC_DIRECT, QAFEL
from reproduction.store import Store
from tests.reproduction.made_up import made_up, measured

RESULTS = Path(__file__).parents[2] / "reproduction/results"


@pytest.mark.parametrize("family", PILOTS)
def test_a_parts_target_is_what_fedbuff_reached_with_another_seed_less_a_point(family, tmp_path):
    pilot = next(run for run in ENTRIES["targets"].plan(Extent()) if run.method == family)
    ((_, run),) = Store(tmp_path, RESULTS).load([pilot])
    runs = ENTRIES["methods"].plan(Extent(family=family))
    assert {one.config.evaluation.target for one in runs} == {made_target(run)}
    assert pilot.config.seed not in {run.config.seed for run in runs}
    assert {run.method for run in runs} == set(METHODS)


def on_a_part(needs, seeds=(0, 1, 2), **ends):
    """All methods to a target of 0.876, with these steps of a hundred; None: it stays at 0.2."""
    sizes = {QAFEL: 1000, DIRECT: 1000, FEDASYNC_DIRECT: 1000}
    pairs = []
    for method in METHODS:
        steps = needs.get(method, 50)
        rise = ends.get(method) if steps is None else 0.1 + (0.876 - 0.1) * np.arange(101) / steps
        size, each = sizes.get(method, 8000), 1 if method in (FEDASYNC, FEDASYNC_DIRECT) else 10
        facts = {"target": 0.876, "metric_goal": "max", "clients": 805, "recipe": "celeba-part-fedbuff-c100"}
        facts |= {"upload_bytes": size, "broadcast_bytes": size, "per_step": each}
        pairs += [made_up(method, rise, seed, {"concurrency": 100.0}, **facts) for seed in seeds]
    return measured(*pairs)


SLOW, STUCK = np.linspace(0.1, 0.7, 101), np.full(101, 0.2)
AWAY = np.concatenate((np.linspace(0.1, 0.7, 50), np.linspace(0.7, 0.1, 51)))


@pytest.mark.parametrize(
    ("end", "expected", "words"),
    [(STUCK, "pass", "3 stalled"), (AWAY, "pass", "3 diverged"), (SLOW, "undecided", "3 were still rising")],
    ids=["stuck", "away", "slow"],
)
def test_direct_quantization_stalls_diverges_or_is_only_slow(end, expected, words):
    verdict = CLAIMS[2].verdict(on_a_part({DIRECT: None}, **{DIRECT: end}))
    assert (verdict.result, words in verdict.because) == (expected, True)
    good = CLAIMS[2].verdict(on_a_part({}))
    assert (good.result, "63 %" in good.because) == ("undecided", True)
    assert CLAIMS[2].verdict(on_a_part({QAFEL: None}, **{QAFEL: SLOW})).result == "not comparable"
    assert CLAIMS[2].verdict(on_a_part({QAFEL: None}, **{QAFEL: STUCK})).result == "fail", "QAFeL itself stalls"


def test_the_claims_on_a_part_are_decided_by_its_own_runs():
    whole = on_a_part({FEDASYNC: 500, FEDASYNC_DIRECT: 500})
    assert [claim.verdict(whole).result for claim in CLAIMS[:2]] == ["pass", "pass"]
    assert CLAIMS[3].verdict(whole).result == "by construction"
    assert CLAIMS[4].verdict(whole).result == "not comparable", "FedAsync did not meet the target"
    quick = on_a_part({FEDASYNC: 60, FEDASYNC_DIRECT: 90})
    assert [claim.verdict(quick).result for claim in CLAIMS[4:]] == ["fail", "fail"]
    assert CLAIMS[0].verdict(on_a_part({QAFEL: 80})).result == "fail"


def test_where_fedasyncs_published_steps_do_not_learn_it_is_run_with_fedbuffs_and_judged_by_these():
    def steps(method):
        (run,) = [run for run in runs if run.method == method and run.config.seed == 0]
        return run.config.algorithm.client_lr, run.config.algorithm.server_lr, run.config.algorithm.server_momentum

    runs = ENTRIES["methods"].plan(Extent((0,)))
    again = [f"{method}, FedBuff's steps" for method in (FEDASYNC, FEDASYNC_DIRECT)]
    assert {run.method for run in runs} == {*METHODS, *again}
    assert steps(again[0]) == steps(again[1]) == steps("FedBuff") != steps(FEDASYNC)
    dead = on_a_part({FEDASYNC: None, FEDASYNC_DIRECT: None}, **{FEDASYNC: STUCK, FEDASYNC_DIRECT: STUCK})
    assert CLAIMS[4].verdict(dead).result == "not comparable"
    assert "did not learn" in CLAIMS[5].verdict(dead).because
    alive = on_a_part({FEDASYNC: 60, FEDASYNC_DIRECT: 90})
    renamed = [(replace(planned, method=f"{planned.method}, FedBuff's steps"), run) for planned, run in alive.pairs]
    both = measured(*dead.pairs, *(pair for pair in renamed if pair[0].method in again))
    assert [claim.verdict(both).result for claim in CLAIMS[4:]] == ["fail", "fail"]
    notes = ENTRIES["methods"].notes
    assert [any("with FedBuff's" in note for note in notes(runs)) for runs in (dead, both)] == [False, True]
