"""Corollary 3.2, measured beside its terms: the slope in T, and what K, the quantizers and staleness do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from qafel.drawing.chart import Axis, Panel, Series
from qafel.paper.entry import Claim, Entry, Verdict
from qafel.paper.measured import Measured, Missing
from qafel.paper.rate_effects import (
    BUFFERS,
    CLIENT_EFFECT,
    EFFECTS,
    FACTOR,
    FEDBUFF,
    NAMES,
    QAFEL,
    REFERENCE,
    SERVER_EFFECT,
    STALE_EFFECT,
    Sweep,
    by_buffer,
    by_client_delta,
    by_horizon,
    by_server_delta,
    by_staleness,
    constants,
    effect,
    horizons,
    known,
    level,
    over_fedbuff,
    plan,
    ratio,
    setting,
    spread,
    varied_at,
)
from qafel.paper.tables import Cell, Heading, Table, metric_heading
from qafel.theory import corollary, large_enough_horizon

# What Corollary 3.2 says of the measured slopes, claim by claim.


ROOM = 0.1
"""By how much a slope may exceed what is predicted at most: it is fitted to few points."""


def _rate_claim(measured: Measured) -> Verdict:
    slopes = {
        label: level(measured, kind).slope
        for label, kind in (("FedBuff", FEDBUFF), ("QAFeL", QAFEL), ("neither", REFERENCE))
    }
    # The 1/T terms make the whole fall faster, while T is small; without them it is the rate itself.
    holds = slopes["FedBuff"] <= -0.45 and slopes["QAFeL"] <= -0.45 and abs(slopes["neither"] + 0.5) <= 0.05
    listed = f"{slopes['FedBuff']:.3f} (FedBuff), {slopes['QAFeL']:.3f} (QAFeL)"
    return Verdict.of(holds, f"slopes in log T: {listed}, {slopes['neither']:.3f} without staleness and quantizers")


def _joins(measured: Measured) -> Verdict:
    places, ratios = horizons(measured), over_fedbuff(measured).y
    return Verdict.of(
        ratios[-1] <= 1.1 and ratios[-1] < ratios[0],
        f"QAFeL over FedBuff: {ratios[0]:.3f} at T = {places[0]:g}, {ratios[-1]:.3f} at T = {places[-1]:g}",
    )


def _slope_claim(measured: Measured, sweep: Callable[[Measured], Sweep], expected: float, what: str) -> Verdict:
    found = sweep(measured).slope
    if math.isnan(found):
        return Verdict.of(False, f"{what}: not positive everywhere, so that there is no slope")
    return Verdict.of(abs(found - expected) <= 0.3, f"{what}: slope {found:.2f}, {expected:g} predicted")


def _bounded_slope(measured: Measured, sweep: Callable[[Measured], Sweep], most: float, what: str) -> Verdict:
    found = sweep(measured)
    if not all(after >= before for before, after in pairwise(found.y)):
        return Verdict.of(False, f"{what}: it does not rise everywhere")
    return Verdict.of(found.slope <= most + ROOM, f"{what}: slope {found.slope:.2f}, at most {most:g} predicted")


def _below_the_bound(measured: Measured) -> Verdict:
    places = horizons(measured)
    worst = setting(measured, QAFEL, places[-1])
    margins = [
        corollary(constants(), setting(measured, QAFEL, place), FACTOR, FACTOR).total
        / spread(measured, QAFEL, place).mean
        for place in places
    ]
    if (from_which := large_enough_horizon(constants(), worst, FACTOR, FACTOR)) > places[-1]:
        return Verdict.none(
            f"the theorem admits these step sizes only from T = {from_which:.1e} on; its terms are "
            f"{min(margins):.0f} to {max(margins):.0f} times what was measured all the same"
        )
    return Verdict.of(
        min(margins) >= 1, f"the bound is {min(margins):.3g} to {max(margins):.3g} times what was measured"
    )


def _against_horizon(name: str, expected: float) -> Callable[[Measured], Verdict]:
    return partial(_slope_claim, sweep=partial(by_horizon, name=name), expected=expected, what="its effect against T")


CLAIMS: dict[str, Callable[[Measured], Verdict]] = {
    "The mean of ‖∇f(xᵗ)‖² falls at least as fast as 1/√T": _rate_claim,
    "Asymptotically, QAFeL's rate is that of FedBuff": _joins,
    "Client quantization enters at 1/√T …": _against_horizon(CLIENT_EFFECT, -0.5),
    "… and is divided by K": partial(_slope_claim, sweep=by_buffer, expected=-1.0, what="its effect against K"),
    "Server quantization enters at 1/T": _against_horizon(SERVER_EFFECT, -1.0),
    "Staleness enters at 1/T": _against_horizon(STALE_EFFECT, -1.0),
    "Client quantization enters as 2 − δ_c": partial(
        _slope_claim, sweep=by_client_delta, expected=1.0, what="its effect against 1 − δ_c"
    ),
    "Server quantization enters at most as 1/δ_s²": partial(
        _bounded_slope, sweep=by_server_delta, most=1.0, what="its effect against 1/δ_s² − 1"
    ),
    "Staleness enters at most as its square": partial(
        _bounded_slope, sweep=by_staleness, most=2.0, what="its effect against its mean"
    ),
    "The mean stays below the corollary's terms, for large enough T": _below_the_bound,
}


def _table(measured: Measured) -> Table:
    headings = (
        Heading("T", lambda value: f"{value:,.0f}"),
        metric_heading("FedBuff"),
        metric_heading("QAFeL"),
        Heading("QAFeL / FedBuff", lambda value: f"{value:.3f}"),
        *(metric_heading(f"{name}") for name in EFFECTS),
        *(metric_heading(f"corollary: {name}") for name in ("start", "noise", "drift", "staleness")),
    )
    rows: list[tuple[Cell, ...]] = []
    for horizon in horizons(measured):
        figures = (
            partial(spread, measured, FEDBUFF, horizon),
            partial(spread, measured, QAFEL, horizon),
            partial(ratio, measured, QAFEL, FEDBUFF, horizon),
            *(partial(effect, measured, *pair, horizon) for pair in EFFECTS.values()),
        )
        rows.append((horizon, *(known(figure) for figure in figures), *_terms(measured, horizon)))
    return Table(headings, tuple(rows))


def _terms(measured: Measured, horizon: float) -> tuple[float, ...]:
    """The corollary's terms for QAFeL; unknown where it was not run."""
    try:
        terms = corollary(constants(), setting(measured, QAFEL, horizon), FACTOR, FACTOR)
    except Missing:
        return (math.nan,) * 4
    return terms.start, terms.noise, terms.drift, terms.staleness


