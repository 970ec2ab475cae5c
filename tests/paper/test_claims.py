"""Verdicts follow from runs: made-up runs that fulfil a claim pass it, and others fail it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.errors import ConfigError
from qafel.paper import ENTRIES
from qafel.paper.bits import PUBLISHED_UPLOADS
from qafel.paper.convex import DIRECT_QSGD, DIRECT_TOP, HIDDEN_QSGD, HIDDEN_TOP, LOCAL_STEPS, UNQUANTIZED
from qafel.paper.display import curve
from qafel.paper.entry import Extent
from qafel.paper.measured import Spread, settled
from qafel.paper.neural import DIRECT, FEDASYNC, FEDASYNC_DIRECT, FEDBUFF, QAFEL
from qafel.paper.rate import (
    BUFFERS,
    CLIENT,
    CLIENT_EFFECT,
    CLIENT_SPECS,
    CONCURRENCIES,
    HORIZONS,
    REFERENCE,
    SERVER,
    SERVER_SPECS,
    STALE,
    VARIED_AT,
    Trend,
    Variant,
    by_horizon,
)
from qafel.paper.rate import QAFEL as RATE_QAFEL
from qafel.quantizers import parse
from tests.paper.made_up import falling, made_up, measured, rising, verdicts


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
    gone = np.array([0.68, 0.5, math.nan])
    _, run = made_up(DIRECT_TOP, gone, status="diverged")
    assert settled(run) == math.inf
    runs = {UNQUANTIZED: falling(1e-3), DIRECT_QSGD: gone, DIRECT_TOP: gone}
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
        pairs.append(made_up(f"P = {steps}", metric, at={"P": steps}))
    assert verdicts(ENTRIES["local-steps"], measured(*pairs)) == ["pass", expected]


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


def test_neural_claims_follow_bytes_and_uploads():
    assert verdicts(ENTRIES["cifar10"], neural(1000)) == ["pass", "pass", "pass"]
    assert verdicts(ENTRIES["cifar10"], neural(2000)) == ["pass", "fail", "pass"]
    assert verdicts(ENTRIES["cifar10"], neural(1000, broadcast_bytes=8000)) == ["pass", "pass", "fail"]
    assert verdicts(ENTRIES["cifar10"], neural(500, needs=70)) == ["fail", "pass", "pass"]
    assert verdicts(ENTRIES["cifar10"], neural(1000, needs=20)) == ["fail", "pass", "pass"], "far fewer is not similar"
    assert verdicts(ENTRIES["celeba"], neural(1000, needs=70, task="celeba")) == ["pass", "pass", "pass"]
    assert verdicts(ENTRIES["celeba"], neural(1000, needs=20, task="celeba")) == ["pass", "pass", "pass"]


def test_what_differs_within_the_noise_of_the_seeds_is_similar():
    """Over FedBuff's 50: 75 and 40 on average, but with ranges that overlap; of one seed there is no range."""
    pairs = [network(FEDBUFF, steps, seed, place) for place in CONCURRENT for seed, steps in enumerate((45, 80))]
    pairs += [
        network(QAFEL, steps, seed, place, upload_bytes=1000, broadcast_bytes=1000)
        for place in CONCURRENT
        for seed, steps in enumerate((75, 90))
    ]
    assert verdicts(ENTRIES["cifar10"], measured(*pairs))[0] == "pass"
    alone = [pair for pair in pairs if pair[0].config.seed == 0]
    assert verdicts(ENTRIES["cifar10"], measured(*alone))[0] == "fail"


def test_a_target_that_was_not_met_compares_nothing():
    """Not even where only a seed failed that the other method was not run with."""
    unpaired = measured(*neural(1000).pairs, network(QAFEL, None, seed=2, at=500.0))
    for found in (neural(1000, needs=None), unpaired):
        for claim in ENTRIES["cifar10"].claims:
            verdict = claim.verdict(found)
            assert verdict.result == "not comparable"
            assert "not every seed met the target" in verdict.because


def test_methods_are_compared_on_the_seeds_that_both_have():
    """FedBuff's slow second seed must not make QAFeL, which was not run with it, look good."""
    pairs = [network(FEDBUFF, 40 if seed == 0 else 100, seed, place) for place in CONCURRENT for seed in (0, 1)]
    pairs += [network(QAFEL, 60, 0, place, upload_bytes=1000) for place in CONCURRENT]
    claim = ENTRIES["cifar10"].claims[0]
    verdict = claim.verdict(measured(*pairs))
    assert verdict.result == "fail"
    assert "1.50 (concurrency 100, 1 seed)" in verdict.because
    apart = [network(FEDBUFF, 40, 0, place) for place in CONCURRENT]
    apart += [network(QAFEL, 40, 1, place) for place in CONCURRENT]
    assert "no seed in common" in claim.verdict(measured(*apart)).because


