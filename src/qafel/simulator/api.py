"""`simulate` runs a method from Python objects, with or without a run directory, and returns a `Result`."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from html import escape
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from qafel import drawing
from qafel.algorithm import Algorithm, Kind, LocalTraining
from qafel.config import Config, Evaluation, Limits, Timing
from qafel.config.start import StartConfig, StartFrom, start_of
from qafel.config.tasks import TASK
from qafel.drawing.page import table
from qafel.errors import ConfigError, Diverged, OutputError, Stalled, plain_number, require
from qafel.params import Vector
from qafel.parts import Section
from qafel.quantizers import fitness
from qafel.runs.directory import RunDirectory, settings_of, state_of
from qafel.runs.live import FunctionListener, Listener, Summary, figures_of
from qafel.runs.progress import Row
from qafel.runs.reading import History, Run, columns_of
from qafel.runs.trackers import Track, track_of
from qafel.simulator.executors import ExecutorName
from qafel.simulator.run import RunInputs, execute
from qafel.tasks.protocol import Task, digest_of
from qafel.text import described, path_of

if TYPE_CHECKING:
    from qafel.drawing.printed import Plot

log = logging.getLogger(__name__)
_Section = TypeVar("_Section", bound=Section)
_Value = TypeVar("_Value")
_TABLES = (Algorithm, LocalTraining, Section)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The result of a run. A notebook shows its figures and a plot.

    summary        The figures of summary.json.
    history        The evaluations, as columns by name.
    model          The server's model x, a flat vector.
    hidden_state   x̂, the start of clients.
    settings       The settings of config.toml.
    """

    summary: Summary
    history: History
    model: Vector
    hidden_state: Vector
    settings: Mapping[str, Any]

    def plot(self, *others: Result) -> Plot:
        """Plot the metric by server steps and by total bytes, for this run and `others`.

        A notebook shows the returned plot. `.save("plot.png")` writes it, and `.figure` is the matplotlib figure.
        """
        from qafel.report import comparison_figure  # noqa: PLC0415  (drawing loads when it is used)

        return drawing.printed.Plot(comparison_figure([result._as_run() for result in (self, *others)]))

    def to_pandas(self) -> Any:
        """The history as a pandas DataFrame, a row per evaluation. Needs the extra `pandas`."""
        return self.history.to_pandas()

    def __repr__(self) -> str:
        lines = (f"    {name:12}  {figure}" for name, figure in figures_of(self.summary)[:5])
        return "\n".join((f"Result of {self._title}", *lines))

    def _repr_html_(self) -> str:
        figures = table((), figures_of(self.summary))
        return f"<b>{escape(self._title)}</b>{figures}{self.plot()._repr_html_()}"

    @property
    def _title(self) -> str:
        return "{task}, {algorithm}, seed {seed}".format_map(self.summary)

    def _as_run(self) -> Run:
        name = str(self.settings["name"])
        return Run(Path(name), name, self.settings, self.summary, columns_of(self.history.rows))


