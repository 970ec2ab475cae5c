"""Verdicts follow from runs: made-up runs that fulfil a claim pass it, and others fail it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.experiments import ENTRIES
from qafel.experiments.convex import DIRECT_QSGD, DIRECT_TOP, HIDDEN_QSGD, HIDDEN_TOP, LOCAL_STEPS, UNQUANTIZED
from qafel.experiments.measured import Spread, settled
from qafel.experiments.neural import DIRECT, FEDASYNC, FEDBUFF, QAFEL
from qafel.experiments.rate_effects import CLIENT_EFFECT, by_horizon
from qafel.experiments.rate_runs import AT as VARIED_AT
from qafel.experiments.rate_runs import (
    BUFFERS,
    CLIENT,
    CLIENT_SPECS,
    CONCURRENCIES,
    HORIZONS,
    REFERENCE,
    SERVER,
    SERVER_SPECS,
    STALE,
    Kind,
    slope,
)
from qafel.experiments.rate_runs import QAFEL as RATE_QAFEL
from qafel.quantizers import parse
from tests.experiments.made_up import falling, made_up, measured, rising, verdicts


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


def neural(bytes_up, **options):
    """FedBuff and QAFeL at three concurrencies and two seeds, all of which meet the target."""
    pairs = []
    for concurrency in (100.0, 500.0, 1000.0):
        for seed in (0, 1):
            common = {"seed": seed, "at": {"concurrency": concurrency}, "recipe": "cifar10-fedbuff-c100"}
            common |= {"target": 0.6, "metric_goal": "max"}
            pairs.append(made_up(FEDBUFF, rising(0.8), upload_bytes=8000, broadcast_bytes=8000, **common))
            own = {"upload_bytes": bytes_up, "broadcast_bytes": bytes_up} | options | common
            pairs.append(
                made_up(QAFEL, rising(options.get("reaches", 0.8)), **{k: v for k, v in own.items() if k != "reaches"})
            )
    return measured(*pairs)


def test_neural_claims_follow_bytes_and_uploads():
    assert verdicts(ENTRIES["cifar10"], neural(1000)) == ["pass", "pass", "pass"]
    assert verdicts(ENTRIES["cifar10"], neural(2000)) == ["pass", "fail", "pass"]
    assert verdicts(ENTRIES["cifar10"], neural(1000, broadcast_bytes=8000)) == ["pass", "pass", "fail"]
    assert verdicts(ENTRIES["cifar10"], neural(500, reaches=0.62)) == ["fail", "pass", "pass"]
    assert verdicts(ENTRIES["celeba"], neural(1000, reaches=0.62)) == ["pass", "pass", "pass"]


def test_a_target_that_was_not_met_compares_nothing():
    found = neural(1000, reaches=0.5)
    for claim in ENTRIES["cifar10"].claims:
        verdict = claim.verdict(found)
        assert verdict.result == "not comparable"
        assert "not every seed met the target" in verdict.because


def test_direct_quantization_must_fail_with_some_seed_at_500_and_1000():
    claim = ENTRIES["shakespeare"].claims[3]
    found = list(neural(1000).pairs)
    options = {"recipe": "shakespeare-fedbuff-c100", "target": 0.6, "metric_goal": "max"}

    def direct(first):
        return [
            made_up(DIRECT, rising(0.8 if seed else first), seed, {"concurrency": place}, **options)
            for place in (500.0, 1000.0)
            for seed in (0, 1)
        ]

    assert claim.verdict(measured(*found, *direct(0.3))).result == "pass"
    assert claim.verdict(measured(*found, *direct(0.8))).result == "fail"
    assert claim.verdict(measured(*found)).result == "not comparable"


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


def bits(uploads, task="celeba"):
    """Runs whose accuracy meets 0.9 after so many uploads, for each pair of bits."""
    sizes = {8: 29_988, 4: 15_444, 2: 8_172, 32: 117_192}
    pairs = []
    for (client, server), needed in uploads.items():
        method = FEDBUFF if client == 32 else f"QAFeL ({client}, {server})"
        accuracy = np.linspace(0.5, 0.5 + 0.4 * 1000 / needed, 101)
        at = {"client": float(client), "server": float(server)}
        options = {"recipe": f"{task}-fedbuff-c100", "target": 0.9, "metric_goal": "max"}
        pairs.append(
            made_up(method, accuracy, at=at, upload_bytes=sizes[client], broadcast_bytes=sizes[server], **options)
        )
    return measured(*pairs)


def test_table_3s_claims_follow_the_uploads_of_each_pair():
    pairs = [(client, server) for client in (8, 4, 2) for server in (8, 4, 2)]
    good = {pair: 300 if pair[0] > 2 else 600 for pair in pairs} | {(32, 32): 300}
    assert verdicts(ENTRIES["bits"], bits(good)) == ["pass"] * 6
    bad = {pair: 300 * 8 // pair[1] if pair[0] == 2 else 900 for pair in pairs} | {(32, 32): 100}
    assert verdicts(ENTRIES["bits"], bits({pair: min(990, needed) for pair, needed in bad.items()})) == [
        "pass", "fail", "fail", "fail", "fail", "fail",
    ]  # fmt: skip
    assert ENTRIES["bits"].claims[0].verdict(bits(good, "cifar10")).result == "not comparable"


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
        for kind in (REFERENCE, CLIENT, SERVER, RATE_QAFEL, Kind(concurrency=STALE))
    }
    for buffer in BUFFERS:
        kinds |= {(VARIED_AT, Kind(buffer=buffer)), (VARIED_AT, Kind(client=CLIENT.client, buffer=buffer))}
    kinds |= {(VARIED_AT, Kind(client=spec)) for spec in CLIENT_SPECS}
    kinds |= {(VARIED_AT, Kind(server=spec)) for spec in SERVER_SPECS}
    kinds |= {(VARIED_AT, Kind(concurrency=concurrency)) for concurrency in CONCURRENCIES}
    pairs = []
    for horizon, kind in kinds:
        value = power_law(kind, horizon, {"client": -0.5, "server": -1.0, "stale": -1.0} | effects)
        columns = {"gradient_norm_squared": np.full(3, value)}
        at = {"T": float(horizon), "kind": kind.tag}
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
    assert slope([1, 2, 4], [1, 0.5, 0.25]) == pytest.approx(-1)
    assert math.isnan(slope([1, 2], [1, -1]))


def test_a_quick_run_decides_nothing_that_needs_the_whole():
    found = measured(*neural(1000).pairs, quick=True)
    assert verdicts(ENTRIES["cifar10"], found) == ["not comparable"] * 3


def test_a_spread_knows_what_is_not_finite():
    spread = Spread.of([1.0, math.inf])
    assert spread.mean == math.inf
    assert Spread.of([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 1.0, 3.0, 3)
    assert math.isnan(Spread.of([]).mean)


def test_runs_that_are_missing_compare_nothing_and_pass_nothing():
    """For every entry: one made-up run of another method fulfils no claim by its being alone."""
    for name, entry in ENTRIES.items():
        if name == "seeds":
            continue
        found = measured(made_up("another method", falling(1e-3), at={"concurrency": 100.0, "client": 1, "server": 1}))
        for claim in entry.claims:
            assert claim.verdict(found).result == "not comparable", (name, claim.text)
