"""Corollary 3.2, measured beside its terms: the slope in T, and what K, the quantizers and staleness do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from qafel.experiments.entry import Claim, Entry, Verdict
from qafel.experiments.measured import Measured
from qafel.experiments.panels import Axis, Panel, Series
from qafel.experiments.rate_effects import (
    CLIENT_EFFECT,
    EFFECTS,
    SERVER_EFFECT,
    STALE_EFFECT,
    Sweep,
    by_buffer,
    by_client_delta,
    by_horizon,
    by_server_delta,
    by_staleness,
    constants,
    horizons,
    setting,
    spread,
    varied_at,
)
from qafel.experiments.rate_runs import (
    BUFFERS,
    FACTOR,
    FEDBUFF,
    NAMES,
    QAFEL,
    REFERENCE,
    Kind,
    effect,
    plan,
    slope,
)
from qafel.experiments.tables import Cell, Heading, Table, metric_heading
from qafel.theory import corollary, large_enough_horizon

_QAFEL, _FEDBUFF, _SLOPE = NAMES[QAFEL], NAMES[FEDBUFF], "slope −1/2"


def _table(measured: Measured) -> Table:
    headings = (
        Heading("T", lambda value: f"{value:,.0f}"),
        metric_heading("FedBuff"),
        metric_heading("QAFeL"),
        Heading("QAFeL / FedBuff", lambda value: f"{value:.3f}"),
        *(metric_heading(f"{name}") for name in EFFECTS),
        *(metric_heading(f"corollary: {name}") for name in ("start", "noise", "drift", "staleness")),
    )
    rows = []
    for horizon in horizons(measured):
        ours, theirs = spread(measured, QAFEL, horizon), spread(measured, FEDBUFF, horizon)
        terms = corollary(constants(), setting(measured, QAFEL, horizon), FACTOR, FACTOR)
        effects = (effect(measured, *pair, horizon)[0] for pair in EFFECTS.values())
        measures: tuple[Cell, ...] = (horizon, theirs, ours, ours.mean / theirs.mean, *effects)
        rows.append((*measures, terms.start, terms.noise, terms.drift, terms.staleness))
    return Table(headings, tuple(rows))


def _panels(measured: Measured) -> list[Panel]:
    x = np.array(horizons(measured))
    at = f"T = {varied_at(measured):g}"
    horizon, added = Axis("server steps T", log=True, ticks=tuple(x)), Axis("added to the mean", log=True)
    both = [_by_horizon(measured, label, kind) for label, kind in ((_FEDBUFF, FEDBUFF), (_QAFEL, QAFEL))]
    ratio = Series(_QAFEL, x, both[1].y / both[0].y, kind="line-and-points")
    one = Series(_SLOPE, x, np.ones(len(x)), kind="reference")
    effects = tuple(by_horizon(measured, name).series(name) for name in EFFECTS)
    lag = by_server_delta(measured).series(SERVER_EFFECT), by_staleness(measured).series(STALE_EFFECT)
    buffer, delta = (sweep(measured).series(CLIENT_EFFECT) for sweep in (by_buffer, by_client_delta))
    line = Series(_SLOPE, x, 0.8 * both[0].y[-1] * (x / x[-1]) ** -0.5, kind="reference")
    return [
        Panel("rate", "the rate", horizon, Axis("mean of ‖∇f(xᵗ)‖²", log=True), (*both, line)),
        Panel("ratio", "QAFeL over FedBuff", horizon, Axis("ratio"), (ratio, one)),
        Panel("effects", "what is added", horizon, added, effects),
        Panel("buffer", f"buffer size, {at}", Axis("K", log=True, ticks=BUFFERS), added, (buffer,)),
        Panel("client-delta", f"client's quantizer, {at}", Axis("1 − δ_c", log=True), added, (delta,)),
        Panel("lag", f"server's quantizer and staleness, {at}", Axis("1/δ_s; mean staleness", log=True), added, lag),
    ]


def _by_horizon(measured: Measured, label: str, kind: Kind) -> Series:
    places = horizons(measured)
    spreads = [spread(measured, kind, place) for place in places]
    mean, low, high = (np.array([getattr(one, name) for one in spreads]) for name in ("mean", "low", "high"))
    return Series(label, np.array(places), mean, low, high, kind="line-and-points")


def _notes(measured: Measured) -> list[str]:
    known, at = constants(), f"T = {varied_at(measured):g}"
    return [
        f"The quadratic has L = {known.smoothness:g}, σ_ℓ = {known.gradient_noise:g}, B = {known.heterogeneity:g}, "
        f"f(x⁰) − f* = {known.initial_gap:.3g}; step sizes are the corollary's, with a = b = √2.",
        "Columns 5 to 7: what is added to the mean by a client's quantizer alone, by a server's alone (each sends a "
        "random half of the coordinates) and by staleness alone (about four steps), each against a run with the "
        f"same seeds and without it. K, δ and staleness are varied at {at}.",
    ]


def _falls(measured: Measured, kind: Kind) -> float:
    places = horizons(measured)
    return slope(places, [spread(measured, kind, place).mean for place in places])


def _rate_claim(measured: Measured) -> Verdict:
    slopes = {
        label: _falls(measured, kind)
        for label, kind in (("FedBuff", FEDBUFF), ("QAFeL", QAFEL), ("neither", REFERENCE))
    }
    # The 1/T terms make the whole fall faster, while T is small; without them it is the rate itself.
    holds = slopes["FedBuff"] <= -0.45 and slopes["QAFeL"] <= -0.45 and abs(slopes["neither"] + 0.5) <= 0.05
    listed = f"{slopes['FedBuff']:.3f} (FedBuff), {slopes['QAFeL']:.3f} (QAFeL)"
    return Verdict.of(holds, f"slopes in log T: {listed}, {slopes['neither']:.3f} without staleness and quantizers")


def _joins(measured: Measured) -> Verdict:
    places = horizons(measured)
    ratios = [spread(measured, QAFEL, place).mean / spread(measured, FEDBUFF, place).mean for place in places]
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
    rises = all(after >= before for before, after in pairwise(found.y))
    return Verdict.of(
        rises and found.slope <= most, f"{what}: it rises with slope {found.slope:.2f}, {most:g} at most predicted"
    )


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


_CLAIMS: dict[str, Callable[[Measured], Verdict]] = {
    "The mean of ‖∇f(xᵗ)‖² falls as 1/√T": _rate_claim,
    "Asymptotically, QAFeL's rate is that of FedBuff": _joins,
    "Client quantization enters at 1/√T …": _against_horizon(CLIENT_EFFECT, -0.5),
    "… and is divided by K": partial(_slope_claim, sweep=by_buffer, expected=-1.0, what="its effect against K"),
    "Server quantization enters at 1/T": _against_horizon(SERVER_EFFECT, -1.0),
    "Staleness enters at 1/T": _against_horizon(STALE_EFFECT, -1.0),
    "Client quantization enters as 2 − δ_c": partial(
        _slope_claim, sweep=by_client_delta, expected=1.0, what="its effect against 1 − δ_c"
    ),
    "Server quantization enters as 1/δ_s²": partial(
        _bounded_slope, sweep=by_server_delta, most=2.0, what="its effect against 1/δ_s"
    ),
    "Staleness enters as its square": partial(
        _bounded_slope, sweep=by_staleness, most=2.0, what="its effect against its mean"
    ),
    "The mean stays below the corollary's terms, for large enough T": _below_the_bound,
}

ENTRY = Entry(
    "rate",
    "The rate of convergence, and what quantizers, buffer and staleness add",
    "Corollary 3.2",
    "5 min",
    plan,
    _table,
    _panels,
    tuple(Claim("Corollary 3.2", text, check) for text, check in _CLAIMS.items()),
    _notes,
)
