"""Claims on neural networks, from runs made up to pass or to fail them."""

from __future__ import annotations

import math

import numpy as np

from qafel.search import RunSpec
from reproduction.entries import ENTRIES
from reproduction.entry import Extent
from reproduction.neural import DIRECT, FEDASYNC, FEDASYNC_DIRECT, FEDBUFF, QAFEL
from tests.reproduction.made_up import made_up, measured, rising, verdicts

CLIENTS = {"cifar10": 5000, "celeba": 9343, "shakespeare": 1129}


TARGETS = {"cifar10": 0.6, "celeba": 0.9, "shakespeare": 0.54}


CONCURRENT = (100.0, 500.0, 1000.0)


def network(method, meets_after, seed=0, at=100.0, task="cifar10", **options):
    """A run of the published size whose accuracy meets the target after so many of a hundred steps, or never."""
    rise = np.full(101, 0.2) if meets_after is None else 0.1 + (TARGETS[task] - 0.1) * np.arange(101) / meets_after
    facts = {"target": TARGETS[task], "metric_goal": "max", "clients": CLIENTS[task]}
    own = {"upload_bytes": 8000, "broadcast_bytes": 8000, "recipe": f"{task}-fedbuff-c100"} | facts | options
    return made_up(method, rise, seed, {"concurrency": at}, **own)


def neural(bytes_up, needs=50, seeds=(0, 1), task="cifar10", **options):
    """FedBuff, which needs 50 steps, and QAFeL at three concurrencies."""
    ours = {"upload_bytes": bytes_up, "broadcast_bytes": bytes_up} | options
    return measured(
        *(network(FEDBUFF, 50, seed, place, task) for place in CONCURRENT for seed in seeds),
        *(network(QAFEL, needs, seed, place, task, **ours) for place in CONCURRENT for seed in seeds),
    )


OF_COURSE = "by construction"


def test_neural_claims_follow_bytes_and_uploads():
    assert verdicts(ENTRIES["cifar10"], neural(1000)) == ["pass", "pass", OF_COURSE]
    assert verdicts(ENTRIES["cifar10"], neural(2000)) == ["pass", "fail", OF_COURSE]
    assert verdicts(ENTRIES["cifar10"], neural(1000, broadcast_bytes=8000)) == ["pass", "pass", "fail"]
    assert verdicts(ENTRIES["cifar10"], neural(500, needs=70)) == ["fail", "pass", OF_COURSE]
    assert verdicts(ENTRIES["cifar10"], neural(1000, needs=20)) == ["fail", "pass", OF_COURSE], "far fewer: not similar"
    assert verdicts(ENTRIES["celeba"], neural(1000, needs=70, task="celeba")) == ["pass", "pass", OF_COURSE]
    assert verdicts(ENTRIES["celeba"], neural(1000, needs=20, task="celeba")) == ["pass", "pass", OF_COURSE]


def noisy(ours, theirs=(50, 50, 50), **options):
    """QAFeL and FedBuff with as many steps to the target as are given, seed by seed, at every concurrency."""
    pairs = []
    for method, needed, own in ((FEDBUFF, theirs, {}), (QAFEL, ours, {"upload_bytes": 1000, "broadcast_bytes": 1000})):
        chosen = [(seed, steps, place) for place in CONCURRENT for seed, steps in enumerate(needed)]
        pairs += [network(method, steps, seed, place, **own | options) for seed, steps, place in chosen]
    return measured(*pairs)


def test_seeds_that_cannot_tell_decide_nothing():
    """Ranges overlap at 45 to 80 against 75 to 90 and at 30 to 90 against 50: neither is shown to be similar."""
    claim = ENTRIES["cifar10"].claims[0]
    assert claim.verdict(noisy((75, 90), (45, 80))).result == "undecided"
    assert claim.verdict(noisy((30, 90, 50))).result == "undecided"
    assert claim.verdict(noisy((52, 49, 50))).result == "pass"
    assert claim.verdict(noisy((80, 82, 81))).result == "fail"
    alone = claim.verdict(noisy((50,), (50,)))
    assert (alone.result, "one seed detects nothing" in alone.because) == ("undecided", True)


