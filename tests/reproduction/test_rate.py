"""Corollary 3.2's claims on runs made up to follow its terms, or to break them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qafel.quantizers import parse
from qafel.runs.reading import Spread
from reproduction.entries import ENTRIES
from reproduction.entry import Extent
from reproduction.rate import (
    CLIENT_EFFECT,
    EFFECTS,
    HORIZONS,
    NAMES,
    QAFEL,
    REFERENCE,
    SERVER,
    SIZE,
    Trend,
    by_horizon,
    over_fedbuff,
    variants,
)
from tests.reproduction.made_up import drawn, made_up, measured

KINDS = {kind.tag: kind for kind in (*NAMES, *variants())}


JOINS = "Asymptotically, QAFeL's rate is that of FedBuff"


AS_SERVER, AS_STALE = "Server quantization enters at most as 1/δ_s²", "Staleness enters at most as its square"


FALLS = "The mean of ‖∇f(xᵗ)‖² falls at least as fast as 1/√T"


def law(kind, horizon, rate=-0.5, server=2.0, server_rate=-1.0, stale=2.0, stale_rate=-1.0):
    """The corollary's terms with small constants; the powers are those of T, of 1/δ_s and of the staleness."""
    client, lag = (1 - parse(kind.client).delta(SIZE)) / kind.buffer, 1 / parse(kind.server).delta(SIZE) ** server
    added = 0.2 * client * horizon**-0.5 + 0.05 * (lag - 1) * horizon**server_rate
    return horizon**rate + added + 0.01 * kind.concurrency**stale * horizon**stale_rate


def runs(luck=1.0, leave=lambda planned: True, **powers):
    """All runs of the entry, as many times `law` as the seed's luck has it."""
    pairs = []
    for planned in ENTRIES["rate"].plan(Extent((0, 1))):
        kind, horizon = KINDS[planned.at["variant"]], planned.at["T"]
        mean = law(kind, horizon, **powers) * luck**planned.config.seed
        columns = {"gradient_norm_squared": np.full(3, mean)}
        stale = {"staleness_mean": kind.concurrency / 10, "staleness_max": kind.concurrency // 4}
        if leave(planned):
            pairs.append((planned, made_up(planned.method, np.ones(3), columns=columns, **stale)[1]))
    return measured(*pairs)


def verdicts(found):
    return {claim.text: claim.verdict(found) for claim in ENTRIES["rate"].claims}


def results(found):
    return {text: verdict.result for text, verdict in verdicts(found).items()}


def test_the_corollarys_own_terms_pass_every_claim():
    found = results(runs())
    assert found.pop("The mean stays below the corollary's terms, for large enough T") == "not comparable"
    assert set(found.values()) == {"pass"}
    assert by_horizon(runs(), CLIENT_EFFECT).slope.estimate == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("powers", "text"),
    [
        ({"server": 3.0}, AS_SERVER),
        ({"server": -1.0}, AS_SERVER),
        ({"stale": 3.0}, AS_STALE),
        ({"rate": -0.4}, FALLS),
        ({"server_rate": -0.5}, JOINS),
        ({"server_rate": 0.0}, JOINS),
        ({"stale_rate": -0.5}, "Staleness enters at 1/T"),
        ({"server_rate": -0.5}, "Server quantization enters at 1/T"),
    ],
)
def test_other_powers_fail_their_claim(powers, text):
    assert results(runs(**powers))[text] == "fail"


def test_the_servers_effect_is_a_difference_from_delta_1():
    """1/δ_s² − 1, and not 1/δ_s²: against it, the corollary's own term has slope 1 exactly."""
    assert "against 1/δ_s² − 1: slope 1, predicted at most 1" in verdicts(runs())[AS_SERVER].because


def test_qafel_is_compared_with_fedbuff_seed_by_seed():
    """With later seeds three times as unlucky, QAFeL's alone would seem to win by those that were not run."""
    first = runs(luck=3.0, leave=lambda planned: planned.at["variant"] != QAFEL.tag or planned.config.seed < 2)
    assert over_fedbuff(first).y == pytest.approx(over_fedbuff(runs()).y)
    assert results(first)[JOINS] == "pass"


def test_ratios_and_effects_have_a_spread():
    table = ENTRIES["rate"].table(runs(luck=1.1))
    for row in table.rows:
        assert all(isinstance(cell, Spread) for cell in row[1 : 4 + len(EFFECTS)])
    first = dict(zip((heading.title for heading in table.headings), table.rows[0], strict=True))
    assert first["QAFeL / FedBuff"].count == 8
    assert first["staleness"].std > 0


def test_every_panel_has_one_quantity_and_bars_are_ranges():
    found = runs(luck=1.1)
    panels = {panel.key: panel for panel in ENTRIES["rate"].panels(found)}
    assert [panels[key].x.label for key in ("server-delta", "staleness")] == [
        "1/δ_s² − 1",
        "mean staleness, server steps",
    ]
    assert [series.label for series in panels["ratio"].series] == [NAMES[QAFEL], "equal"]
    bars = panels["effects"].series[0]
    effects = ENTRIES["rate"].table(found).rows[0][4]
    assert (bars.low[0], bars.high[0]) == (effects.low, effects.high)


def partial_runs():
    """Without the server's quantizer; at the largest T only the reference."""
    return runs(
        leave=lambda planned: (
            planned.at["variant"] != SERVER.tag
            and (planned.at["T"] < HORIZONS[-1] or planned.at["variant"] == REFERENCE.tag)
        )
    )


def test_what_is_missing_is_unknown_and_compares_nothing():
    found = verdicts(partial_runs())
    for text in (JOINS, FALLS, AS_SERVER, "Server quantization enters at 1/T"):
        assert found[text].result == "not comparable"
    assert found["… and is divided by K"].result == "pass"
    assert "missing" in found[AS_SERVER].because


@pytest.mark.parametrize("gaps", [False, True])
def test_outputs_are_made_for_all_runs_and_for_some(gaps):
    entry, found = ENTRIES["rate"], partial_runs() if gaps else runs(luck=1.1)
    last = next(line for line in entry.table(found).markdown().splitlines() if line.startswith("| 8,192"))
    assert ("| – |" in last) == gaps
    assert len(drawn(entry, found)["claims"]) == len(entry.claims)


def test_a_slope_needs_positive_values():
    assert Trend((1, 2, 4), tuple(Spread.of([y]) for y in (1, 0.5, 0.25))).slope.estimate == pytest.approx(-1)
    assert math.isnan(Trend((1, 2), (Spread.of([1]), Spread.of([-1]))).slope.estimate)


def test_a_slope_that_the_seeds_do_not_pin_down_is_undecided():
    """Two seeds, one twice as unlucky as the other: the mean is still on the line, its error is wide."""
    found = runs(luck=2.0, leave=lambda planned: planned.config.seed < 2)
    assert results(found)[FALLS] == "undecided"
