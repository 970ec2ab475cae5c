"""What quantizers, buffer and staleness add to the mean of ‖∇f(xᵗ)‖²: effects as differences of paired runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import final

import numpy as np

from qafel.experiments.measured import Measured, Missing, Spread
from qafel.experiments.panels import Series
from qafel.experiments.rate_runs import (
    BUFFERS,
    CLIENT,
    CLIENT_SPECS,
    CONCURRENCIES,
    FEDBUFF,
    LOCAL_STEPS,
    QAFEL,
    REFERENCE,
    SERVER,
    SERVER_SPECS,
    SIZE,
    Kind,
    configuration,
    effect,
    ergodic,
    ratio,
    slope,
    varied_at,
)
from qafel.quantizers import parse
from qafel.tasks.synthetic import Constants, Quadratic
from qafel.theory import Setting

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
