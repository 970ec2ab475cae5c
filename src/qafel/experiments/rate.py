"""Corollary 3.2, measured beside its terms: the slope in T, and what K, the quantizers and staleness do."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from qafel.experiments.entry import Claim, Entry
from qafel.experiments.measured import Measured, Missing
from qafel.experiments.panels import Axis, Panel, Series
from qafel.experiments.rate_claims import CLAIMS
from qafel.experiments.rate_effects import (
    CLIENT_EFFECT,
    EFFECTS,
    SERVER_EFFECT,
    STALE_EFFECT,
    by_buffer,
    by_client_delta,
    by_horizon,
    by_server_delta,
    by_staleness,
    constants,
    horizons,
    known,
    level,
    over_fedbuff,
    setting,
    spread,
)
from qafel.experiments.rate_runs import (
    BUFFERS,
    FACTOR,
    FEDBUFF,
    NAMES,
    QAFEL,
    effect,
    plan,
    ratio,
    varied_at,
)
from qafel.experiments.tables import Cell, Heading, Table, metric_heading
from qafel.theory import corollary


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
