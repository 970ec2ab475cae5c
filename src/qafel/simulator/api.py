"""`simulate`: a run from Python objects, with or without a run directory; and what came of it."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from html import escape
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
from qafel.runs.progress import Row
from qafel.runs.reading import History, Run, columns_of
from qafel.runs.summary import FunctionListener, Listener, Summary, figures_of
from qafel.runs.trackers import Track, track_of
from qafel.simulator.executors import ExecutorName
from qafel.simulator.run import RunPlan, run_plan
from qafel.tasks.protocol import Task
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
    """What came of a run; a notebook shows its figures and a plot.

    summary        the figures, as summary.json has them
    history        the evaluations, as columns by name
    model          the server's model x, a flat vector
    hidden_state   x̂, what clients would start from
    settings       what was run, as config.toml says it
    """

    summary: Summary
    history: History
    model: Vector
    hidden_state: Vector
    settings: Mapping[str, Any]

    def plot(self, *others: Result) -> Plot:
        """The metric by server steps and by bytes, of this run and of `others` beside it.

        A notebook shows what is returned; `.save("plot.png")` writes it, and `.figure` is the matplotlib figure.
        """
        from qafel.report import comparison_figure  # noqa: PLC0415  (what draws loads when it is used)

        return drawing.printed.Plot(comparison_figure([result._as_run() for result in (self, *others)]))

    def to_pandas(self) -> Any:
        """The history as a pandas DataFrame, a row for each evaluation; it needs the extra `pandas`."""
        return self.history.to_pandas()

    def __repr__(self) -> str:
        lines = (f"    {name:12}  {figure}" for name, figure in figures_of(self.summary)[:6])
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
    traffic_bytes: int | None = None,
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
    """Run a method on a task in virtual time, and return the result. `qafel run`, `sweep` and `tune` call it, too.

    The same arguments and seed give the same bits, wherever clients train. Warns if a quantizer violates the theorem's
    assumptions.

    task               a shipped task (`Mushrooms`, `Quadratic`, `SyntheticLogistic`), a `TorchTask` of your own model
                       and data, or any object with the methods of `Task`
    algorithm          the method: `method("qafel", client_quantizer="qsgd:4", server_quantizer="qsgd:4")`
    timing             when clients start and how long they train: `Timing(arrivals="poisson", rate=5.0)`. By default
                       every client trains all the time, and durations are half-normal
    server_steps       the run ends after so many server steps, or at another limit that comes first; by default 1,000
    uploads            it ends after so many uploads that count
    virtual_time       it ends at this time of its clock
    traffic_bytes      it ends after so many bytes uploaded plus bytes broadcast
    at_target          it ends at the first evaluation that reaches the target
    evaluate_every     how many server steps lie between two evaluations of the model; by default 1
    evaluation_unit    "uploads" counts uploads instead of server steps
    target             the metric that counts as reached
    limits             the five limits as one object: `Limits(uploads=10_000, traffic_bytes=5_000_000)`
    evaluation         the three settings of the evaluation as one object: `Evaluation(every=10, target=0.01)`
    seed               names all random streams of the run, those of the timing included
    start_from         the model to begin from: a safetensors file, a vector, or arrays by name; by default the task's
    out                the run directory to write, as the command line does: `qafel report` and TensorBoard show it.
                       By default nothing is written
    resume             continue from the checkpoint in `out`, to the same result as a run that was never interrupted; a
                       finished run continues if its limits are larger now, and is returned if they are the same
    overwrite          replace another run, or half a run, in `out`
    checkpoint_every_s  seconds between two checkpoints
    executor           where clients train: "inline" (here), "processes" (this machine's cores) or "ray" (a cluster)
    workers            how many processes train; one per core by default
    check              raise `Diverged` or `Stalled`, with the `result`, if the run ends so; False returns the result
    pure               check at the start that training gives the same bits again. False allows a task that keeps state
                       of its clients; it trains inline and cannot be resumed
    progress           show a bar on the terminal, or below the notebook's cell
    on_row             called with each `Row` as it is measured; an error raised there ends the run
    listeners          objects that hear of every row and of the end, as `qafel.runs.summary.Listener` says
    track              trackers that show the run in `out`: "tensorboard", "mlflow", "wandb", several, or "none"; by
                       default TensorBoard, if it is installed (docs/trackers.md)
    say                told of a tracker that fails, or a check that is skipped; the run goes on
    recipe             the configuration that these arguments are of: `simulate(**load_recipe("…").arguments())`
    """
    ends = _given(
        server_steps=server_steps,
        uploads=uploads,
        virtual_time=virtual_time,
        traffic_bytes=traffic_bytes,
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
    trackers = track_of(track)
    if out is None and track is not None and trackers.names:
        raise ConfigError("track needs the run directory, whose files trackers take: out=…")
    require(on_row is None or callable(on_row), "on_row is a function that takes a row", repr(on_row))
    path = out.path if isinstance(out, RunDirectory) else None if out is None else Path(out)
    stated, start = (None, None) if start_from is None else start_of(start_from, task.layout)
    if recipe is not None:
        settings = settings_of(recipe)
    else:
        for warning in quantizer_warnings(algorithm, task.layout.size):
            warnings.warn(warning, stacklevel=2)
        own = {"name": task.name, "clients": task.clients, "parameters": task.layout.size, "class": path_of(task)}
        settings = _given(
            name=f"{task.name}-{algorithm.name}" if path is None else path.name,
            made_in="python",
            seed=seed,
            task=own,
            algorithm={"method": algorithm.name, **_describe(algorithm)},
            timing=_describe(timing),
            evaluation=_describe(evaluation),
            stop=_describe(limits),
            start=stated,
        )
    plan = RunPlan(
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
    heard: list[Listener] = [*keeping, *listeners, *([] if on_row is None else [FunctionListener(on_row)])]
    with ExitStack() as stack:
        if progress:
            from qafel.runs.bars import progress_bar  # noqa: PLC0415  (bars load when they are shown)

            heard.append(stack.enter_context(progress_bar(settings["name"], limits, task.metric_name)))
        summary, simulation = run_plan(
            plan,
            out if isinstance(out, RunDirectory) else path,
            heard,
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
    """The settings that are given: those that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def _section(kind: type[_Section], name: str, given: Any, settings: Mapping[str, Any]) -> _Section:
    """The section that is given as an object, or by plain settings, not by both."""
    if given is None:
        return kind(**settings)
    if not isinstance(given, kind) or settings:
        beside = f" beside {next(iter(settings))}" if settings else ""
        raise ConfigError(f"{name} is a {kind.__name__}(…), or its settings are given by name; got {given!r}{beside}")
    return given


def _require_kinds(task: object, algorithm: object, timing: object) -> None:
    """Raise `ConfigError` if an argument of `simulate` is not what it should be."""
    lacking = [name for name in TASK.needs if not hasattr(task, name)]
    if isinstance(task, str | type) or lacking:
        lack = f", which has no {lacking[0]}" if lacking and not isinstance(task, str | type | None) else ""
        raise ConfigError(f"task is an object such as Mushrooms(), a TorchTask or your own; got {task!r}{lack}")
    require(isinstance(algorithm, Algorithm), 'algorithm is a method such as method("qafel")', repr(algorithm))
    require(isinstance(timing, Timing), 'timing is a Timing such as Timing(arrivals="poisson")', repr(timing))


def _require_together(out: object, resume: bool, overwrite: bool, executor: str, pure: bool) -> None:
    is_path = isinstance(out, RunDirectory | str | PathLike) and str(out)
    require(out is None or is_path, "out is the path of a run directory", repr(out))
    if out is None and (resume or overwrite):
        raise ConfigError(f"{'resume' if resume else 'overwrite'} needs the run directory: out=…")
    if not pure and (resume or executor != "inline"):
        found = "resume=True" if resume else f"executor={executor!r}"
        raise ConfigError(f"a run with pure=False trains inline and cannot be resumed; got {found}")


def quantizer_warnings(algorithm: Algorithm, size: int) -> list[str]:
    """What theory holds against a method's quantizers for a model of this size, a sentence each."""
    found = [] if algorithm.client_rule.corrects_bias else fitness(algorithm.client_quantizer, size, "client")
    if algorithm.downlink.kind is Kind.BROADCAST:
        rate = algorithm.downlink.rate(algorithm.server_quantizer, size)
        found += fitness(algorithm.server_quantizer, size, "server", rate)
    if algorithm.catch_up.quantizer is not None:
        found += fitness(algorithm.catch_up.quantizer, size, "snapshot")
    return found


def _refuse_to_lose_a_run(settings: Mapping[str, Any], out: Path) -> None:
    """Raise `OutputError` if a new run of these settings in `out` would lose results of another one, or half a run.

    A finished run may be made again: its results are the same.
    """
    refused = {
        "interrupted": "a deployed run:" if (out / "state").is_dir() else "an unfinished run: `resume` it,",
        "damaged": "a damaged run:",
        "other": "a run of another configuration:",
        "other limits": "this run with other limits: `resume` goes on with it,",
    }
    if (found := refused.get(state_of(out, settings))) is not None:
        raise OutputError(f"{out} holds {found} choose another `out`, or `overwrite` it")


def _describe(value: Any) -> Any:
    """A setting as TOML can hold it: fields of a dataclass by name, a quantizer's spec, an own object's class."""
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
    """A task or a model again, where a function that makes it is asked for."""
    return value
