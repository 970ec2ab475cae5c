"""Corollary 3.2 on the quadratic: the slope in T, and the effects of K, quantizers and staleness.

The figure is the mean of ‖∇f(xᵗ)‖² over t < T, with the corollary's step sizes η_ℓ = a K⁻¹P^(−1/2)T^(−1/3) and
η_g = b K T^(−1/6). An effect is the difference of two means on the same seeds: with and without a quantizer, or
staleness. Noise dominates in these runs. Otherwise lag and staleness would act like momentum and help.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise, starmap
from typing import TypeAlias, final

import numpy as np

from qafel.config import Config
from qafel.drawing.chart import Axis, Panel, Series
from qafel.quantizers import parse
from qafel.runs import Run, Spread
from qafel.search import RunSpec
from qafel.tasks import Quadratic
from qafel.theory import Bound, Constants, Setting, corollary, corollary_step_sizes, large_enough_horizon
from reproduction.comparison import EntryRuns, NotComparable, Paired, if_comparable
from reproduction.display import Heading, Table, not_empty, points, three_digits
from reproduction.entry import Claim, Entry, Extent, Verdict
from reproduction.statistics import LEVEL, Interval, every, jointly, power, slope, student

Operator: TypeAlias = Callable[[float, float], float]

HORIZONS, QUICK_HORIZONS = (128, 256, 512, 1024, 2048, 4096, 8192), (64, 128, 256)
VARIED_AT, QUICK_VARIED_AT = 512, 128
"""The T of the runs that vary K, the quantizers and the staleness."""

BUFFERS = (1, 2, 5, 10, 20, 50)
CONCURRENCIES = (10, 20, 40, 80)
CLIENT_SPECS = ("rand_k:0.9", "rand_k:0.75", "rand_k:0.5", "rand_k:0.25", "rand_k:0.1")
SERVER_SPECS = tuple(f"scaled:{spec}" for spec in ("rand_k:0.75", "rand_k:0.5", "rand_k:0.35", "rand_k:0.2"))
"""Random coordinates: δ gives their error for every vector, not only for the worst."""

SIZE, LOCAL_STEPS, BUFFER = 64, 2, 10
CONSTANTS = {"heterogeneity": 4.0, "noise": 2.0, "smoothness": 1.0, "strong_convexity": 0.2}

FACTOR = math.sqrt(2)
"""a = b."""

STALE = 40
"""The concurrency of the runs with staleness: about four steps of ten updates."""

MARGIN = 0.2
"""The margin of a predicted slope."""
ROOM = 0.1
"""The margin above a predicted upper bound of a slope, which is fitted to few points."""


@final
@dataclass(frozen=True, slots=True)
class Variant:
    """The settings of a run, except for its T and its seed."""

    client: str = "none"
    server: str = "none"
    concurrency: int = 0
    buffer: int = BUFFER

    @property
    def tag(self) -> str:
        specs = (spec.replace(":", "") for spec in (self.client, self.server))
        return f"{'-'.join(specs)}-c{self.concurrency}-k{self.buffer}"


REFERENCE, FEDBUFF, QAFEL = Variant(), Variant(concurrency=STALE), Variant("qsgd:4", "top_k:0.1", STALE)
CLIENT, SERVER = Variant(client="rand_k:0.5"), Variant(server="scaled:rand_k:0.5")

NAMES = {
    FEDBUFF: "FedBuff",
    QAFEL: "QAFeL (qsgd:4 up, top 10 % down)",
    CLIENT: "client quantizer alone (a random half)",
    SERVER: "server quantizer alone (a random half)",
    REFERENCE: "neither quantizers nor staleness",
}

CLIENT_EFFECT, SERVER_EFFECT, STALE_EFFECT = "client quantizer", "server quantizer", "staleness"
EFFECTS = {CLIENT_EFFECT: CLIENT, SERVER_EFFECT: SERVER, STALE_EFFECT: FEDBUFF}
"""The variant that shows an effect alone, in comparison with REFERENCE."""
PAIRS: Mapping[str, Sequence[tuple[Variant, Variant]]] = {
    "K": [(Variant(CLIENT.client, buffer=buffer), Variant(buffer=buffer)) for buffer in BUFFERS],
    "δ_c": [(Variant(client=spec), REFERENCE) for spec in CLIENT_SPECS],
    "δ_s": [(Variant(server=spec), REFERENCE) for spec in SERVER_SPECS],
    "τ": [(Variant(concurrency=concurrency), REFERENCE) for concurrency in CONCURRENCIES],
}
"""The variations at one T: variants with an effect, each with the variant without it."""

TERMS = ("start", "noise", "drift", "staleness")
"""The terms of the corollary's bound."""


