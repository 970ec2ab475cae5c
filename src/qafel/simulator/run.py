"""One run in virtual time, from its inputs to its summary: listeners, run directory, checkpoints, live state."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Self, final

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
from qafel.runs.live import NAMED_CLIENTS, Listener, LiveState, Rate, Summary, environment, live_state, summarise
from qafel.runs.progress import Progress, Row, Status
from qafel.runs.reading import Run
from qafel.runs.trackers import Track, TrackedRun, follow
from qafel.simulator.checkpoint import SavedRun, restore_simulation, save_simulation
from qafel.simulator.executors import ExecutorName, make_executor
from qafel.simulator.executors.jobs import require_pure
from qafel.simulator.simulation import Dropout, Simulation, job_of
from qafel.tasks.protocol import Task
from qafel.text import counted

_HEARTBEAT_S = 1.0
_MANY_EVENTS = 20_000
"""How many events on the clock the live state looks at."""


@final
@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """Everything that determines the result of a run, and the settings that its directory states."""

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
    """Makes x⁰; None: the task makes it."""
    pure: bool = True
    """Whether repeated training must give the same bits."""


def execute(
    run: RunInputs,
    out: Path | RunDirectory | None,
    listeners: Sequence[Listener],
    *,
    executor: ExecutorName,
    workers: int | None,
    resume: bool,
    checkpoint_every_s: float,
    track: Track,
    say: Callable[[str], None],
) -> tuple[Summary, Simulation]:
    """Run to the end, in the run directory `out` or in memory. The arguments are those of `simulate`.

    The first Ctrl-C saves a checkpoint between two events, then raises KeyboardInterrupt. A second one raises
    immediately.
    """
    path = out.path if isinstance(out, RunDirectory) else out
    if resume and path is not None and not os.path.exists(path / CHECKPOINT):
        raise DataError(f"no checkpoint at {path / CHECKPOINT}: run without `resume`")
    with ExitStack() as stack:
        directory = stack.enter_context(RunDirectory(out)) if isinstance(out, Path) else out
        pool = stack.enter_context(make_executor(executor, workers, run.task, run.make_task, run.algorithm, run.seed))
        start = None if resume or run.start is None else run.start()  # a checkpoint holds its own model
        simulation = Simulation(run.task, run.algorithm, run.timing, run.seed, pool, start)
        probe = pool, run.task, run.algorithm.client_rule, simulation.background.hidden_state
        upload = require_pure(*probe, say) if run.pure and not resume else b""
        progress = Progress(run.evaluation, run.task.metric_goal)
        if directory is None or path is None:
            return run_to_end(simulation, progress, run.limits, listeners), simulation
        if run.pure:
            require_savable(simulation.server)
        toml, rows = tomli_w.dumps(run.settings), RowLog((path / CHECKPOINT).parent)
        saved = _resume(path, run, simulation, progress, rows) if resume else None
        digest = ""
        if run.settings.get("made_in") == "python" and run.start is None:  # a recipe describes its task
            digest = hashlib.sha256(
                f"{run.task.metric_name} {run.task.metric_goal} ".encode()
                + probe[-1].vector.tobytes()
                + (require_pure(*probe, say, again=False) if saved else upload)
            ).hexdigest()
        if saved is not None and digest:
            _require_same_task(saved, executor, digest, path)
        if saved is not None and state_of(path, run.settings) == "finished":
            return dict(Run.load(path).summary), simulation
        others = [other for other in saved.environments if other != environment()] if saved else []
        directory.begin(toml, keep_metrics_bytes=saved.metrics_bytes if saved else 0)
        tracked = TrackedRun(path, run.settings, run.task.metric_name, resume, track)
        heartbeat = Heartbeat(directory.on_live, simulation, progress, run.limits)
        # The directory comes first: at the end, trackers read the files that it has written.
        heard: list[Listener] = [directory, heartbeat, *follow(tracked, say), *listeners]

        def save() -> None:
            if run.pure:  # else the state that the task keeps would be lost
                checkpoint = save_simulation(simulation, progress)
                checkpoint.values.update(config=toml, metrics_bytes=directory.metrics_bytes())
                checkpoint.values.update(environments=[*others, environment()], executor=executor, task_digest=digest)
                write_checkpoint(path / CHECKPOINT, checkpoint, rows)

        more = {"name": run.settings["name"], **({"resumed_from": others} if others else {})}
        write_model = partial(directory.write_model, layout=run.task.layout)
        saving = stack.enter_context(Saving(save, checkpoint_every_s))
        return run_to_end(simulation, progress, run.limits, heard, saving, write_model, heartbeat, **more), simulation


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
    """Run to the end, notify the listeners, and return the summary."""
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
        with ExitStack() as ends:  # every on_end is called, even if another one raises
            for listener in reversed(listeners):
                ends.callback(listener.on_end, summary)
    return summary


def _verdict(simulation: Simulation, progress: Progress, limits: Limits) -> tuple[Status, str]:
    """The status of a run that ended, and the reason if it did not finish."""
    if progress.diverged:
        return "diverged", "the model, the metric or the loss is no longer finite: lower the learning rates"
    if simulation.server.version or (limits.at_target and progress.target_reached):
        return "finished", ""
    traffic, size = simulation.traffic, simulation.algorithm.buffer_size
    rejected = f", {traffic.rejected_uploads:,} were rejected" if traffic.rejected_uploads else ""
    came = f"{counted(traffic.uploads, 'update')} arrived{rejected}, and the buffer of {size} never filled"
    return "stalled", f"the server made no step: {came}. Set larger limits or a smaller buffer_size"


@final
class Saving:
    """Saves every few seconds, for at most a fiftieth of the time, and at an interruption.

    In its context, the first Ctrl-C is only noted, so that no event is interrupted.
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
        """Save if it is time. After an interruption, save and raise KeyboardInterrupt."""
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
    """Run to the end. Yield a row for every evaluation: at the start, when one is due, and at the end."""
    if simulation.starts == simulation.arrivals == 0:
        simulation.begin()
        yield _measure(simulation, progress)
        if limits.at_target and progress.target_reached:
            return
    by_uploads = progress.evaluation.unit == "uploads"
    traffic, clock = simulation.traffic, simulation.clock
    while not limits.reached(simulation.server.version, traffic.uploads, traffic.total_bytes, clock.now):
        if simulation.idle:
            simulation.require_progress()
            break
        stepped = simulation.advance()
        if heartbeat is not None:
            heartbeat.report_if_due()
        if (stepped or by_uploads) and progress.due(simulation.server.version, traffic.uploads):
            yield _measure(simulation, progress)
        if limits.at_target and progress.target_reached:
            break
        if stepped and saving is not None:
            saving.save_if_due()
    if saving is not None:
        saving.now()  # before the last row: a run that resumes with larger limits does not have it
    if progress.stale(simulation.server.version, traffic.uploads):
        yield _measure(simulation, progress)