def _panels(measured: Measured) -> list[Panel]:
    x = tuple(horizons(measured))
    at = f"T = {varied_at(measured.quick)}"
    horizon, added = Axis("server steps T", log=True, ticks=x), Axis("added to the mean", log=True)
    both = [level(measured, kind).series(NAMES[kind]) for kind in (FEDBUFF, QAFEL)]
    ratios = over_fedbuff(measured).series(NAMES[QAFEL])
    effects = [by_horizon(measured, name).series(name) for name in EFFECTS]
    buffer, client, server, stale = (
        sweep(measured).series(name)
        for sweep, name in (
            (by_buffer, CLIENT_EFFECT),
            (by_client_delta, CLIENT_EFFECT),
            (by_server_delta, SERVER_EFFECT),
            (by_staleness, STALE_EFFECT),
        )
    )
    panels = [
        Panel("rate", "the rate", horizon, Axis("mean of ‖∇f(xᵗ)‖²", log=True), (*both, _half(both[0]))),
        Panel("ratio", "QAFeL over FedBuff", horizon, Axis("ratio"), (ratios, _equal(ratios))),
        Panel("effects", "what is added", horizon, added, tuple(effects)),
        Panel("buffer", f"buffer size, {at}", Axis("K", log=True, ticks=BUFFERS), added, (buffer,)),
        Panel("client-delta", f"client's quantizer, {at}", Axis("1 − δ_c", log=True), added, (client,)),
        Panel("server-delta", f"server's quantizer, {at}", Axis("1/δ_s² − 1", log=True), added, (server,)),
        Panel("staleness", f"staleness, {at}", Axis("mean staleness, server steps", log=True), added, (stale,)),
    ]
    shown = [replace(panel, series=tuple(one for one in panel.series if len(one.x))) for panel in panels]
    return [panel for panel in shown if panel.series]


def _half(beside: Series) -> Series:
    """A straight line of slope −1/2 below a curve's end."""
    x = beside.x
    return Series("slope −1/2", x, 0.8 * beside.y[-1:] * (x / x[-1:]) ** -0.5, kind="reference")


def _equal(beside: Series) -> Series:
    return Series("equal", beside.x, np.ones(len(beside.x)), kind="reference")


def _notes(measured: Measured) -> list[str]:
    task, at = constants(), f"T = {varied_at(measured.quick)}"
    return [
        f"The quadratic has L = {task.smoothness:g}, σ_ℓ = {task.gradient_noise:g}, B = {task.heterogeneity:g}, "
        f"f(x⁰) − f* = {task.initial_gap:.3g}; step sizes are the corollary's, with a = b = √2.",
        "Columns 5 to 7: what is added to the mean by a client's quantizer alone, by a server's alone (each sends a "
        "random half of the coordinates) and by staleness alone (about four steps), each against a run with the "
        f"same seeds and without it. K, δ and staleness are varied at {at}. Bars and ± are over the "
        "differences of the seeds.",
        "Without a quantizer δ = 1, so that a difference from such a run has 2 − δ_c as 1 − δ_c, and 1/δ_s² as "
        "1/δ_s² − 1.",
    ]


ENTRY = Entry(
    "rate",
    "The rate of convergence, and what quantizers, buffer and staleness add",
    "Corollary 3.2",
    "5 min",
    plan,
    _table,
    _panels,
    tuple(Claim("Corollary 3.2", text, check) for text, check in CLAIMS.items()),
    _notes,
)
