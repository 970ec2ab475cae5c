"""One run in virtual time: objects in, rows and a result out; or a configuration in, a run directory out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, final

from qafel.algorithm import Algorithm, Checkpoint
from qafel.config import Config
from qafel.errors import ConfigError, DataError, NonFiniteVector
from qafel.params import Vector
from qafel.runs.directory import CHECKPOINT, RunDirectory, read_checkpoint, same_run, write_checkpoint
from qafel.runs.listeners import Calling, Listener, TensorBoard
from qafel.runs.progress import Evaluation, Limits, Progress, Row, Status
from qafel.runs.reading import History
from qafel.runs.summary import Summary, environment, summarise
from qafel.simulator.checkpoint import restore_simulation, save_simulation
from qafel.simulator.executors import ExecutorName, make_executor
from qafel.simulator.simulation import Simulation, require_progress
from qafel.simulator.timing import Timing, make_timing
from qafel.tasks.protocol import Task


@final
@dataclass(frozen=True)
class Result:
    """What came of a run."""

    summary: Summary
    history: History
    model: Vector
    hidden_state: Vector


def simulate(
    task: Task,
    algorithm: Algorithm,
    timing: Timing,
    *,
    limits: Limits | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 0,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    progress: Callable[[Row], None] | None = None,
) -> Result:
    """Run a method on a task in virtual time; nothing is written.

    Any object that fulfils the protocols will do: a task, a quantizer, a staleness law (τ to a weight), durations, or
    arrivals as an iterable of (time, client).

    task        what is learnt
    algorithm   the method, as `wire` makes it
    timing      when clients start and how long they train
    limits      when the run ends; by default after 1,000 server steps
    evaluation  how often the model is measured; by default after every server step
    seed        names all random streams
    executor    where clients train: "inline", "processes" or "ray"; the result is the same
    workers     how many processes train; one per core by default
    progress    called with each row as it is measured
    """
    rows: list[dict[str, Any]] = []
    listeners: list[Listener] = [Calling(lambda row: rows.append(row.to_json()))]
    if progress is not None:
        listeners.append(Calling(progress))
    measured = Progress(evaluation or Evaluation(), task.metric_goal)
    with make_executor(executor, workers, task, partial(_itself, task), algorithm, seed) as pool:
        simulation = Simulation(task, algorithm, timing, seed, pool)
        summary = _run_to_end(simulation, measured, limits or Limits(server_steps=1000), listeners)
    return Result(summary, History(rows), simulation.server.model, simulation.server.hidden_state.vector)


def run(
    config: Config,
    out: Path | RunDirectory,
    listeners: Sequence[Listener] = (),
    *,
    task: Task | None = None,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    resume: bool = False,
    checkpoint_every_s: float = 30.0,
    tensorboard: bool = True,
) -> Summary:
    """Simulate what the configuration says; write the run directory; return its summary.

    A run whose model or metric is no longer finite says "diverged" as its status.

    config              the whole run
    out                 the run directory: a path, or one that the caller has entered already
    listeners           hear of every row and of the end
    task                the configuration's task, if it is made already
    executor, workers   where clients train, and in how many processes
    resume              go on from the directory's checkpoint, to the same result as a run that was never interrupted
    checkpoint_every_s  seconds between two checkpoints
    tensorboard         write TensorBoard events, if it is installed
    """
    path = out.path if isinstance(out, RunDirectory) else out
    if resume and not os.path.exists(path / CHECKPOINT):
        raise DataError(f"there is no checkpoint at {path / CHECKPOINT}: run without --resume")
    task = task or config.task.make()
    algorithm = config.algorithm.wire(task.layout)
    timing = make_timing(config.timing, config.seed, task.clients)
    settings = config.evaluation
    progress = Progress(Evaluation(settings.every, settings.unit, settings.target), task.metric_goal)
    with (
        nullcontext(out) if isinstance(out, RunDirectory) else RunDirectory(out) as directory,
        make_executor(executor, workers, task, config.task.make, algorithm, config.seed) as pool,
    ):
        simulation = Simulation(task, algorithm, timing, config.seed, pool)
        before = _resume(path, config, simulation, progress) if resume else _Before()
        others = [other for other in before.environments if other != environment()]
        directory.begin(config.to_toml(), keep_metrics_bytes=before.metrics_bytes)
        heard: list[Listener] = [directory, *([TensorBoard(path)] if tensorboard else []), *listeners]

        def save() -> None:
            checkpoint = save_simulation(simulation, progress)
            checkpoint.values.update(config=config.to_toml(), metrics_bytes=directory.metrics_bytes())
            checkpoint.values.update(environments=[*others, environment()])
            write_checkpoint(path / CHECKPOINT, checkpoint)

        return _run_to_end(
            simulation,
            progress,
            Limits(**config.stop.model_dump()),
            heard,
            Saving(save, checkpoint_every_s),
            before_end=partial(directory.write_model, layout=task.layout),
            name=config.name,
            **({"resumed_from": others} if others else {}),
        )


def _run_to_end(
    simulation: Simulation,
    progress: Progress,
    limits: Limits,
    listeners: Sequence[Listener],
    saving: Saving | None = None,
    before_end: Callable[[Vector], None] | None = None,
    **more: object,
) -> Summary:
    """Run to an end while the listeners hear of it, and sum it up."""
    summary: Summary | None = None
    try:
        status: Status = "finished"
        try:
            for row in drive(simulation, progress, limits, saving):
                for listener in listeners:
                    listener.on_row(row)
        except NonFiniteVector:
            status = "diverged"
        training_s = progress.training_before_s + simulation.executor.training_s
        worked_s = training_s / simulation.executor.workers + progress.evaluation_s
        if saving is not None:
            more["checkpoint_s"] = saving.spent_s
        if before_end is not None:
            before_end(simulation.server.model)
        summary = summarise(
            status,
            simulation.task,
            simulation.server,
            simulation.traffic,
            progress,
            simulation.clock.now,
            turned_away=simulation.turned_away,
            out_of_time=simulation.out_of_time,
            training_s=training_s,
            **more,
        )
        summary["overhead_share"] = max(0.0, 1 - worked_s / summary["wall_s"])
    finally:
        with ExitStack() as ends:  # an error in one on_end does not keep the others from theirs
            for listener in reversed(listeners):
                ends.callback(listener.on_end, summary)
    return summary


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


def drive(simulation: Simulation, progress: Progress, limits: Limits, saving: Saving | None = None) -> Iterator[Row]:
    """Run to an end, and yield a row for every evaluation: at the start, when due, and at the end.

    simulation   a new one, or one that was restored
    progress     what its evaluations found so far
    limits       when it ends
    saving       saves it now and then, between two events
    """
    if simulation.starts == simulation.arrivals == 0:
        simulation.begin()
        yield _measure(simulation, progress)
        if limits.at_target and progress.target_reached:
            return
    by_uploads = progress.evaluation.unit == "uploads"
    traffic, clock = simulation.traffic, simulation.clock
    while not limits.reached(simulation.server.version, traffic, clock.now):
        if simulation.idle:
            require_progress(simulation)
            break
        stepped = simulation.advance()
        if (stepped or by_uploads) and progress.due(simulation.server.version, traffic.uploads):
            yield _measure(simulation, progress)
            if limits.at_target and progress.target_reached:
                return
        if stepped and saving is not None:
            saving.now_and_then()
    if progress.stale(simulation.server.version, traffic.uploads):
        yield _measure(simulation, progress)


def _measure(simulation: Simulation, progress: Progress) -> Row:
    """Evaluate the server model now."""
    standing = progress.take(simulation.server, simulation.traffic, simulation.clock.now)
    began = perf_counter()
    figures = simulation.executor.evaluate(simulation.task, standing.model)
    progress.evaluation_s += perf_counter() - began
    return progress.row(standing, figures)


class _Before(NamedTuple):
    """What a run has when it begins or goes on: the length of its metrics, and the machines that it ran on."""

    metrics_bytes: int = 0
    environments: tuple[dict[str, Any], ...] = ()


def _resume(out: Path, config: Config, simulation: Simulation, progress: Progress) -> _Before:
    """Bring the simulation to the checkpoint; return how much of the metrics belongs to it, and where it was made."""
    checkpoint = sound_checkpoint(out)
    if not _is_of(checkpoint, config):
        raise DataError(f"{out} holds the checkpoint of another configuration: resume with the one in its config.toml")
    restore_simulation(checkpoint, simulation, progress)
    return _Before(int(checkpoint.values["metrics_bytes"]), tuple(checkpoint.values.get("environments", ())))


def _is_of(checkpoint: Checkpoint, config: Config) -> bool:
    try:
        return same_run(Config.from_toml(str(checkpoint.values.get("config")), "the checkpoint"), config)
    except ConfigError:
        return False


def sound_checkpoint(out: Path) -> Checkpoint:
    """A run's checkpoint. `DataError` if it is missing or damaged, or rows before it are lost: none is made twice."""
    try:
        checkpoint = read_checkpoint(out / CHECKPOINT)
    except DataError as error:
        raise DataError(f"{error}; --overwrite begins anew here") from None
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
    return checkpoint


def _itself(task: Task) -> Task:
    """The task again, in another process."""
    return task