def _measure(simulation: Simulation, progress: Progress) -> Row:
    """Evaluate the server model now."""
    standing = progress.take(simulation.server, simulation.traffic, simulation.clock.now)
    began = perf_counter()
    figures = simulation.executor.evaluate(simulation.task, standing.model)
    progress.evaluation_s += perf_counter() - began
    return progress.row(standing, figures)


def _resume(out: Path, run: RunInputs, simulation: Simulation, progress: Progress, rows: RowLog) -> SavedRun:
    """Bring the simulation to the state of the checkpoint in `out`; return its values."""
    checkpoint = sound_checkpoint(out, rows)
    saved = SavedRun.of(checkpoint)
    try:
        same = same_run(read_settings(saved.config, "the checkpoint"), run.settings, {"stop"})
    except ConfigError:
        same = False
    if not same:
        raise DataError(f"{out} holds the checkpoint of another configuration: resume with the one in its config.toml")
    restore_simulation(checkpoint, simulation, progress)
    if has_summary(out) and state_of(out, run.settings) != "finished" and not _continues(saved, run.limits):
        raise DataError(f"the run in {out} is past these limits: set larger ones to resume it, such as stop.uploads")
    return saved


def _require_same_task(saved: SavedRun, executor: str, digest: str, out: Path) -> None:
    """Raise `DataError` if the task trains other bits than before. Another machine or executor may do so too."""
    comparable = saved.task_digest and saved.executor == executor and saved.environments[-1:] == [environment()]
    if comparable and saved.task_digest != digest:
        raise DataError(
            f"{out} holds the checkpoint of another task: its metric, its goal, or the first upload of a client "
            "differs. Resume with the same task, settings and number of threads"
        )