def simulate(
    task: Task,
    algorithm: Algorithm,
    timing: Timing | None = None,
    *,
    server_steps: int | None = None,
    uploads: int | None = None,
    virtual_time: float | None = None,
    total_bytes: int | None = None,
    at_target: bool | None = None,
    evaluate_every: int | None = None,
    evaluation_unit: str | None = None,
    target: float | None = None,
    limits: Limits | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 0,
    start_from: StartFrom | StartConfig | None = None,
    out: str | PathLike[str] | RunDirectory | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every_s: float = 30.0,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    check: bool = True,
    pure: bool = True,
    progress: bool = False,
    on_row: Callable[[Row], None] | None = None,
    listeners: Sequence[Listener] = (),
    track: str | Sequence[str] | Track | None = None,
    say: Callable[[str], None] = log.warning,
    recipe: Config | None = None,
) -> Result:
    """Run a method on a task in virtual time, and return the result. `qafel run`, `sweep` and `tune` call it.

    The same arguments and seed give the same bits on every executor. Warns if a quantizer violates the theorem's
    assumptions.

    task                A shipped task (`Mushrooms`, `Quadratic`, `SyntheticLogistic`), a `TorchTask`, or any object
                        with the methods of `Task`.
    algorithm           The method: `method("qafel", client_quantizer="qsgd:4", server_quantizer="qsgd:4")`.
    timing              When clients start and how long they train: `Timing(arrivals="poisson", rate=5.0)`. By default,
                        every client always trains, and durations are half-normal.
    server_steps        Stop after this many server steps, by default 1,000. The first limit that is reached counts.
    uploads             Stop after this many accepted uploads.
    virtual_time        Stop at this virtual time.
    total_bytes         Stop after this many bytes uploaded, broadcast and received by starting clients.
    at_target           Stop at the first evaluation that reaches the target.
    evaluate_every      The number of server steps between two evaluations, by default 1.
    evaluation_unit     "uploads": `evaluate_every` counts uploads instead of server steps.
    target              The metric to reach.
    limits              The five limits as one object: `Limits(uploads=10_000, total_bytes=5_000_000)`.
    evaluation          The three settings of evaluations as one object: `Evaluation(every=10, target=0.01)`.
    seed                Names all random streams of the run, including those of the timing.
    start_from          The initial model: a safetensors file, a vector, or arrays by name. By default, the task's.
    out                 The run directory to write, for `qafel report` and TensorBoard. By default, nothing is written.
    resume              Continue from the checkpoint in `out`, to the bits of an uninterrupted run. A finished run
                        continues if its limits are larger now.
    overwrite           Replace another run, or an incomplete run, in `out`.
    checkpoint_every_s  Seconds between two checkpoints.
    executor            Where clients train: "inline" (here), "processes" (this machine's cores) or "ray" (a cluster).
    workers             How many processes train, by default one per core.
    check               Raise `Diverged` or `Stalled`, with the `result`, if the run ends that way.
    pure                Check at the start that repeated training gives the same bits. False allows a task that keeps
                        state of its clients. Such a run trains inline and cannot resume.
    progress            Show a progress bar on the terminal, or below the notebook's cell.
    on_row              Called with each `Row`. An error that it raises ends the run.
    listeners           Objects that receive every row and the end, as in `qafel.runs.live.Listener`.
    track               Trackers of the run in `out`: "tensorboard", "mlflow", "wandb", several, or "none". By default
                        TensorBoard, if it is installed (docs/report.md).
    say                 Receives warnings: a tracker that fails, a check that is skipped.
    recipe              The configuration of these arguments: `simulate(**load_recipe("…").arguments())`.
    """
    ends = _given(
        server_steps=server_steps,
        uploads=uploads,
        virtual_time=virtual_time,
        total_bytes=total_bytes,
        at_target=at_target,
    )
    often = _given(every=evaluate_every, unit=evaluation_unit, target=target)
    if limits is None and ends.keys() <= {"at_target"}:
        ends["server_steps"] = 1000
    limits, evaluation = _section(Limits, "limits", limits, ends), _section(Evaluation, "evaluation", evaluation, often)
    limits.require_target(evaluation)
    seed = plain_number(seed)
    require(type(seed) is int and -(2**63) <= seed < 2**63, "seed is a whole number of 64 bits", repr(seed))
    timing = Timing() if timing is None else timing
    _require_kinds(task, algorithm, timing)
    _require_together(out, resume, overwrite, executor, pure)
    _require_options(checkpoint_every_s, listeners, say)
    trackers = track_of(track)
    if out is None and track is not None and trackers.names:
        raise ConfigError("track needs a run directory: set out=…")
    require(on_row is None or callable(on_row), "on_row is a function that takes a row", repr(on_row))
    path = out.path if isinstance(out, RunDirectory) else None if out is None else Path(out)
    stated, start = (None, None) if start_from is None else start_of(start_from, task.layout)
    if recipe is not None:
        recipe = recipe.with_task(task)
        settings = settings_of(recipe)
    else:
        for warning in quantizer_warnings(algorithm, task.layout.size):
            warnings.warn(warning, stacklevel=2)
        problem = {
            "name": task.name,
            "clients": task.clients,
            "parameters": task.layout.size,
            "class": path_of(task),
            **({"digest": digest} if (digest := digest_of(task)) else {}),
        }
        settings = _given(
            name=f"{task.name}-{algorithm.name}" if path is None else path.name,
            made_in="python",
            seed=seed,
            task=problem,
            algorithm={"method": algorithm.name, **_describe(algorithm)},
            timing=_describe(timing),
            evaluation=_describe(evaluation),
            stop=_describe(limits),
            start=stated,
        )
    inputs = RunInputs(
        settings=settings,
        task=task,
        make_task=partial(_itself, task) if recipe is None else recipe.task.make,
        algorithm=algorithm,
        timing=timing,
        evaluation=evaluation,
        limits=limits,
        seed=seed,
        start=start,
        pure=pure,
    )
    if isinstance(out, str | PathLike) and not resume and not overwrite:
        _refuse_to_lose_a_run(settings, Path(out))
    rows: list[dict[str, Any]] = []
    keeping = [FunctionListener(lambda row: rows.append(row.to_json()))] if path is None else []
    all_listeners: list[Listener] = [*keeping, *listeners, *([] if on_row is None else [FunctionListener(on_row)])]
    with ExitStack() as stack:
        if progress:
            from qafel.runs.bars import progress_bar  # noqa: PLC0415  (bars load when they are shown)

            all_listeners.append(stack.enter_context(progress_bar(settings["name"], limits, task.metric_name)))
        summary, simulation = execute(
            inputs,
            out if isinstance(out, RunDirectory) else path,
            all_listeners,
            executor=executor,
            workers=workers,
            resume=resume,
            checkpoint_every_s=checkpoint_every_s,
            track=trackers,
            say=say,
        )
    history, server = History(rows) if path is None else History.load(path), simulation.server
    result = Result(summary, history, server.model, server.hidden_state.vector, settings)
    if check and (status := summary["status"]) != "finished":
        failed = (Diverged if status == "diverged" else Stalled)(f"{settings['name']} {status}: {summary['reason']}")
        failed.result = result
        raise failed
    return result