def _plan(extent: Extent) -> list[RunSpec]:
    """Five variants for each T, and the variations at one T."""
    horizons = QUICK_HORIZONS if extent.quick else HORIZONS
    grid = [(variant, horizon) for horizon in horizons for variant in NAMES]
    varied = [(variant, QUICK_VARIED_AT if extent.quick else VARIED_AT) for variant in variants()]
    return list({run.folder: run for it in (*grid, *varied) for run in _repeated(*it, extent)}.values())


def variants() -> list[Variant]:
    """The variants of the variations at one T."""
    return [one for pairs in PAIRS.values() for with_effect, without in pairs for one in (without, with_effect)]


def _repeated(variant: Variant, horizon: int, extent: Extent) -> list[RunSpec]:
    """The runs of a variant. Short runs are noisier and cheaper, so they have up to four times as many seeds."""
    count = len(extent.seeds) * (1 if extent.quick else max(1, min(4, 1024 // horizon)))
    at: dict[str, float | str] = {"T": float(horizon), "variant": variant.tag}
    name = NAMES.get(variant, variant.tag)
    return [RunSpec(name, _configuration(variant, horizon, seed), at) for seed in range(count)]


def _configuration(variant: Variant, horizon: int, seed: int) -> Config:
    """A client starts every unit of time. With tiny durations no update is stale."""
    setting = Setting(local_steps=LOCAL_STEPS, buffer_size=variant.buffer, server_steps=horizon)
    sizes, scale = corollary_step_sizes(setting, FACTOR, FACTOR), variant.concurrency / math.sqrt(2 / math.pi)
    return Config.from_dict(
        {
            "name": f"rate-T{horizon}-{variant.tag}",
            "description": "Corollary 3.2 on the quadratic",
            "seed": seed,
            "task": {"name": "quadratic", "clients": 100, "dimension": SIZE, **CONSTANTS},
            "algorithm": {
                "method": "qafel",
                "client_quantizer": variant.client,
                "server_quantizer": variant.server,
                "buffer_size": variant.buffer,
                "local_steps": LOCAL_STEPS,
                **asdict(sizes),
            },
            "timing": {"arrivals": "constant", "rate": 1.0, "scale": max(1e-6, scale)},
            "stop": {"server_steps": horizon},
        }
    )


@cache
def _constants() -> Constants:
    """L, σ_ℓ, B and f(x⁰) − f* of the task."""
    task = _configuration(REFERENCE, 1, 0).task.make()
    assert isinstance(task, Quadratic)
    return task.constants


def _setting(measured: EntryRuns, variant: Variant, horizon: float) -> Setting:
    """The theory's setting of a variant, with the largest measured staleness."""
    stalest = max(run.number("staleness_max") for run in measured.runs(T=horizon, variant=variant.tag))
    return Setting(
        local_steps=LOCAL_STEPS,
        buffer_size=variant.buffer,
        server_steps=int(horizon),
        max_staleness=int(stalest),
        client_delta=parse(variant.client).delta(SIZE),
        server_delta=parse(variant.server).delta(SIZE),
    )


def _bound(measured: EntryRuns, horizon: float) -> Bound:
    """The corollary's terms for QAFeL."""
    return corollary(_constants(), _setting(measured, QAFEL, horizon), FACTOR, FACTOR)


def _ergodic(run: Run) -> float:
    """(1/T) Σ ‖∇f(xᵗ)‖² over t = 0 … T − 1; infinity if the run diverged."""
    norms, versions = run.column("gradient_norm_squared"), run.column("version")
    return math.inf if run.diverged else float(norms[versions < versions[-1]].mean())


def _mean(measured: EntryRuns, horizon: float, variant: Variant) -> Spread:
    """The mean over seeds; without seeds if the runs are missing."""
    return if_comparable(partial(measured.spread, _ergodic, T=horizon, variant=variant.tag), Spread.of(()))


def _compared(
    measured: EntryRuns, horizon: float, variant: Variant, against: Variant = REFERENCE, by: Operator = operator.sub
) -> Spread:
    """The difference, or another operator, of two variants per seed; without seeds if runs are missing."""
    runs = partial(measured.of, T=horizon)
    found: Paired = if_comparable(lambda: runs(variant=variant.tag).paired(_ergodic, runs(variant=against.tag)), [])
    return Spread.of(starmap(by, found))


@final
@dataclass(frozen=True, slots=True)
class Trend:
    """A figure against a varied quantity; without seeds where runs are missing."""

    x: Sequence[float]
    spreads: Sequence[Spread]

    @property
    def y(self) -> tuple[float, ...]:
        """The means; NotComparable if one is missing."""
        if gaps := sum(not spread.count for spread in self.spreads):
            raise NotComparable(f"the runs of {gaps} of {len(self.x)} places in a sweep are missing")
        return tuple(spread.mean for spread in self.spreads)

    @property
    def slope(self) -> Interval:
        """The slope of log y against log x; NaN if a value is not positive."""
        errors = [spread.std / math.sqrt(max(1, spread.count)) for spread in self.spreads]
        return slope(self.x, self.y, errors, [spread.count for spread in self.spreads])

    def series(self, label: str) -> Series:
        return points(label, self.x, self.spreads)


def _horizons(measured: EntryRuns) -> list[float]:
    """The grid of T."""
    if not (found := measured.places("T")):
        raise NotComparable("all runs are missing")
    return found


def _against_horizon(measured: EntryRuns, figure: Callable[..., Spread], *of: object) -> Trend:
    """A figure at each T; `of` are its further arguments."""
    places = _horizons(measured)
    return Trend(places, [figure(measured, place, *of) for place in places])


def _level(measured: EntryRuns, variant: Variant) -> Trend:
    """The mean against T."""
    return _against_horizon(measured, _mean, variant)


def over_fedbuff(measured: EntryRuns) -> Trend:
    """QAFeL's mean over FedBuff's, against T."""
    return _against_horizon(measured, _compared, QAFEL, FEDBUFF, operator.truediv)


def by_horizon(measured: EntryRuns, effect: str) -> Trend:
    """An effect against T."""
    return _against_horizon(measured, _compared, EFFECTS[effect])


def _by_buffer(measured: EntryRuns) -> Trend:
    """The client quantizer's effect against K."""
    return _varied(measured, "K", lambda variant: variant.buffer)


def _by_client_delta(measured: EntryRuns) -> Trend:
    """The effect against 1 − δ_c, the difference of 2 − δ_c to a run without a quantizer."""
    return _varied(measured, "δ_c", lambda variant: 1 - parse(variant.client).delta(SIZE))


def _by_server_delta(measured: EntryRuns) -> Trend:
    """The effect against 1/δ_s² − 1, the difference of 1/δ_s² to a run without a quantizer."""
    return _varied(measured, "δ_s", lambda variant: 1 / parse(variant.server).delta(SIZE) ** 2 - 1)


def _by_staleness(measured: EntryRuns) -> Trend:
    """The effect of staleness against its mean, in server steps."""

    def staleness(variant: Variant) -> float:
        runs = partial(measured.spread, "staleness_mean", T=_varied_at(measured), variant=variant.tag)
        return if_comparable(runs, Spread.of(())).mean

    return _varied(measured, "τ", staleness)


def _varied(measured: EntryRuns, what: str, x: Callable[[Variant], float]) -> Trend:
    """An effect at one T against a figure of its variants."""
    found = [_compared(measured, _varied_at(measured), *pair) for pair in PAIRS[what]]
    return Trend([x(variant) for variant, _ in PAIRS[what]], found)


def _varied_at(measured: EntryRuns) -> int:
    return QUICK_VARIED_AT if measured.quick else VARIED_AT


def _falls(measured: EntryRuns) -> Verdict:
    buffered, quantized, neither = (_level(measured, variant).slope for variant in (FEDBUFF, QAFEL, REFERENCE))
    # For small T the 1/T terms make the mean fall faster. Without them the slope is the rate itself.
    falls = ((line, lambda it: it.at_most(-0.45)) for line in (buffered, quantized))
    return Verdict.of(
        jointly((*falls, (neither, lambda it: it.within(-0.55, -0.45)))),
        f"slopes in log T: {buffered} (FedBuff) and {quantized} (QAFeL), at most -0.45; without staleness and "
        f"quantizers {neither}, predicted -0.5, margin 0.05",
        f"slope {quantized.estimate:.2f}",
    )


def _joins(measured: EntryRuns) -> Verdict:
    """Within a tenth at the largest T, and closer than at the smallest."""
    places, found = _horizons(measured), over_fedbuff(measured)
    if not all(found.y):
        raise NotComparable("a mean is zero")
    first, last = (_mean_interval(spread) for spread in (found.spreads[0], found.spreads[-1]))
    nearer = _is_below(found.spreads[-1], found.spreads[0])
    said = f"{first} at T = {places[0]:g}, {last} at T = {places[-1]:g}, 1.1 at most"
    return Verdict.of(
        every((last.at_most(1.1), nearer)), f"QAFeL over FedBuff: {said}", f"{last.estimate:.2f} times FedBuff's"
    )


def _is_below(ours: Spread, theirs: Spread) -> bool | None:
    """Whether a mean lies below another; None if the intervals overlap."""
    mine, other = _mean_interval(ours), _mean_interval(theirs)
    return True if mine.high < other.low else False if mine.low > other.high else None


def _mean_interval(spread: Spread) -> Interval:
    """The interval of a mean over seeds."""
    if spread.count < 2 or not math.isfinite(spread.std):
        return Interval(spread.mean, -math.inf, math.inf, spread.count)
    reach = student(1 - LEVEL, spread.count - 1) * spread.std / math.sqrt(spread.count)
    return Interval(spread.mean, spread.mean - reach, spread.mean + reach, spread.count)


def _slope(measured: EntryRuns, trend: Callable[[EntryRuns], Trend], expected: float, against: str) -> Verdict:
    """Whether the slope is the predicted one within a margin: an equivalence test."""
    found = trend(measured).slope
    if math.isnan(found.estimate):
        said = "not positive everywhere, so the slope is undefined"
        return Verdict.of(None, f"its effect against {against}: {said}")
    said = f"slope {found}, predicted {expected:g}, margin {MARGIN:g}; {power([found], 'difference')}"
    return Verdict.of(found.within(expected - MARGIN, expected + MARGIN), f"its effect against {against}: {said}")


def _slope_at_most(measured: EntryRuns, trend: Callable[[EntryRuns], Trend], most: float, against: str) -> Verdict:
    found = trend(measured)
    line = found.slope
    rises = not any(_is_below(*pair[::-1]) for pair in pairwise(found.spreads))
    seen = f"slope {line}, predicted at most {most:g}, margin {ROOM:g}; {power([line], 'difference')}"
    said = seen if rises else "it does not rise everywhere"
    holds = every((rises, line.at_most(most + ROOM)))
    return Verdict.of(holds, f"its effect against {against}: {said}")


def _below_the_bound(measured: EntryRuns) -> Verdict:
    places = _horizons(measured)
    margins = [_bound(measured, place).total / _mean(measured, place, QAFEL).mean for place in places]
    longest = _setting(measured, QAFEL, places[-1])
    if (from_which := large_enough_horizon(_constants(), longest, FACTOR, FACTOR)) > places[-1]:
        return Verdict.none(
            f"the theorem admits these step sizes only from T = {from_which:.1e} on; its terms are "
            f"{min(margins):.0f} to {max(margins):.0f} times the measured mean"
        )
    said = f"the bound is {min(margins):.3g} to {max(margins):.3g} times the measured mean"
    return Verdict.of(min(margins) >= 1, said)


def _enters_at(effect: str, exponent: float) -> Callable[[EntryRuns], Verdict]:
    """A check that an effect falls with this power of T."""
    return partial(_slope, trend=partial(by_horizon, effect=effect), expected=exponent, against="T")


CLAIMS: dict[str, Callable[[EntryRuns], Verdict]] = {
    "The mean of ‖∇f(xᵗ)‖² falls at least as fast as 1/√T": _falls,
    "Asymptotically, QAFeL's rate is that of FedBuff": _joins,
    "Client quantization enters at 1/√T …": _enters_at(CLIENT_EFFECT, -0.5),
    "… and is divided by K": partial(_slope, trend=_by_buffer, expected=-1.0, against="K"),
    "Server quantization enters at 1/T": _enters_at(SERVER_EFFECT, -1.0),
    "Staleness enters at 1/T": _enters_at(STALE_EFFECT, -1.0),
    "Client quantization enters as 2 − δ_c": partial(_slope, trend=_by_client_delta, expected=1.0, against="1 − δ_c"),
    "Server quantization enters at most as 1/δ_s²": partial(
        _slope_at_most, trend=_by_server_delta, most=1.0, against="1/δ_s² − 1"
    ),
    "Staleness enters at most as its square": partial(
        _slope_at_most, trend=_by_staleness, most=2.0, against="its mean"
    ),
    "The mean stays below the corollary's terms, for large enough T": _below_the_bound,
}


def _table(measured: EntryRuns) -> Table:
    headings = (
        Heading("T", lambda value: f"{value:,.0f}"),
        *(Heading(name) for name in ("FedBuff", "QAFeL")),
        Heading("QAFeL / FedBuff", three_digits),
        *(Heading(name) for name in EFFECTS),
        *(Heading(f"corollary: {name}") for name in TERMS),
    )
    horizons, levels = _horizons(measured), [_level(measured, variant) for variant in (FEDBUFF, QAFEL)]
    trends = (*levels, over_fedbuff(measured), *(by_horizon(measured, name) for name in EFFECTS))
    bounds = [if_comparable(partial(_bound, measured, horizon), Bound(*[math.nan] * 4)) for horizon in horizons]
    terms = ([getattr(bound, name) for bound in bounds] for name in TERMS)
    return Table(headings, tuple(zip(horizons, *(trend.spreads for trend in trends), *terms, strict=True)))


def _panels(measured: EntryRuns) -> list[Panel]:
    at = f"T = {_varied_at(measured)}"
    x, y = Axis("server steps T", log=True, ticks=tuple(_horizons(measured))), Axis("added to the mean", log=True)
    levels = [_level(measured, variant).series(NAMES[variant]) for variant in (FEDBUFF, QAFEL)]
    ratios = over_fedbuff(measured).series(NAMES[QAFEL])
    effects = [by_horizon(measured, name).series(name) for name in EFFECTS]
    # A line of slope −1/2 below the end of FedBuff's curve.
    along, end = levels[0].x, 0.8 * levels[0].y[-1:]
    half = Series("slope −1/2", along, end * (along / along[-1:]) ** -0.5, kind="reference")
    equal = Series("equal", ratios.x, np.ones(len(ratios.x)), kind="reference")
    varied = (
        ("buffer", "buffer size", Axis("K", log=True, ticks=BUFFERS), _by_buffer, CLIENT_EFFECT),
        ("client-delta", "client's quantizer", Axis("1 − δ_c", log=True), _by_client_delta, CLIENT_EFFECT),
        ("server-delta", "server's quantizer", Axis("1/δ_s² − 1", log=True), _by_server_delta, SERVER_EFFECT),
        ("staleness", "staleness", Axis("mean staleness, server steps", log=True), _by_staleness, STALE_EFFECT),
    )
    return not_empty(
        [
            Panel("rate", "the rate", x, Axis("mean of ‖∇f(xᵗ)‖²", log=True), (*levels, half)),
            Panel("ratio", "QAFeL over FedBuff", x, Axis("ratio"), (ratios, equal)),
            Panel("effects", "effects", x, y, tuple(effects)),
            *(
                Panel(key, f"{title}, {at}", axis, y, (trend(measured).series(effect),))
                for key, title, axis, trend, effect in varied
            ),
        ]
    )


def _notes(measured: EntryRuns) -> list[str]:
    task = _constants()
    return [
        f"The quadratic has L = {task.smoothness:g}, σ_ℓ = {task.gradient_noise:g}, B = {task.heterogeneity:g}, "
        f"f(x⁰) − f* = {task.initial_gap:.3g}. Step sizes are the corollary's, with a = b = √2.",
        "Columns 5 to 7 are differences to a run with the same seeds without the effect: the client's quantizer alone, "
        "the server's alone, and staleness alone (about four steps). Each quantizer sends a random half of the "
        f"coordinates. K, δ and staleness vary at T = {_varied_at(measured)}. Bars and ± are over seeds.",
        "Without a quantizer δ = 1. So the difference of 2 − δ_c is 1 − δ_c, and that of 1/δ_s² is 1/δ_s² − 1.",
    ]


ENTRY = Entry(
    "rate",
    "The rate of convergence, and the effects of quantizers, buffer and staleness",
    "Corollary 3.2",
    "5 min",
    _plan,
    _table,
    _panels,
    tuple(Claim("Corollary 3.2", text, check, key=check in (_falls, _joins)) for text, check in CLAIMS.items()),
    _notes,
)
