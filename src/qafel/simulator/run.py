"""One run in virtual time, from a plan to its end: rows to listeners, a run directory, checkpoints."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Self, final

import tomli_w

from qafel.algorithm import Algorithm, Checkpoint, require_savable
from qafel.config import Evaluation, Limits, Timing
from qafel.errors import ConfigError, DataError, NonFiniteVector, Stalled
from qafel.params import Vector
from qafel.runs.checkpoints import RowLog, read_checkpoint, write_checkpoint
from qafel.runs.directory import (
    CHECKPOINT,
    RunDirectory,
    has_summary,
    read_settings,
    same_run,
    state_of,
)
from qafel.runs.progress import Progress, Row, Status
from qafel.runs.reading import Run
from qafel.runs.summary import Listener, Summary, environment, summarise
from qafel.runs.trackers import NOT_TRACKED, Track, TrackedRun, follow
from qafel.simulator.checkpoint import SavedRun, restore_simulation, save_simulation
from qafel.simulator.executors import ExecutorName, make_executor
from qafel.simulator.executors.jobs import require_pure
from qafel.simulator.live import Heartbeat
from qafel.simulator.simulation import Simulation, require_progress
from qafel.tasks.protocol import Task
from qafel.text import counted

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """All that decides on a run's result, and the table of settings that its directory states."""

    settings: dict[str, Any]
    task: Task
    make_task: Callable[[], Task]
    """Makes the task again in another process."""
    algorithm: Algorithm
    timing: Timing
    evaluation: Evaluation
    limits: Limits
    seed: int
    start: Callable[[], Vector] | None = None
    """Makes x⁰; None: the task does."""
    pure: bool = True
    """Whether training must give the same bits again."""


def run_plan(
    plan: RunPlan,
    out: Path | RunDirectory | None = None,
    listeners: Sequence[Listener] = (),
    *,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    resume: bool = False,
    checkpoint_every_s: float = 30.0,
    track: Track = NOT_TRACKED,
    say: Callable[[str], None] = log.warning,
) -> tuple[Summary, Simulation]:
    """Run the plan to its end, in the run directory `out` or in memory; the arguments are those of `simulate`.

    The first Ctrl-C saves a checkpoint between two events, then raises KeyboardInterrupt; a second one raises at once.
    """
    path = out.path if isinstance(out, RunDirectory) else out
    if resume and path is not None and not os.path.exists(path / CHECKPOINT):
        raise DataError(f"there is no checkpoint at {path / CHECKPOINT}: run without `resume`")
    with ExitStack() as stack:
        directory = stack.enter_context(RunDirectory(out)) if isinstance(out, Path) else out
        pool = stack.enter_context(
            make_executor(executor, workers, plan.task, plan.make_task, plan.algorithm, plan.seed)
        )
        start = None if resume or plan.start is None else plan.start()  # a checkpoint has its own model
        simulation = Simulation(plan.task, plan.algorithm, plan.timing, plan.seed, pool, start)
        if plan.pure and not resume:
            require_pure(pool, plan.task, plan.algorithm.client_rule, simulation.background.hidden_state, say)
        progress = Progress(plan.evaluation, plan.task.metric_goal)
        if directory is None or path is None:
            return run_to_end(simulation, progress, plan.limits, listeners), simulation
        toml = tomli_w.dumps(plan.settings)
        if plan.pure:
            require_savable(simulation.server)
        rows = RowLog((path / CHECKPOINT).parent)
        before = _resume(path, plan, simulation, progress, rows) if resume else _Before()
        if before.finished:
            return dict(Run.load(path).summary), simulation
        others = [other for other in before.environments if other != environment()]
        directory.begin(toml, keep_metrics_bytes=before.metrics_bytes)
        tracked = TrackedRun(path, plan.settings, plan.task.metric_name, resume, track)
        heartbeat = Heartbeat(directory.on_live, simulation, progress, plan.limits)
        # The directory hears of the end first: trackers take the files that it has written by then.
        heard: list[Listener] = [directory, heartbeat, *follow(tracked, say), *listeners]

        def save() -> None:
            if not plan.pure:  # what its task keeps of the clients would be lost
                return
            checkpoint = save_simulation(simulation, progress)
            checkpoint.values.update(config=toml, metrics_bytes=directory.metrics_bytes())
            checkpoint.values.update(environments=[*others, environment()])
            write_checkpoint(path / CHECKPOINT, checkpoint, rows)

        more = {"name": plan.settings["name"], **({"resumed_from": others} if others else {})}
        write_model = partial(directory.write_model, layout=plan.task.layout)
        saving = stack.enter_context(Saving(save, checkpoint_every_s))
        return run_to_end(simulation, progress, plan.limits, heard, saving, write_model, heartbeat, **more), simulation