def _given(**settings: Any) -> dict[str, Any]:
    """The settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def _section(kind: type[_Section], name: str, given: Any, settings: Mapping[str, Any]) -> _Section:
    """The section, given as an object or by plain settings, not by both."""
    if given is None:
        return kind(**settings)
    if not isinstance(given, kind) or settings:
        beside = f" beside {next(iter(settings))}" if settings else ""
        raise ConfigError(f"{name} is a {kind.__name__}(…), or its settings are given by name, got {given!r}{beside}")
    return given


def _require_kinds(task: object, algorithm: object, timing: object) -> None:
    """Raise `ConfigError` if an argument of `simulate` has the wrong type."""
    lacking = [name for name in TASK.needs if not hasattr(task, name)]
    if isinstance(task, str | type) or lacking:
        lack = f", which lacks {lacking[0]}" if lacking and not isinstance(task, str | type | None) else ""
        raise ConfigError(f"task is an object such as Mushrooms(), a TorchTask or a custom task, got {task!r}{lack}")
    require(isinstance(algorithm, Algorithm), 'algorithm is a method such as method("qafel")', repr(algorithm))
    require(isinstance(timing, Timing), 'timing is a Timing such as Timing(arrivals="poisson")', repr(timing))


def _require_options(checkpoint_every_s: object, listeners: object, say: object) -> None:
    number = isinstance(checkpoint_every_s, Real) and not isinstance(checkpoint_every_s, bool)
    sound = number and checkpoint_every_s >= 0  # type: ignore[operator]
    require(sound, "checkpoint_every_s is a number of seconds, zero or more", repr(checkpoint_every_s))
    require(isinstance(listeners, Sequence), "listeners is a list of listeners", repr(listeners))
    for listener in listeners:  # type: ignore[attr-defined]
        complete = all(callable(getattr(listener, name, None)) for name in ("on_row", "on_end"))
        require(complete, "a listener has the methods on_row and on_end", repr(listener))
    require(callable(say), "say is a function that takes a text", repr(say))


def _require_together(out: object, resume: bool, overwrite: bool, executor: str, pure: bool) -> None:
    for name, value in {"resume": resume, "overwrite": overwrite, "pure": pure}.items():
        require(isinstance(value, bool), f"{name} is True or False", repr(value))
    is_path = isinstance(out, RunDirectory | str | PathLike) and str(out)
    require(out is None or is_path, "out is the path of a run directory", repr(out))
    if out is None and (resume or overwrite):
        raise ConfigError(f"{'resume' if resume else 'overwrite'} needs the run directory: out=…")
    if not pure and (resume or executor != "inline"):
        found = "resume=True" if resume else f"executor={executor!r}"
        raise ConfigError(f"a run with pure=False trains inline and cannot be resumed; got {found}")


def quantizer_warnings(algorithm: Algorithm, size: int) -> list[str]:
    """One warning per quantizer that violates the theorem's assumptions for a model of this size."""
    found = [] if algorithm.client_rule.corrects_bias else fitness(algorithm.client_quantizer, size, "client")
    if algorithm.downlink.kind is Kind.BROADCAST:
        rate = algorithm.downlink.rate(algorithm.server_quantizer, size)
        found += fitness(algorithm.server_quantizer, size, "server", rate)
    for role, quantizer in algorithm.catch_up.quantizers.items():
        found += fitness(quantizer, size, "link" if role == "link" else "snapshot")
    return found


def _refuse_to_lose_a_run(settings: Mapping[str, Any], out: Path) -> None:
    """Raise `OutputError` if a new run in `out` would lose other results, or an incomplete run.

    A finished run may be repeated: its results are the same.
    """
    refused = {
        "interrupted": "a deployed run:" if (out / "state").is_dir() else "an unfinished run: `resume` it,",
        "damaged": "a damaged run:",
        "other": "a run of another configuration:",
        "other limits": "this run with other limits: `resume` continues it,",
    }
    if (found := refused.get(state_of(out, settings))) is not None:
        raise OutputError(f"{out} holds {found} choose another `out`, or `overwrite` it")


def _describe(value: Any) -> Any:
    """A setting as TOML holds it: a dataclass by its fields, a quantizer by its spec, a custom object by its class."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(spec := getattr(value, "spec", None), str):
        return spec
    if isinstance(value, Section) or (is_dataclass(value) and not isinstance(value, type)):
        names = type(value).model_fields if isinstance(value, Section) else [entry.name for entry in fields(value)]
        parts = {
            name: _describe(part) for name in names if name != "name" and (part := getattr(value, name)) is not None
        }
        return parts if isinstance(value, _TABLES) else {"class": path_of(value), **parts}
    if isinstance(value, list | tuple):
        return f"{len(value)} values, sha256 {hashlib.sha256(repr(list(value)).encode()).hexdigest()[:16]}"
    return described(value)


def _itself(value: _Value) -> _Value:
    """A function that makes a task, from the task."""
    return value
