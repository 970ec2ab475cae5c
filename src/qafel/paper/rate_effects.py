"""What quantizers, buffer and staleness add to the mean of ‖∇f(xᵗ)‖²: effects as differences of paired runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import final

import numpy as np

from qafel.config import Config
from qafel.drawing.chart import Series
from qafel.paper.entry import Scale
from qafel.paper.measured import Measured, Missing, Spread, paired
from qafel.quantizers import parse
from qafel.runs.reading import Run
from qafel.sweeps.run import Planned
from qafel.tasks.convex.synthetic import Constants, Quadratic
from qafel.theory import Setting, corollary_step_sizes

# Corollary 3.2 on the quadratic: which runs, and the mean of ‖∇f(xᵗ)‖² over t < T that each gives.
#
# Step sizes are the corollary's, η_ℓ = a K⁻¹P^(−1/2)T^(−1/3) and η_g = b K T^(−1/6). Every effect is the difference of
# two means from the same seeds: with and without a quantizer, or staleness. Noise is made to dominate: from far
# away, lag
# and staleness would act like momentum and help.


HORIZONS = (128, 256, 512, 1024, 2048, 4096, 8192)


QUICK_HORIZONS = (64, 128, 256)


AT = 512


BUFFERS = (1, 2, 5, 10, 20, 50)


CLIENT_SPECS = ("rand_k:0.9", "rand_k:0.75", "rand_k:0.5", "rand_k:0.25", "rand_k:0.1")


SERVER_SPECS = tuple(f"scaled:{spec}" for spec in ("rand_k:0.75", "rand_k:0.5", "rand_k:0.35", "rand_k:0.2"))
"""Random coordinates: their error is what δ says for every vector, not only for the worst."""


CONCURRENCIES = (10, 20, 40, 80)


SIZE, CLIENTS, LOCAL_STEPS, BUFFER = 64, 100, 2, 10


FACTOR = math.sqrt(2)
"""a = b."""


TASK = {
    "name": "quadratic",
    "clients": CLIENTS,
    "dimension": SIZE,
    "heterogeneity": 4.0,
    "noise": 2.0,
    "smoothness": 1.0,
    "strong_convexity": 0.2,
}


STALE = 40
"""Clients in flight of the runs with staleness: about four steps of ten updates."""


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """What a run is, apart from its T and its seed."""

    client: str = "none"
    server: str = "none"
    concurrency: int = 0
    buffer: int = BUFFER

    @property
    def tag(self) -> str:
        specs = (spec.replace(":", "") for spec in (self.client, self.server))
        return f"{'-'.join(specs)}-c{self.concurrency}-k{self.buffer}"

    def plain(self) -> Kind:
        """The same without quantizers."""
        return Kind(concurrency=self.concurrency, buffer=self.buffer)


REFERENCE = Kind()


FEDBUFF = Kind(concurrency=STALE)


QAFEL = Kind("qsgd:4", "top_k:0.1", STALE)


CLIENT, SERVER = Kind(client="rand_k:0.5"), Kind(server="scaled:rand_k:0.5")


NAMES = {
    FEDBUFF: "FedBuff",
    QAFEL: "QAFeL (qsgd:4 up, top 10 % down)",
    CLIENT: "client quantizer alone (a random half)",
    SERVER: "server quantizer alone (a random half)",
    REFERENCE: "neither quantizers nor staleness",
}


def plan(scale: Scale) -> list[Planned]:
    """The grid of T for five kinds of run, and at one T the sweeps of K, quantizers and staleness."""
    horizons = QUICK_HORIZONS if scale.quick else HORIZONS
    at = varied_at(scale.quick)
    runs = {}
    for horizon in horizons:
        for kind in NAMES:
            runs.update(_repeated(kind, horizon, scale))
    for kind in _sweeps():
        runs.update(_repeated(kind, at, scale))
    return list(runs.values())


def varied_at(quick: bool) -> int:
    """The T where K, the quantizers and the staleness are varied."""
    return QUICK_HORIZONS[1] if quick else AT


def _sweeps() -> Iterator[Kind]:
    for buffer in BUFFERS:
        yield Kind(buffer=buffer)
        yield Kind(client=CLIENT.client, buffer=buffer)
    for spec in CLIENT_SPECS:
        yield Kind(client=spec)
    for spec in SERVER_SPECS:
        yield Kind(server=spec)
    for concurrency in CONCURRENCIES:
        yield Kind(concurrency=concurrency)


def _repeated(kind: Kind, horizon: int, scale: Scale) -> dict[str, Planned]:
    """Short runs are noisier and cheaper: up to four times as many of them."""
    count = len(scale.seeds) * (1 if scale.quick else max(1, min(4, 1024 // horizon)))
    at: dict[str, float | str] = {"T": float(horizon), "kind": kind.tag}
    found = [Planned(NAMES.get(kind, kind.tag), configuration(kind, horizon, seed), at) for seed in range(count)]
    return {run.folder: run for run in found}


def configuration(kind: Kind, horizon: int, seed: int) -> Config:
    """A client starts every unit of time; with durations next to nothing none is stale."""
    setting = Setting(local_steps=LOCAL_STEPS, buffer_size=kind.buffer, server_steps=horizon)
    sizes = corollary_step_sizes(setting, FACTOR, FACTOR)
    return Config.from_dict(
        {
            "name": f"rate-T{horizon}-{kind.tag}",
            "description": "Corollary 3.2 on the quadratic",
            "seed": seed,
            "task": TASK,
            "algorithm": {
                "preset": "qafel",
                "client_quantizer": kind.client,
                "server_quantizer": kind.server,
                "buffer_size": kind.buffer,
                "local_steps": LOCAL_STEPS,
                "client_lr": sizes.client_lr,
                "server_lr": sizes.server_lr,
            },
            "timing": {
                "arrivals": "constant",
                "rate": 1.0,
                "scale": max(1e-6, kind.concurrency / math.sqrt(2 / math.pi)),
            },
            "stop": {"server_steps": horizon},
        }
    )


def ergodic(run: Run) -> float:
    """(1/T) Σ ‖∇f(xᵗ)‖² over t = 0 … T − 1; infinite where the run diverged."""
    norms, versions = run.column("gradient_norm_squared"), run.column("version")
    if run.summary.get("status") == "diverged":
        return math.inf
    return float(norms[versions < versions[-1]].mean())


def effect(measured: Measured, kind: Kind, against: Kind, horizon: float) -> Spread:
    """By how much one kind of run lies above another, seed by seed."""
    return Spread.of(ours - theirs for ours, theirs in _paired(measured, kind, against, horizon))


def ratio(measured: Measured, kind: Kind, against: Kind, horizon: float) -> Spread:
    """One kind of run over another, seed by seed."""
    return Spread.of(ours / theirs for ours, theirs in _paired(measured, kind, against, horizon))


def _paired(measured: Measured, kind: Kind, against: Kind, horizon: float) -> list[tuple[float, float]]:
    ours, theirs = (measured.planned(T=horizon, kind=one.tag) for one in (kind, against))
    return paired(ergodic, ours, theirs)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the straight line through log y against log x; NaN where a value is not positive."""
    values = np.array(y, dtype=np.float64)
    if len(values) < 2 or not (np.isfinite(values) & (values > 0)).all():
        return math.nan
    return float(np.polyfit(np.log(np.array(x, dtype=np.float64)), np.log(values), 1)[0])