def run_to_end(
    simulation: Simulation,
    progress: Progress,
    limits: Limits,
    listeners: Sequence[Listener],
    saving: Saving | None = None,
    before_end: Callable[[Vector], None] | None = None,
    heartbeat: Heartbeat | None = None,
    **more: object,
) -> Summary:
    """Run to an end while the listeners hear of it, and sum it up."""
    summary: Summary | None = None
    try:
        try:
            for row in drive(simulation, progress, limits, saving, heartbeat):
                for listener in listeners:
                    listener.on_row(row)
            status, reason = _verdict(simulation, progress, limits)
        except NonFiniteVector as error:
            status, reason = "diverged", str(error)
        except Stalled as error:
            status, reason = "stalled", str(error)
        if status != "finished":
            more["reason"] = reason
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
            stopped=simulation.stopped,
            training_s=training_s,
            **more,
        )
        summary["overhead_share"] = max(0.0, 1 - worked_s / summary["wall_s"])
    finally:
        with ExitStack() as ends:  # an error in one on_end does not keep the others from theirs
            for listener in reversed(listeners):
                ends.callback(listener.on_end, summary)
    return summary


def _verdict(simulation: Simulation, progress: Progress, limits: Limits) -> tuple[Status, str]:
    """The status of a run that came to its end, and why, unless it is finished."""
    if progress.diverged:
        return "diverged", "the model, the metric or the loss is no longer finite: lower the learning rates"
    if simulation.server.version or (limits.at_target and progress.target_reached):
        return "finished", ""
    traffic, size = simulation.traffic, simulation.algorithm.buffer_size
    rejected = f", {traffic.rejected_uploads:,} were rejected" if traffic.rejected_uploads else ""
    came = f"{counted(traffic.uploads, 'update')} came{rejected}, and the buffer of {size} never filled"
    return "stalled", f"the server made no step: {came}; set larger limits or a smaller buffer_size"


