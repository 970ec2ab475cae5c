"""What Corollary 3.2 says of the measured slopes, claim by claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from qafel.experiments.entry import Verdict
from qafel.experiments.measured import Measured
from qafel.experiments.rate_effects import (
    CLIENT_EFFECT,
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
    level,
    over_fedbuff,
    setting,
    spread,
)
from qafel.experiments.rate_runs import FACTOR, FEDBUFF, QAFEL, REFERENCE
from qafel.theory import corollary, large_enough_horizon

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