CLIENT_EFFECT, SERVER_EFFECT, STALE_EFFECT = "client quantizer", "server quantizer", "staleness"


EFFECTS = {CLIENT_EFFECT: (CLIENT, REFERENCE), SERVER_EFFECT: (SERVER, REFERENCE), STALE_EFFECT: (FEDBUFF, REFERENCE)}


@cache
def constants() -> Constants:
    """L, σ_ℓ, B and f(x⁰) − f* of the task."""
    task = configuration(REFERENCE, 1, 0).task.make()
    assert isinstance(task, Quadratic)
    return task.constants


def setting(measured: Measured, kind: Kind, horizon: float) -> Setting:
    """A kind of run as the theory sees it, with the largest staleness that was measured."""
    stalest = max(run.number("staleness_max") for run in measured.runs(T=horizon, kind=kind.tag))
    return Setting(
        local_steps=LOCAL_STEPS,
        buffer_size=kind.buffer,
        server_steps=int(horizon),
        max_staleness=int(stalest),
        client_delta=parse(kind.client).delta(SIZE),
        server_delta=parse(kind.server).delta(SIZE),
    )


def spread(measured: Measured, kind: Kind, horizon: float) -> Spread:
    return measured.spread(ergodic, T=horizon, kind=kind.tag)


def horizons(measured: Measured) -> list[float]:
    """The grid of T."""
    if not (found := measured.places("T")):
        raise Missing("the runs of all T are missing")
    return found


