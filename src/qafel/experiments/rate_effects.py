"""What quantizers, buffer and staleness add to the mean of ‖∇f(xᵗ)‖²: effects as differences of paired runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np

from qafel.experiments.measured import Measured, Spread
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
    means,
    slope,
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
    return Spread.of(means(measured, kind, horizon).values())


def horizons(measured: Measured) -> list[float]:
    """The grid of T."""
    return sorted({float(planned.at["T"]) for planned, _ in measured.planned(kind=QAFEL.tag)})


def varied_at(measured: Measured) -> float:
    """The T at which K, the quantizers and the staleness were varied."""
    first = Kind(buffer=BUFFERS[0]).tag
    return float(measured.planned(kind=first)[0][0].at["T"])


@final
@dataclass(frozen=True, slots=True)
class Sweep:
    """An effect against what is varied."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def slope(self) -> float:
        return slope(self.x, self.y)

    def series(self, label: str) -> Series:
        y, errors = np.array(self.y), np.array(self.errors)
        return Series(label, np.array(self.x), y, y - errors, y + errors, kind="line-and-points")


def _sweep(x: Sequence[float], found: Sequence[tuple[float, float]]) -> Sweep:
    return Sweep(tuple(x), tuple(mean for mean, _ in found), tuple(error for _, error in found))


def by_horizon(measured: Measured, name: str) -> Sweep:
    places = horizons(measured)
    return _sweep(places, [effect(measured, *EFFECTS[name], place) for place in places])


def by_buffer(measured: Measured) -> Sweep:
    """The client quantizer's effect against K."""
    at = varied_at(measured)
    return _sweep(BUFFERS, [effect(measured, Kind(CLIENT.client, buffer=k), Kind(buffer=k), at) for k in BUFFERS])


def by_client_delta(measured: Measured) -> Sweep:
    at = varied_at(measured)
    x = [1 - parse(spec).delta(SIZE) for spec in CLIENT_SPECS]
    return _sweep(x, [effect(measured, Kind(client=spec), REFERENCE, at) for spec in CLIENT_SPECS])


def by_server_delta(measured: Measured) -> Sweep:
    at = varied_at(measured)
    x = [1 / parse(spec).delta(SIZE) for spec in SERVER_SPECS]
    return _sweep(x, [effect(measured, Kind(server=spec), REFERENCE, at) for spec in SERVER_SPECS])


def by_staleness(measured: Measured) -> Sweep:
    """The effect of staleness against its mean, in server steps."""
    at = varied_at(measured)
    kinds = [Kind(concurrency=concurrency) for concurrency in CONCURRENCIES]
    x = [measured.spread(lambda run: run.number("staleness_mean"), T=at, kind=kind.tag).mean for kind in kinds]
    return _sweep(x, [effect(measured, kind, REFERENCE, at) for kind in kinds])