def test_at_least_six_times_is_judged_by_its_interval():
    """8 times fewer bytes a message, for 1 to 1.6 times the uploads: the mean is above 6, its interval not."""
    claim = ENTRIES["cifar10"].claims[1]
    assert claim.verdict(noisy((52, 50, 51))).result == "pass"
    assert claim.verdict(noisy((50, 80, 55))).result == "undecided"
    assert claim.verdict(noisy((90, 92, 88))).result == "fail"


def test_a_verdict_states_its_interval_its_seeds_and_what_could_be_seen():
    because = ENTRIES["cifar10"].claims[0].verdict(noisy((52, 49, 50))).because
    assert "margin 1.25: 1.01 [0.956, 1.06] (concurrency 100, 3 seeds)" in because
    assert "detectable factor: 1.12" in because, "of a claim about three concurrencies"


def test_a_run_that_never_met_the_target_needs_more_and_is_never_similar():
    """It ends after 100 steps, twice FedBuff's; with one seed of three, or with all."""
    alike, fewer, _ = ENTRIES["cifar10"].claims
    assert [claim.verdict(noisy((None,) * 3)).result for claim in (alike, fewer)] == ["fail", "fail"]
    assert alike.verdict(noisy((50, 50, None))).result == "undecided"
    assert "∞" in alike.verdict(noisy((50, 50, None))).because
    lost = alike.verdict(noisy((50, 50, 50), (50, 50, None)))
    assert (lost.result, "FedBuff, the reference" in lost.because) == ("not comparable", True)
    unpaired = measured(*noisy((50, 50)).pairs, network(QAFEL, None, seed=7, at=500.0))
    assert "was not run with" in alike.verdict(unpaired).because


def test_methods_are_compared_on_the_seeds_that_both_have():
    """FedBuff's slow third seed must not make QAFeL, which was not run with it, look good."""
    pairs = [network(FEDBUFF, 99 if seed == 2 else 40, seed, place) for place in CONCURRENT for seed in (0, 1, 2)]
    pairs += [network(QAFEL, 60, seed, place, upload_bytes=1000) for place in CONCURRENT for seed in (0, 1)]
    claim = ENTRIES["cifar10"].claims[0]
    verdict = claim.verdict(measured(*pairs))
    assert verdict.result == "fail"
    assert "1.5 [1.44, 1.56] (concurrency 100, 2 seeds)" in verdict.because, "no wider than a step of evaluation has it"
    apart = [network(FEDBUFF, 40, 0, place) for place in CONCURRENT]
    apart += [network(QAFEL, 40, 1, place) for place in CONCURRENT]
    assert "share no seed" in claim.verdict(measured(*apart)).because


def test_a_part_of_the_published_runs_decides_nothing():
    """One concurrency, fewer clients, or other recipes are not what the claim is about."""
    whole = neural(1000)
    only_100 = measured(*(pair for pair in whole.pairs if pair[0].at["concurrency"] == 100.0))
    for claim in ENTRIES["cifar10"].claims:
        verdict = claim.verdict(only_100)
        assert (verdict.result, "500, 1000" in verdict.because) == ("not comparable", True)
    split = [
        network(method, 50, seed, place, "celeba", clients=8408)
        for place in CONCURRENT
        for method in (FEDBUFF, QAFEL)
        for seed in (0, 1)
    ]
    assert ENTRIES["celeba"].claims[0].verdict(measured(*split)).result == "pass", "a tenth of the users is held out"
    few = [network(method, 50, 0, place, "celeba", clients=895) for place in CONCURRENT for method in (FEDBUFF, QAFEL)]
    for claim in ENTRIES["celeba"].claims:
        verdict = claim.verdict(measured(*few))
        assert (verdict.result, "895 here, 9,343" in verdict.because) == ("not comparable", True)


