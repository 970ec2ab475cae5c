"""The timing of a run. `arrivals`: which client starts when. `durations`: how long a client trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from qafel.config import Network, Timing
from qafel.errors import ConfigError
from qafel.parts import PartKind, errors_of, make
from qafel.simulator.timing.arrivals import AlwaysTraining, Arrivals, ConstantRate, Poisson, Rounds, Trace
from qafel.simulator.timing.durations import Constant, Durations, HalfNormal, LogNormal, Uniform, client_factors

_ARRIVALS = PartKind("arrival law", ("__iter__",))
_DURATIONS = PartKind("duration law", ("draw",))


@final
@dataclass(frozen=True, slots=True)
class Links:
    """How long messages travel: their bytes over the bandwidth of each client."""

    upload_rate: float | None
    download_rate: float | None
    latency: float
    factors: list[float] | None

    def upload_time(self, client: int, size_bytes: int) -> float:
        return self.latency + self._time(client, size_bytes, self.upload_rate)

    def download_time(self, client: int, size_bytes: int) -> float:
        return self.latency + self._time(client, size_bytes, self.download_rate)

    def _time(self, client: int, size_bytes: int, rate: float | None) -> float:
        if rate is None:
            return 0.0
        return size_bytes / (rate if self.factors is None else rate * self.factors[client])


@final
@dataclass(frozen=True, slots=True)
class Schedule:
    """The timing of one run: its laws with the run's seed, and the values of each client."""

    durations: Durations
    arrivals: Arrivals
    per_example: float
    duration_factors: list[float] | None
    dropout: Callable[[int], float] | None
    """The share of a client's trainings that drop out; None: no training does."""
    max_concurrency: int | None
    network: Links | None


def make_timing(timing: Timing, seed: int, clients: int) -> Schedule:
    """The schedule of a run. Laws without a seed use the run's.

    A custom law may have the parameters `seed` and `clients`. An object may have `for_run(seed, clients)`, which
    returns the law for the run.
    """
    network, dropout = timing.network, timing.dropout
    for name, values in (
        ("duration_factors", timing.duration_factors),
        ("dropout", dropout if isinstance(dropout, list) else None),
        ("network.rate_factors", network.rate_factors),
    ):
        if values is not None and len(values) != clients:
            raise ConfigError(f"{name} has {len(values)} values, and the task has {clients} clients: give one for each")
    return Schedule(
        durations=_law(timing.duration, _DURATIONS, _duration_laws(timing), seed, clients),
        arrivals=_law(timing.arrivals, _ARRIVALS, _arrival_laws(timing), seed, clients),
        per_example=timing.per_example,
        duration_factors=client_factors(seed, "speed", clients, timing.speed_spread, timing.duration_factors),
        dropout=dropout.__getitem__ if isinstance(dropout, list) else _dropout(dropout),
        max_concurrency=timing.max_concurrency,
        network=_links(network, seed, clients),
    )


def _duration_laws(timing: Timing) -> Mapping[str, Callable[..., Any]]:
    return {
        "half-normal": partial(HalfNormal, scale=timing.scale),
        "log-normal": partial(LogNormal, scale=timing.scale, spread=timing.spread),
        "uniform": partial(Uniform, scale=timing.scale, spread=timing.spread),
        "constant": partial(Constant, timing.scale),
    }


def _arrival_laws(timing: Timing) -> Mapping[str, Callable[..., Any]]:
    return {
        "always-training": AlwaysTraining,
        "constant": partial(ConstantRate, rate=timing.rate, draw=timing.draw),
        "poisson": partial(Poisson, rate=timing.rate, draw=timing.draw),
        "trace": partial(Trace, timing.trace or ""),
        "rounds": partial(Rounds, over_selection=timing.over_selection, timeout=timing.round_timeout),
    }


def _law(part: Any, kind: PartKind, known: Mapping[str, Callable[..., Any]], seed: int, clients: int) -> Any:
    if isinstance(part, AlwaysTraining | Rounds):
        return part
    law = make(part, kind, offered={"seed": seed, "clients": clients}, known=known)
    return law.for_run(seed, clients) if hasattr(law, "for_run") else law


def _dropout(share: float | Callable[[int], float]) -> Callable[[int], float] | None:
    if callable(share):
        return partial(_share_of, share)
    return (lambda client: share) if share else None


def _share_of(dropout: Callable[[int], float], client: int) -> float:
    with errors_of("the dropout function"):
        share = dropout(client)
    if not 0 <= share < 1:
        raise ConfigError(f"dropout({client}) is {share!r}: expected a share from 0 to less than 1")
    return share


def _links(network: Network, seed: int, clients: int) -> Links | None:
    if network.upload_rate is None and network.download_rate is None and not network.latency:
        return None
    factors = client_factors(seed, "bandwidth", clients, network.spread, network.rate_factors)
    return Links(network.upload_rate, network.download_rate, network.latency, factors)
