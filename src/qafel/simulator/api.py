"""`simulate`: a run from Python objects, with or without a run directory; and what came of it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from html import escape
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from qafel import drawing
from qafel.algorithm import Algorithm, Kind, LocalTraining
from qafel.config import Config
from qafel.config.start import StartFrom, start_of
from qafel.config.tasks import TASK
from qafel.drawing.page import table
from qafel.errors import ConfigError, OutputError, whole_number
from qafel.params import Vector
from qafel.quantizers import fitness
from qafel.runs.directory import state_of
from qafel.runs.listeners import Calling, Listener
from qafel.runs.progress import Evaluation, Limits, Progress, Row
from qafel.runs.reading import History, Run, columns_of
from qafel.runs.summary import Summary, figures_of
from qafel.runs.trackers import track_of
from qafel.simulator.executors import ExecutorName, make_executor
from qafel.simulator.run import RunPlan, run_to_end, write_run
from qafel.simulator.timing import Timing
from qafel.tasks.protocol import Task
from qafel.text import described, path_of

if TYPE_CHECKING:
    from qafel.drawing.printed import Plot
    from qafel.simulator.simulation import Simulation

_Value = TypeVar("_Value")
_TABLES = (Algorithm, LocalTraining, Timing, Evaluation, Limits)


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
    timing: Timing,
    *,
    limits: Limits | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 0,
    start_from: StartFrom | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    progress: bool = False,
    on_row: Callable[[Row], None] | None = None,
    listeners: Sequence[Listener] = (),
    track: str | Sequence[str] | None = None,
) -> Result:
    """Run a method on a task in virtual time, and return what came of it.

    The same arguments and seed give the same bits, wherever clients train. Any object that fulfils the protocols will
    do: a task, a quantizer, a staleness law (τ to a weight), durations, or arrivals as an iterable of (time, client).
    What theory holds against the quantizers is a Python warning.

    task        what is learnt: a shipped task (`Mushrooms`, `Quadratic`, `SyntheticLogistic`), a `TorchTask` of your
                own model and data, or any object with the methods of `Task`
    algorithm   the method: `method("qafel", client_quantizer="qsgd:4", server_quantizer="qsgd:4")`
    timing      when clients start and how long they train: `Timing(HalfNormal(seed=0))` has every client start again at
                once; a second argument says otherwise, such as `ConstantRate(…)`, `Poisson(…)` or `Rounds(…)`
    limits      when the run ends, at whichever comes first: `Limits(uploads=10_000, traffic_bytes=5_000_000)`; by
                default after 1,000 server steps
    evaluation  how often the model is measured, and the target: `Evaluation(every=10, target=0.01)`; by default after
                every server step
    seed        names all random streams of the run
    start_from  the model to begin from: a safetensors file, a vector, or arrays by name; by default the task's own
    out         the run directory to write, the same as the command line's, so that `qafel report` and TensorBoard show
                it; nothing is written by default
    resume      go on from the checkpoint in `out`, to the same result as a run that was never interrupted; a finished
                run goes on if its limits are larger now, and is returned as it is if they are the same
    overwrite   replace another run, or half a run, in `out`
    executor    where clients train: "inline" (here), "processes" (on this machine's cores) or "ray" (on a cluster)
    workers     how many processes train; one per core by default
    progress    show a bar on the terminal, or below the notebook's cell
    on_row      called with each `Row` as it is measured; an error raised there breaks the run off
    listeners   objects that hear of every row and of the end, as `qafel.runs.listeners.Listener` says
    track       trackers that show the run in `out`: "tensorboard", "mlflow", "wandb", several, or "none"; by default
                TensorBoard, if it is installed (docs/trackers.md)
    """
    evaluation = Evaluation() if evaluation is None else evaluation
    limits = Limits(server_steps=1000) if limits is None else limits
    _require_kinds(task, algorithm, timing, limits, evaluation)
    seed = _require_seed(seed)
    if out is not None and not (isinstance(out, str | PathLike) and str(out)):
        raise ConfigError(f"out is the path of a run directory; got {out!r}")
    if out is None and (resume or overwrite):
        raise ConfigError(f"{'resume' if resume else 'overwrite'} needs the run directory: out=…")
    trackers = track_of(track)
    if out is None and track is not None and trackers.names:
        raise ConfigError("track needs the run directory, whose files trackers take: out=…")
    if on_row is not None and not callable(on_row):
        raise ConfigError(f"on_row is a function that takes a row; got {on_row!r}")
    for warning in quantizer_warnings(algorithm, task.layout.size):
        warnings.warn(warning, stacklevel=2)
    settings = {
        "name": f"{task.name}-{algorithm.name}" if out is None else Path(out).name,
        "made_in": "python",
        "seed": seed,
        "task": {"name": task.name, "clients": task.clients, "parameters": task.layout.size, "class": path_of(task)},
        "algorithm": {"method": algorithm.name, **_describe(algorithm)},
        "timing": _describe(timing),
        "evaluation": _describe(evaluation),
        "stop": _describe(limits),
    }
    start: Vector | None = None
    if start_from is not None:
        settings["start"], start = start_of(start_from, task.layout)
    plan = RunPlan(
        settings=settings,
        task=task,
        make_task=partial(_itself, task),
        algorithm=algorithm,
        timing=timing,
        evaluation=evaluation,
        limits=limits,
        seed=seed,
        start=None if start is None else partial(_itself, start),
    )
    path = None if out is None else Path(out)
    if path is not None and not resume and not overwrite:
        refuse_to_lose_a_run(settings, path)
    heard = [*listeners, *([] if on_row is None else [Calling(on_row)])]
    with ExitStack() as stack:
        if progress:
            from qafel.runs.bars import shown  # noqa: PLC0415  (bars load when they are shown)

            heard.append(stack.enter_context(shown(settings["name"], limits, task.metric_name)))
        if path is None:
            return _run_in_memory(plan, heard, executor, workers)
        summary, simulation = write_run(
            plan, path, heard, executor=executor, workers=workers, resume=resume, track=trackers
        )
        return _result(plan, summary, History.load(path), simulation)


def _require_kinds(task: object, algorithm: object, timing: object, limits: object, evaluation: object) -> None:
    """Raise `ConfigError` if an argument of `simulate` is not what it should be."""
    lacking = [name for name in TASK.needs if not hasattr(task, name)]
    if isinstance(task, str | type) or lacking:
        lack = f", which has no {lacking[0]}" if lacking and not isinstance(task, str | type | None) else ""
        raise ConfigError(f"task is an object such as Mushrooms(), a TorchTask or your own; got {task!r}{lack}")
    expected = (
        ("algorithm", algorithm, Algorithm, 'method("qafel")'),
        ("timing", timing, Timing, "Timing(HalfNormal(seed=0))"),
        ("limits", limits, Limits, "Limits(uploads=1000)"),
        ("evaluation", evaluation, Evaluation, "Evaluation(every=10)"),
    )
    for name, value, kind, example in expected:
        if not isinstance(value, kind):
            raise ConfigError(f"expected {name}={example}, or the like; got {value!r}")


def _require_seed(seed: object) -> int:
    seed = whole_number(seed)
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**63:
        raise ConfigError(f"seed is a whole number of 64 bits; got {seed!r}")
    return int(seed)


def _run_in_memory(plan: RunPlan, listeners: Sequence[Listener], executor: ExecutorName, workers: int | None) -> Result:
    rows: list[dict[str, Any]] = []
    keeps: Listener = Calling(lambda row: rows.append(row.to_json()))
    progress = Progress(plan.evaluation, plan.task.metric_goal)
    with make_executor(executor, workers, plan.task, plan.make_task, plan.algorithm, plan.seed) as pool:
        simulation = plan.begin(pool)
        summary = run_to_end(simulation, progress, plan.limits, [keeps, *listeners])
    return _result(plan, summary, History(rows), simulation)


def _result(plan: RunPlan, summary: Summary, history: History, simulation: Simulation) -> Result:
    server = simulation.server
    return Result(summary, history, server.model, server.hidden_state.vector, plan.settings)


def quantizer_warnings(algorithm: Algorithm, size: int) -> list[str]:
    """What theory holds against a method's quantizers for a model of this size, a sentence each."""
    found = fitness(algorithm.client_quantizer, size, "client")
    if algorithm.downlink.kind is Kind.BROADCAST:
        rate = algorithm.downlink.rate(algorithm.server_quantizer, size)
        found += fitness(algorithm.server_quantizer, size, "server", rate)
    if algorithm.catch_up.quantizer is not None:
        found += fitness(algorithm.catch_up.quantizer, size, "snapshot")
    return found


def refuse_to_lose_a_run(settings: Config | Mapping[str, Any], out: Path) -> None:
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
    if is_dataclass(value) and not isinstance(value, type):
        named = {entry.name: getattr(value, entry.name) for entry in fields(value) if entry.name != "name"}
        parts = {key: _describe(part) for key, part in named.items() if part is not None}
        return parts if isinstance(value, _TABLES) else {"class": path_of(value), **parts}
    if isinstance(value, Sequence) and all(isinstance(number, int | float) for number in value):
        return f"{len(value)} numbers, sha256 {hashlib.sha256(repr(list(value)).encode()).hexdigest()[:16]}"
    return described(value)


def _itself(value: _Value) -> _Value:
    """A task or a model again, where a function that makes it is asked for."""
    return value