@final
class Saving:
    """Decides when to save: every so many seconds, never for more than a fiftieth of the time, and at an interruption.

    In its context the first Ctrl-C is only noted, so that it breaks nothing off in the middle.
    """

    def __init__(self, save: Callable[[], None], every_s: float) -> None:
        self._save = save
        self._every_s = every_s
        self._due = perf_counter() + every_s
        self._handler: Any = None
        self._interrupted = False
        self.spent_s = 0.0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._note_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore_handler()

    def _note_interrupt(self, *_: object) -> None:
        self._interrupted = True
        self._restore_handler()

    def _restore_handler(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None

    def save_if_due(self) -> None:
        """Save if it is time. After an interruption save and raise KeyboardInterrupt."""
        if self._interrupted:
            self.now()
            raise KeyboardInterrupt
        if perf_counter() >= self._due:
            self.now()

    def now(self) -> None:
        began = perf_counter()
        self._save()
        ended = perf_counter()
        self.spent_s += ended - began
        self._due = ended + max(self._every_s, 50 * (ended - began))


def drive(
    simulation: Simulation,
    progress: Progress,
    limits: Limits,
    saving: Saving | None = None,
    heartbeat: Heartbeat | None = None,
) -> Iterator[Row]:
    """Run to an end, and yield a row for every evaluation: at the start, when due, and at the end.

    simulation   a new one, or one that was restored
    progress     what its evaluations found so far
    limits       when it ends
    saving       saves it now and then, between two events
    heartbeat    tells now and then how it stands
    """
    if simulation.starts == simulation.arrivals == 0:
        simulation.begin()
        yield _measure(simulation, progress)
        if limits.at_target and progress.target_reached:
            return
    by_uploads = progress.evaluation.unit == "uploads"
    traffic, clock = simulation.traffic, simulation.clock
    while not limits.reached(simulation.server.version, traffic.uploads, traffic.total_bytes, clock.now):
        if simulation.idle:
            require_progress(simulation)
            break
        stepped = simulation.advance()
        if heartbeat is not None:
            heartbeat.write_if_due()
        if (stepped or by_uploads) and progress.due(simulation.server.version, traffic.uploads):
            yield _measure(simulation, progress)
        if limits.at_target and progress.target_reached:
            break
        if stepped and saving is not None:
            saving.save_if_due()
    if saving is not None:
        saving.now()  # before the last row, which a run that goes on with larger limits does not have
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
    """What a run has when it begins or resumes: the length of its metrics, the machines that it ran on, its end."""

    metrics_bytes: int = 0
    environments: tuple[dict[str, Any], ...] = ()
    finished: bool = False
    """Whether it has come to the very end that it is to have."""


def _resume(out: Path, plan: RunPlan, simulation: Simulation, progress: Progress, rows: RowLog) -> _Before:
    """Bring the simulation to the checkpoint; return how much of the metrics belongs to it, and where it was made."""
    checkpoint = sound_checkpoint(out, rows)
    saved = SavedRun.of(checkpoint)
    if not _is_of(saved, plan):
        raise DataError(f"{out} holds the checkpoint of another configuration: resume with the one in its config.toml")
    restore_simulation(checkpoint, simulation, progress)
    finished = state_of(out, plan.settings) == "finished"
    if has_summary(out) and not finished and not _goes_on(saved, plan.limits):
        raise DataError(f"the run in {out} is past these limits: set larger ones to resume it, such as stop.uploads")
    return _Before(saved.metrics_bytes, tuple(saved.environments), finished)


def _is_of(saved: SavedRun, plan: RunPlan) -> bool:
    """Whether the run may go on: its settings are the same, but for when it ends."""
    try:
        return same_run(read_settings(saved.config, "the checkpoint"), plan.settings, {"stop"})
    except ConfigError:
        return False


def is_shorter_run(out: Path, limits: Limits) -> bool:
    """Whether the run in `out` goes on from its checkpoint to these limits, as if it had them from the start."""
    try:
        return _goes_on(SavedRun.of(sound_checkpoint(out)), limits)
    except DataError:  # damaged, or of an older version
        return False


def _goes_on(saved: SavedRun, limits: Limits) -> bool:
    reached = limits.reached(saved.server.version, saved.traffic.uploads, saved.traffic.total_bytes, saved.now)
    return not reached and not (limits.at_target and saved.progress.get("uploads_to_target") is not None)


def sound_checkpoint(out: Path, rows: RowLog | None = None) -> Checkpoint:
    """A run's checkpoint. `DataError` if it is missing or damaged, or rows before it are lost: none is made twice."""
    try:
        checkpoint = read_checkpoint(out / CHECKPOINT, rows)
    except DataError as error:
        raise DataError(f"{error}; `overwrite` begins anew here") from None
    expected = SavedRun.of(checkpoint).metrics_bytes
    file = out / "metrics.jsonl"
    try:
        found = file.stat().st_size
    except OSError:
        found = 0
    if found < expected:
        raise DataError(
            f"{file} has {found} bytes, and had {expected} at its checkpoint: "
            "rows are lost, so begin anew with `overwrite`"
        )
    return checkpoint