def test_direct_quantization_must_fail_with_some_seed_at_500_and_1000():
    claim = ENTRIES["shakespeare"].claims[3]
    found = neural(1000, seeds=(0, 1, 2), task="shakespeare").pairs

    def direct(first, places=(500.0, 1000.0), seeds=(0, 1, 2)):
        return [
            network(DIRECT, 50 if seed else first, seed, place, "shakespeare") for place in places for seed in seeds
        ]

    assert claim.verdict(measured(*found, *direct(None))).result == "pass"
    for needs in (50, 110):  # slow is not failed
        good = claim.verdict(measured(*found, *direct(needs)))
        assert (good.result, "63 %" in good.because) == ("undecided", True)
    assert claim.verdict(measured(*found)).result == "not comparable"
    assert claim.verdict(measured(*found, *direct(None, places=(500.0,)))).result == "not comparable"
    assert "about 3 seeds" in claim.verdict(measured(*found, *direct(None, seeds=(0, 1)))).because


def test_fedasyncs_claims_follow_its_uploads_and_broadcasts():
    alike, more = ENTRIES["shakespeare"].claims[5:]
    found = neural(1000, task="shakespeare").pairs

    def fedasync(needs, broadcast_bytes):
        direct = {"upload_bytes": 1000, "broadcast_bytes": broadcast_bytes, "task": "shakespeare"}
        pairs = [network(FEDASYNC, 50, seed, place, "shakespeare") for place in CONCURRENT for seed in (0, 1)]
        pairs += [network(FEDASYNC_DIRECT, needs, seed, place, **direct) for place in CONCURRENT for seed in (0, 1)]
        return measured(*found, *pairs)

    assert [claim.verdict(fedasync(55, 10_000)).result for claim in (alike, more)] == ["pass", "pass"]
    assert [claim.verdict(fedasync(90, 2000)).result for claim in (alike, more)] == ["fail", "fail"]


def test_fedasync_broadcasts_ten_times_as_often_or_the_claim_fails():
    claim = ENTRIES["shakespeare"].claims[4]
    for per_step, expected in ((1, OF_COURSE), (5, "fail")):
        found = measured(made_up(FEDBUFF, rising(0.8)), made_up(FEDASYNC, rising(0.8), per_step=per_step))
        assert claim.verdict(found).result == expected


def test_seeds_differ_or_the_claim_is_undecided():
    def found(*ends):
        options = {"recipe": "shakespeare-fedbuff-direct-c500", "metric_goal": "max", "target": 0.54}
        return measured(*(made_up(f"seed {seed}", rising(end), seed, **options) for seed, end in enumerate(ends)))

    assert verdicts(ENTRIES["seeds"], found(0.1, 0.6, 0.6)) == ["pass"]
    assert verdicts(ENTRIES["seeds"], found(0.5, 0.6, 0.6)) == ["undecided"]
    assert verdicts(ENTRIES["seeds"], found(0.6)) == ["not comparable"]


def test_seeds_that_were_cut_short_differ_only_if_one_diverged():
    """A seed that is behind may only be slow."""

    def found(*curves):
        pairs = [(seed, RunSpec(f"seed {seed}", run.config)) for seed, run in enumerate(cut)]
        made = [made_up(planned.method, curves[seed], seed, metric_goal="max")[1] for seed, planned in pairs]
        return measured(*((planned, run) for (_, planned), run in zip(pairs, made, strict=True)))

    cut = ENTRIES["seeds"].plan(Extent(uploads=650))
    away = np.concatenate((rising(0.5)[:50], np.linspace(0.3, 0.05, 51)))
    slow = ENTRIES["seeds"].claims[0].verdict(found(rising(0.2), rising(0.6), rising(0.6)))
    assert (slow.result, slow.because) == ("not comparable", "0 of 3 diverged within 650 of 50,000 uploads")
    assert verdicts(ENTRIES["seeds"], found(away, rising(0.6), rising(0.6))) == ["pass"]


def test_a_quick_run_decides_nothing_that_needs_the_whole():
    found = measured(*neural(1000).pairs, quick=True)
    assert verdicts(ENTRIES["cifar10"], found) == ["not comparable"] * 3


def test_a_reduction_without_a_common_seed_is_unknown_in_the_table():
    options = {"at": {"concurrency": 100.0}, "target": 0.6, "metric_goal": "max", "recipe": "cifar10-fedbuff-c100"}
    ours, theirs = (made_up(method, rising(0.8), seed, **options) for seed, method in enumerate((QAFEL, FEDBUFF)))
    for found in (measured(ours), measured(ours, theirs)):
        assert math.isnan(ENTRIES["cifar10"].table(found).rows[0][5])
