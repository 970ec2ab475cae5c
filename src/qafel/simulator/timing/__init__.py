"""When things happen in a run, as one value.

arrivals    who starts training when
durations   how long a client trains
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from qafel.config import TimingConfig
from qafel.errors import ConfigError, require_numbers
from qafel.parts import Kind, make
from qafel.simulator.timing.arrivals import AlwaysTraining, Arrivals, ConstantRate, Poisson, Rounds, Trace
from qafel.simulator.timing.durations import Constant, Durations, HalfNormal, LogNormal, Uniform, client_factors

ARRIVALS = Kind("arrival law", ("__iter__",))
DURATIONS = Kind("duration law", ("draw",))


@final
@dataclass(frozen=True, slots=True)
class Network:
    """How long messages travel: real bytes over a client's bandwidth, so that quantization shortens virtual time.

    Rates are bytes per unit of virtual time (None: at once); each client has its own factor.
    """

    upload_rate: float | None = None
    download_rate: float | None = None
    latency: float = 0.0
    factors: list[float] | None = None

    @staticmethod
    def of(
        seed: int,
        clients: int,
        *,
        upload_rate: float | None,
        download_rate: float | None,
        latency: float,
        spread: float,
    ) -> Network:
        """A network in which each client's bandwidth has a factor e^(spread·N(0, 1)), always the same for the seed."""
        return Network(upload_rate, download_rate, latency, client_factors(seed, "bandwidth", clients, spread))

    def __post_init__(self) -> None:
        for rate in (self.upload_rate, self.download_rate):
            if rate is not None and rate <= 0:
                raise ConfigError(f"a network rate is positive, got {rate}")

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
class Timing:
    """All that decides on time. Durations alone are needed; the rest has the plainest default."""

    durations: Durations = field(default_factory=Constant)
    arrivals: Arrivals = field(default_factory=AlwaysTraining)
    per_example: float = 0.0
    """Time per sample that the client holds, on top of the drawn duration."""
    speeds: list[float] | None = None
    """A factor on each client's duration."""
    dropout: float = 0.0
    """The share of trainings that never report."""
    max_concurrency: int | None = None
    network: Network | None = None

    def __post_init__(self) -> None:
        require_numbers(self)
        if isinstance(self.durations, type) or not callable(getattr(self.durations, "draw", None)):
            raise ConfigError(
                f"durations are an object with draw(number), as HalfNormal(seed=0); got {self.durations!r}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"the dropout share lies in [0, 1), got {self.dropout}")
        if not isinstance(self.arrivals, AlwaysTraining | Rounds | Iterable):
            raise ConfigError(f"arrivals are AlwaysTraining, Rounds or (time, client) pairs, got {self.arrivals!r}")


def make_timing(config: TimingConfig, seed: int, clients: int) -> Timing:
    """Arrivals, durations and network as the configuration has them.

    A user's own law may have the parameters `seed` and `clients`: it gets the run's.
    """
    network = config.network
    silent = network.upload_rate is None and network.download_rate is None and not network.latency
    return Timing(
        durations=_durations(config, seed, clients),
        arrivals=_arrivals(config, seed, clients),
        per_example=config.per_example,
        speeds=client_factors(seed, "speed", clients, config.speed_spread),
        dropout=config.dropout,
        max_concurrency=config.max_concurrency,
        network=None if silent else Network.of(seed, clients, **network.model_dump()),
    )


def _durations(config: TimingConfig, seed: int, clients: int) -> Durations:
    match config.duration:
        case "half-normal":
            return HalfNormal(seed, config.scale)
        case "log-normal":
            return LogNormal(seed, config.scale, config.spread)
        case "uniform":
            return Uniform(seed, config.scale, config.spread)
        case "constant":
            return Constant(config.scale)
    own: Durations = make(config.duration, DURATIONS, offered={"seed": seed, "clients": clients})
    return own


def _arrivals(config: TimingConfig, seed: int, clients: int) -> Arrivals:
    match config.arrivals:
        case "always-training":
            return AlwaysTraining()
        case "constant":
            return ConstantRate(seed, clients, config.rate, config.draw)
        case "poisson":
            return Poisson(seed, clients, config.rate, config.draw)
        case "trace":
            assert config.trace is not None
            return Trace(Path(config.trace), clients)
        case "rounds":
            return Rounds(config.over_selection, config.round_timeout)
    own: Arrivals = make(config.arrivals, ARRIVALS, offered={"seed": seed, "clients": clients})
    return own
