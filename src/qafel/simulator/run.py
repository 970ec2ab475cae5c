"""From a configuration to a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, final

from qafel.algorithm import Checkpoint
from qafel.config import Config, TimingConfig
from qafel.errors import ConfigError, DataError, NonFiniteVector, OutputError
from qafel.runs.directory import RunDirectory, read_checkpoint, write_checkpoint
from qafel.runs.listeners import TensorBoard
from qafel.simulator.checkpoint import restore_simulation, save_simulation
from qafel.simulator.executors import ExecutorName, make_executor
from qafel.simulator.measure import Evaluation, Limits, Measurements, Row
from qafel.simulator.simulation import Simulation, require_progress
from qafel.simulator.summary import Summary, environment, summarise
from qafel.simulator.timing import Network, Timing
from qafel.simulator.timing.arrivals import AlwaysTraining, Arrivals, ConstantRate, Poisson, Rounds, Trace
from qafel.simulator.timing.durations import Constant, Durations, HalfNormal, LogNormal, Uniform, client_factors

# The run around the event loop: advance, measure when due, stop in time, save now and then.


@final
class Saving:
    """Decides when to save: every so many seconds, and never for more than a fiftieth of the time."""

    def __init__(self, save: Callable[[], None], every_s: float) -> None:
        self._save = save
        self._every_s = every_s
        self._due = perf_counter() + every_s
        self.spent_s = 0.0

    def now_and_then(self) -> None:
        if (began := perf_counter()) < self._due:
            return
        self._save()
        ended = perf_counter()
        self.spent_s += ended - began
        self._due = ended + max(self._every_s, 50 * (ended - began))


def drive(
    simulation: Simulation, measurements: Measurements, limits: Limits, saving: Saving | None = None
) -> Iterator[Row]:
    """Run to an end, and yield a row for every evaluation: at the start, when due, and at the end."""

    def at_target() -> bool:
        return limits.at_target and measurements.uploads_to_target is not None

    if simulation.starts == simulation.arrivals == 0:
        simulation.begin()
        yield measurements.measure(simulation)
        if at_target():
            return
    by_uploads = measurements.evaluation.unit == "uploads"
    while not limits.reached(simulation):
        if simulation.idle:
            require_progress(simulation)
            break
        stepped = simulation.advance()
        if (stepped or by_uploads) and measurements.due(simulation):
            yield measurements.measure(simulation)
            if at_target():
                return
        if stepped and saving is not None:
            saving.now_and_then()
    if measurements.stale(simulation):
        yield measurements.measure(simulation)


# From settings to the simulator's objects.


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


Progress: TypeAlias = Callable[[Row], None]


CHECKPOINT = Path("checkpoint/checkpoint.safetensors")


class _Before(NamedTuple):
    """What a run has when it begins, or goes on: the length of its metrics, and where it was before."""

    metrics_bytes: int = 0
    environments: tuple[dict[str, Any], ...] = ()


def run(
    config: Config,
    out: Path,
    progress: Progress | None = None,
    *,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    resume: bool = False,
    checkpoint_every_s: float = 30.0,
    tensorboard: bool = True,
) -> Summary:
    """Simulate what the configuration says; write the run directory; return its summary.

    A run whose model becomes non-finite ends there, with what it has, and says "diverged" as its status. `resume`
    goes on from the directory's checkpoint, to the same result as if the run had never been interrupted.
    """
    task = config.task.make()
    algorithm = config.algorithm.wire(task.layout)
    timing = make_timing(config.timing, config.seed, task.clients)
    measurements = Measurements(make_evaluation(config), task.metric_goal)
    with ExitStack() as stack:
        pool = stack.enter_context(make_executor(executor, workers, task, config.task.make, algorithm, config.seed))
        simulation = Simulation(task, algorithm, timing, config.seed, pool)
        before = _resume(out, config, simulation, measurements) if resume else _begin_anew(out)
        elsewhere = [place for place in before.environments if place != environment()]
        directory = stack.enter_context(RunDirectory(out, keep_metrics_bytes=before.metrics_bytes))
        directory.write_config(config.to_toml())
        events = stack.enter_context(TensorBoard(out, tensorboard))

        def save() -> None:
            checkpoint = save_simulation(simulation, measurements)
            checkpoint.values.update(config=config.to_toml(), metrics_bytes=directory.metrics_bytes())
            checkpoint.values.update(environments=[*elsewhere, environment()])
            write_checkpoint(out / CHECKPOINT, checkpoint)

        saving = Saving(save, checkpoint_every_s)
        status = "finished"
        try:
            for row in drive(simulation, measurements, make_limits(config), saving):
                directory.append_row(row.to_json())
                events.write(row)
                if progress is not None:
                    progress(row)
        except NonFiniteVector:
            status = "diverged"
        summary = {"name": config.name, **summarise(simulation, measurements, status), "checkpoint_s": saving.spent_s}
        if elsewhere:
            summary["resumed_from"] = elsewhere
        directory.write_model(simulation.server.model, task.layout)
        directory.write_summary(summary)
    return summary


def same_run(one: Config, other: Config) -> bool:
    """Whether two configurations give the same results: names and descriptions do not matter."""
    apart = {"name", "description"}
    return one.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def _resume(out: Path, config: Config, simulation: Simulation, measurements: Measurements) -> _Before:
    """Bring the simulation to the checkpoint; return how much of the metrics belongs to it, and where it was made."""
    checkpoint = read_checkpoint(out / CHECKPOINT)
    if not _is_of(checkpoint, config):
        raise DataError(f"{out} holds the checkpoint of another configuration: resume with the one in its config.toml")
    metrics_bytes = metrics_behind(checkpoint, out)
    restore_simulation(checkpoint, simulation, measurements)
    return _Before(metrics_bytes, tuple(checkpoint.values.get("environments", ())))


def _is_of(checkpoint: Checkpoint, config: Config) -> bool:
    try:
        return same_run(Config.from_toml(str(checkpoint.values.get("config")), "the checkpoint"), config)
    except ConfigError:
        return False


def metrics_behind(checkpoint: Checkpoint, out: Path) -> int:
    """How long the metrics were at the checkpoint. DataError where some are gone, for they are not made again."""
    expected = int(checkpoint.values["metrics_bytes"])
    file = out / "metrics.jsonl"
    try:
        found = file.stat().st_size
    except FileNotFoundError:
        found = 0
    if found < expected:
        raise DataError(
            f"{file} has {found} bytes, and had {expected} at its checkpoint: "
            "rows are lost, so begin anew with --overwrite"
        )
    return expected


def _begin_anew(out: Path) -> _Before:
    """Remove the checkpoint of a run before: killed early and resumed, the new run must not take it for its own."""
    try:
        (out / CHECKPOINT).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write results to {out}: {error.strerror}; choose another folder with --out"
        ) from None
    return _Before()