def test_a_part_of_the_published_runs_decides_nothing():
    """One concurrency, fewer clients, or other recipes are not what the claim is about."""
    whole = neural(1000)
    only_100 = measured(*(pair for pair in whole.pairs if pair[0].at["concurrency"] == 100.0))
    for claim in ENTRIES["cifar10"].claims:
        verdict = claim.verdict(only_100)
        assert (verdict.result, "500, 1000" in verdict.because) == ("not comparable", True)
    split = [network(m, 50, 0, place, "celeba", clients=8408) for place in CONCURRENT for m in (FEDBUFF, QAFEL)]
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
    assert claim.verdict(measured(*found, *direct(50))).result == "fail"
    assert claim.verdict(measured(*found, *direct(110))).result == "fail", "slow is not failed"
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
    for per_step, expected in ((1, "pass"), (5, "fail")):
        found = measured(made_up(FEDBUFF, rising(0.8)), made_up(FEDASYNC, rising(0.8), per_step=per_step))
        assert claim.verdict(found).result == expected


def test_seeds_differ_or_the_claim_fails():
    def found(*ends):
        options = {"recipe": "shakespeare-fedbuff-direct-c500", "metric_goal": "max", "target": 0.54}
        return measured(*(made_up(f"seed {seed}", rising(end), seed, **options) for seed, end in enumerate(ends)))

    assert verdicts(ENTRIES["seeds"], found(0.1, 0.6, 0.6)) == ["pass"]
    assert verdicts(ENTRIES["seeds"], found(0.5, 0.6, 0.6)) == ["fail"]
    assert verdicts(ENTRIES["seeds"], found(0.6)) == ["not comparable"]


def bits(uploads, task="celeba", seeds=(0,), clients=9343):
    """Runs whose accuracy meets 0.9 after so many uploads, for each pair of bits."""
    sizes = {8: 29_988, 4: 15_444, 2: 8_172, 32: 117_192}
    pairs = []
    for (client, server), needed in uploads.items():
        method = FEDBUFF if client == 32 else f"QAFeL ({client}, {server})"
        accuracy = np.linspace(0.5, 0.5 + 0.4 * 1000 / needed, 101)
        at = {"client": float(client), "server": float(server)}
        options = {"recipe": f"{task}-fedbuff-c100", "target": 0.9, "metric_goal": "max", "clients": clients}
        options |= {"upload_bytes": sizes[client], "broadcast_bytes": sizes[server]}
        pairs += [made_up(method, accuracy, seed, at, **options) for seed in seeds]
    return measured(*pairs)


PAIRS = [(client, server) for client in (8, 4, 2) for server in (8, 4, 2)]
GOOD = {pair: 300 if pair[0] > 2 else 600 for pair in PAIRS} | {(32, 32): 300}