def known(figure: Callable[[], Spread]) -> Spread:
    """A figure, or one of no seeds where its runs are missing."""
    try:
        return figure()
    except Missing:
        return Spread.of(())


@final
@dataclass(frozen=True, slots=True)
class Sweep:
    """A figure against what is varied; where its runs are missing, the figure is one of no seeds."""

    x: tuple[float, ...]
    spreads: tuple[Spread, ...]

    @property
    def y(self) -> tuple[float, ...]:
        """The means; Missing unless there is one everywhere."""
        if gaps := sum(not spread.count for spread in self.spreads):
            raise Missing(f"the runs of {gaps} of the {len(self.x)} places in a sweep are missing")
        return tuple(spread.mean for spread in self.spreads)

    @property
    def slope(self) -> float:
        return slope(self.x, self.y)

    def series(self, label: str) -> Series:
        """What there is, with its range over seeds."""
        there = [(x, spread) for x, spread in zip(self.x, self.spreads, strict=True) if spread.count]
        mean, low, high = (np.array([getattr(spread, name) for _, spread in there]) for name in ("mean", "low", "high"))
        return Series(label, np.array([x for x, _ in there]), mean, low, high, kind="line-and-points")


def level(measured: Measured, kind: Kind) -> Sweep:
    """The mean itself, against T."""
    places = horizons(measured)
    return Sweep(tuple(places), tuple(known(partial(spread, measured, kind, place)) for place in places))


def over_fedbuff(measured: Measured) -> Sweep:
    """QAFeL's mean over FedBuff's, against T."""
    places = horizons(measured)
    return Sweep(tuple(places), tuple(known(partial(ratio, measured, QAFEL, FEDBUFF, place)) for place in places))


def by_horizon(measured: Measured, name: str) -> Sweep:
    places = horizons(measured)
    return Sweep(tuple(places), tuple(known(partial(effect, measured, *EFFECTS[name], place)) for place in places))


def by_buffer(measured: Measured) -> Sweep:
    """The client quantizer's effect against K."""
    return _varied(measured, BUFFERS, [(Kind(CLIENT.client, buffer=k), Kind(buffer=k)) for k in BUFFERS])


def by_client_delta(measured: Measured) -> Sweep:
    """Against 1 − δ_c: by so much is 2 − δ_c above what it is for the run without a quantizer."""
    x = [1 - parse(spec).delta(SIZE) for spec in CLIENT_SPECS]
    return _varied(measured, x, [(Kind(client=spec), REFERENCE) for spec in CLIENT_SPECS])


def by_server_delta(measured: Measured) -> Sweep:
    """Against 1/δ_s² − 1: by so much is 1/δ_s² above what it is for the run without a quantizer."""
    x = [1 / parse(spec).delta(SIZE) ** 2 - 1 for spec in SERVER_SPECS]
    return _varied(measured, x, [(Kind(server=spec), REFERENCE) for spec in SERVER_SPECS])


def by_staleness(measured: Measured) -> Sweep:
    """The effect of staleness against its mean, in server steps."""
    kinds = [Kind(concurrency=concurrency) for concurrency in CONCURRENCIES]
    return _varied(measured, [_staleness(measured, kind) for kind in kinds], [(kind, REFERENCE) for kind in kinds])


def _staleness(measured: Measured, kind: Kind) -> float:
    at = varied_at(measured.quick)
    return known(lambda: measured.spread(lambda run: run.number("staleness_mean"), T=at, kind=kind.tag)).mean


def _varied(measured: Measured, x: Sequence[float], pairs: Sequence[tuple[Kind, Kind]]) -> Sweep:
    """The effects of the first kind of each pair against the second."""
    at = varied_at(measured.quick)
    return Sweep(tuple(x), tuple(known(partial(effect, measured, *pair, at)) for pair in pairs))
