"""From a configuration to a run directory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from qafel.algorithm import Checkpoint
from qafel.config import Config
from qafel.errors import ConfigError, DataError, NonFiniteVector, OutputError
from qafel.results.checkpoint_file import read_checkpoint, write_checkpoint
from qafel.results.run_directory import RunDirectory
from qafel.results.tensorboard import TensorBoard
from qafel.simulator.build import make_evaluation, make_limits, make_timing
from qafel.simulator.checkpoint import restore_simulation, save_simulation
from qafel.simulator.executor_choice import ExecutorName, make_executor
from qafel.simulator.loop import Saving, drive
from qafel.simulator.measure import Measurements, Row
from qafel.simulator.simulation import Simulation
from qafel.simulator.summary import Summary, environment, summarise

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