def test_table_3s_claims_follow_the_uploads_of_each_pair():
    sizes, table, *rest = verdicts(ENTRIES["bits"], bits(GOOD))
    assert (sizes, table, rest) == ("pass", "fail", ["pass"] * 5), "300 uploads are not the table's 27,600"
    bad = {pair: 300 * 8 // pair[1] if pair[0] == 2 else 900 for pair in PAIRS} | {(32, 32): 100}
    sizes, table, *rest = verdicts(ENTRIES["bits"], bits({pair: min(990, needed) for pair, needed in bad.items()}))
    assert (sizes, rest) == ("pass", ["fail"] * 5)
    assert verdicts(ENTRIES["bits"], bits(GOOD, "cifar10"))[:2] == ["not comparable"] * 2


def test_table_3_itself_passes_and_a_part_of_celeba_does_not_decide_it():
    claim = ENTRIES["bits"].claims[1]
    published = {pair: mean * 1000 for pair, (mean, _) in PUBLISHED_UPLOADS.items()}
    pairs = [
        made_up(planned.method, run.column("metric"), at=dict(planned.at), recipe="celeba-fedbuff-c100",
                per_step=1000, target=0.9, metric_goal="max", clients=9343)
        for planned, run in bits({pair: uploads / 100 for pair, uploads in published.items()}).pairs
    ]  # fmt: skip
    assert claim.verdict(measured(*pairs)).result == "pass"
    assert "895 here" in claim.verdict(bits(GOOD, clients=895)).because


def test_bits_are_compared_on_the_seeds_that_both_have():
    """FedBuff's second seed, which is slow, has no partner."""
    slow = bits({(32, 32): 1000}, seeds=(1,)).pairs
    worse = GOOD | {(4, 4): 600}
    claim = next(claim for claim in ENTRIES["bits"].claims if "4 bits both ways" in claim.text)
    assert claim.verdict(measured(*bits(worse).pairs, *slow)).result == "fail"


def test_the_family_of_bits_decides_its_task_and_step_size():
    for family, task, lr in (("cifar10", "cifar10", 40.9), ("celeba", "celeba", 1000.0)):
        runs = ENTRIES["bits"].plan(Extent((0,), family=family))
        assert {(run.config.task.name, run.config.algorithm.server_lr) for run in runs} == {(task, lr)}
    with pytest.raises(ConfigError, match="bits are varied on celeba or cifar10"):
        ENTRIES["bits"].plan(Extent((0,), family="shakespeare"))


def power_law(kind, horizon, effects):
    """What a run of the rate entry would give if the corollary were exact, with these powers of T."""
    total = horizon**-0.5
    if kind.client != "none":
        total += (1 - parse(kind.client).delta(64)) / kind.buffer * 5 * horizon ** effects["client"]
    if kind.server != "none":
        total += 0.5 / parse(kind.server).delta(64) * horizon ** effects["server"]
    return total + 0.1 * kind.concurrency * horizon ** effects["stale"]


def rate(**effects):
    kinds = {
        (horizon, kind)
        for horizon in HORIZONS
        for kind in (REFERENCE, CLIENT, SERVER, RATE_QAFEL, Variant(concurrency=STALE))
    }
    for buffer in BUFFERS:
        kinds |= {(VARIED_AT, Variant(buffer=buffer)), (VARIED_AT, Variant(client=CLIENT.client, buffer=buffer))}
    kinds |= {(VARIED_AT, Variant(client=spec)) for spec in CLIENT_SPECS}
    kinds |= {(VARIED_AT, Variant(server=spec)) for spec in SERVER_SPECS}
    kinds |= {(VARIED_AT, Variant(concurrency=concurrency)) for concurrency in CONCURRENCIES}
    pairs = []
    for horizon, kind in kinds:
        value = power_law(kind, horizon, {"client": -0.5, "server": -1.0, "stale": -1.0} | effects)
        columns = {"gradient_norm_squared": np.full(3, value)}
        at = {"T": float(horizon), "variant": kind.tag}
        staleness = {"staleness_mean": kind.concurrency / 10, "staleness_max": kind.concurrency // 4}
        pairs.append(made_up(kind.tag, np.ones(3), at=at, columns=columns, **staleness))
    return measured(*pairs)


def test_the_corollarys_powers_pass_and_others_fail():
    texts = [claim.text for claim in ENTRIES["rate"].claims]
    exact = dict(zip(texts, verdicts(ENTRIES["rate"], rate()), strict=True))
    assert exact.pop("The mean stays below the corollary's terms, for large enough T") == "not comparable"
    assert exact.pop("Asymptotically, QAFeL's rate is that of FedBuff") in ("pass", "fail")
    assert set(exact.values()) == {"pass"}
    for name, text in (("server", "Server quantization enters at 1/T"), ("stale", "Staleness enters at 1/T")):
        wrong = dict(zip(texts, verdicts(ENTRIES["rate"], rate(**{name: -0.5})), strict=True))
        assert wrong[text] == "fail"
    lasting = dict(zip(texts, verdicts(ENTRIES["rate"], rate(server=0.0)), strict=True))
    assert lasting["Asymptotically, QAFeL's rate is that of FedBuff"] == "fail"
    assert by_horizon(rate(), CLIENT_EFFECT).slope == pytest.approx(-0.5)


def test_a_slope_needs_positive_values():
    assert Trend((1, 2, 4), tuple(Spread.of([y]) for y in (1, 0.5, 0.25))).slope == pytest.approx(-1)
    assert math.isnan(Trend((1, 2), (Spread.of([1]), Spread.of([-1]))).slope)


def test_a_quick_run_decides_nothing_that_needs_the_whole():
    found = measured(*neural(1000).pairs, quick=True)
    assert verdicts(ENTRIES["cifar10"], found) == ["not comparable"] * 3


def test_a_curve_reaches_as_far_as_its_longest_run():
    """A run that met its target ends; the others go on."""
    short, long = (made_up(QAFEL, np.linspace(0, 1, rows), seed)[1] for seed, rows in enumerate((3, 5)))
    mean = curve(QAFEL, [short, long], "uploads")
    assert mean.x.tolist() == [0, 10, 20, 30, 40]
    assert mean.y.tolist() == [0, 0.375, 0.75, 0.75, 1]
    assert (mean.low[1], mean.high[1], mean.low[3]) == (0.25, 0.5, 0.75)


def test_a_spread_knows_what_is_not_finite():
    spread = Spread.of([1.0, math.inf])
    assert spread.mean == math.inf
    assert Spread.of([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 1.0, 3.0, 3)
    assert math.isnan(Spread.of([]).mean)
    assert math.isnan(Spread.of([1.0]).std), "one seed has no spread"


def test_runs_that_are_missing_compare_nothing_and_pass_nothing():
    """For every entry: one made-up run of another method fulfils no claim by its being alone."""
    for name, entry in ENTRIES.items():
        if name == "seeds":
            continue
        at = {"concurrency": 100.0, "client": 1, "server": 1}
        found = measured(made_up("another method", falling(1e-3), at=at, recipe="cifar10-fedbuff-c100", clients=5000))
        for claim in entry.claims:
            assert claim.verdict(found).result == "not comparable", (name, claim.text)