def is_shorter_run(out: Path, limits: Limits) -> bool:
    """Whether the run in `out` can continue from its checkpoint to these limits."""
    try:
        return _continues(SavedRun.of(sound_checkpoint(out)), limits)
    except DataError:  # damaged, or of another version
        return False


def _continues(saved: SavedRun, limits: Limits) -> bool:
    reached = limits.reached(saved.server.version, saved.traffic.uploads, saved.traffic.total_bytes, saved.now)
    return not reached and not (limits.at_target and saved.progress.get("uploads_to_target") is not None)


def sound_checkpoint(out: Path, rows: RowLog | None = None) -> Checkpoint:
    """A run's checkpoint. Raises `DataError` if it is missing or damaged, or if rows before it are lost."""
    try:
        checkpoint = read_checkpoint(out / CHECKPOINT, rows)
    except DataError as error:
        raise DataError(f"{error}; start again with `overwrite`") from None
    expected, file = SavedRun.of(checkpoint).metrics_bytes, out / "metrics.jsonl"
    found = file.stat().st_size if file.exists() else 0
    if found < expected:
        raise DataError(
            f"{file} has {found} bytes, and had {expected} at its checkpoint. Rows are lost: start again with "
            "`overwrite`"
        )
    return checkpoint


@final
class Heartbeat:
    """A listener that reports the live state of a run about once a second, between two evaluations too."""

    def __init__(
        self, report: Callable[[LiveState], None], simulation: Simulation, progress: Progress, limits: Limits
    ) -> None:
        self._report = report
        self._simulation, self._progress, self._limits = simulation, progress, limits
        self._due = perf_counter()
        self._rate = Rate()
        self._hidden_state_lag: float | None = None

    def report_if_due(self) -> None:
        if perf_counter() >= self._due:
            self._report(self.state())
            self._due = perf_counter() + _HEARTBEAT_S

    def on_row(self, row: Row) -> None:
        self._hidden_state_lag = row.hidden_state_lag
        self.report_if_due()

    def on_end(self, summary: Summary | None) -> None:
        """Nothing to do: the directory writes the summary and the last state."""

    def state(self) -> LiveState:
        simulation, traffic, clock = self._simulation, self._simulation.traffic, self._simulation.clock
        training: dict[str, int] = {}  # clients, and how many versions old their start is
        silent: list[str] = []  # clients that dropped out
        for event in islice(clock.events(), _MANY_EVENTS):
            if isinstance(event, Dropout):
                silent.append(str(event.client))
            elif (job := job_of(event)) is not None and len(training) < NAMED_CLIENTS:
                training[str(job.client)] = simulation.server.version - job.version
        return live_state(
            "running",
            simulation.task,
            simulation.server,
            traffic,
            self._progress,
            self._limits,
            clock.now,
            updates_per_s=self._rate.mark(perf_counter(), traffic.uploads),
            training=training,
            training_count=simulation.in_flight - (len(silent) if len(clock) <= _MANY_EVENTS else 0),
            silent=dict.fromkeys(silent[:NAMED_CLIENTS]),
            silent_count=len(silent) if len(clock) <= _MANY_EVENTS else None,
            hidden_state_lag=self._hidden_state_lag,
        )
