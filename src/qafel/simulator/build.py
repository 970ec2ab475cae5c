"""From settings to the simulator's objects."""

from __future__ import annotations

from pathlib import Path

from qafel.config import Config, TimingConfig
from qafel.simulator.arrivals import AlwaysTraining, Arrivals, ConstantRate, Poisson, Rounds, Trace
from qafel.simulator.durations import Constant, Durations, HalfNormal, LogNormal, Uniform, client_factors
from qafel.simulator.measure import Evaluation, Limits
from qafel.simulator.network import Network
from qafel.simulator.timing import Timing


def make_timing(config: TimingConfig, seed: int, clients: int) -> Timing:
    """Arrivals, durations and network as the configuration has them."""
    network = config.network
    silent = network.upload_rate is None and network.download_rate is None and not network.latency
    return Timing(
        durations=_durations(config, seed),
        arrivals=_arrivals(config, seed, clients),
        per_example=config.per_example,
        speeds=client_factors(seed, "speed", clients, config.speed_spread),
        dropout=config.dropout,
        max_concurrency=config.max_concurrency,
        network=None
        if silent
        else Network.of(
            seed,
            clients,
            upload_rate=network.upload_rate,
            download_rate=network.download_rate,
            latency=network.latency,
            spread=network.spread,
        ),
    )


def make_evaluation(config: Config) -> Evaluation:
    return Evaluation(config.evaluation.every, config.evaluation.unit, config.evaluation.target)


def make_limits(config: Config) -> Limits:
    return Limits(**config.stop.model_dump())


def _durations(config: TimingConfig, seed: int) -> Durations:
    match config.duration:
        case "half-normal":
            return HalfNormal(seed, config.scale)
        case "log-normal":
            return LogNormal(seed, config.scale, config.spread)
        case "uniform":
            return Uniform(seed, config.scale, config.spread)
        case "constant":
            return Constant(config.scale)


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
