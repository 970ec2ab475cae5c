"""`qafel plan` and `qafel tune`: recommended quantizers, K and step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, final

import typer
from rich.progress import TextColumn, TimeElapsedColumn

from qafel import drawing
from qafel.cli import advanced
from qafel.cli.console import (
    JsonOption,
    LiveBars,
    QuietOption,
    RecipeName,
    SetOption,
    StartOption,
    SweepProgress,
    WorkersOption,
    console,
    errors,
    figures_table,
    print_json,
    print_paths,
    print_plain,
    warn,
    with_start,
)
from qafel.cli.run import warn_of_unfit_quantizers
from qafel.config import load_recipe
from qafel.errors import ConfigError, UserError
from qafel.files import write_atomically
from qafel.runs.bars import bar_column, has_room
from qafel.runs.progress import Row
from qafel.search.page import best_trials, failures, lead_sentence, search_json, short, write_results
from qafel.search.planning import (
    BudgetPlan,
    Candidates,
    Counted,
    PlanRequest,
    caveats,
    column,
    default_candidates,
    make_plan,
    plan_json,
    reasons,
    theory,
    with_catch_up,
)
from qafel.search.runner import RunSpec, make_runs
from qafel.search.space import parse_search, uneven
from qafel.search.trials import ObjectiveName, SearchProgress
from qafel.simulator.executors import ExecutorName
from qafel.text import counted, human_bytes, human_count, read_bytes, read_seconds
from qafel.workers import worker_count

SHOWN = 8

TargetOption = Annotated[float | None, typer.Option(help="The metric to reach; by default the recipe's target.")]


def plan(
    recipe: RecipeName,
    byte_budget: Annotated[str | None, typer.Option(help="Bytes to spend at most, for example 200MB.")] = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Time to train at most, for example 90min, in the recipe's virtual time.")
    ] = None,
    client_budget: Annotated[
        str | None,
        typer.Option(
            help="Bytes that a client may send and receive on average, for example 30MB. Implies --count received."
        ),
    ] = None,
    target: TargetOption = None,
    count: Annotated[
        Counted,
        typer.Option(help="The bytes that count: all, or uploads with broadcasts (sent) or downloads (received)."),
    ] = "total",
    most_uploads: Annotated[
        float, advanced(min=1, help="Accept at most this many times the uploads of FedBuff.")
    ] = 2.0,
    client_quantizer: Annotated[
        list[str] | None, typer.Option(help="A client quantizer to try; repeat the option for more.")
    ] = None,
    server_quantizer: Annotated[
        list[str] | None, typer.Option(help="A server quantizer to try; repeat the option for more.")
    ] = None,
    buffer_size: Annotated[
        list[int] | None, typer.Option(min=1, help="A buffer size K to try; repeat the option for more.")
    ] = None,
    pilot_uploads: Annotated[int, advanced(min=320, help="Uploads of the longest test runs.")] = 20_000,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the recommendation as a recipe for `qafel run`.")] = None,
    json_output: JsonOption = False,
    seeds: Annotated[int, advanced(min=2, help="Test runs of each finalist.")] = 3,
    seed: Annotated[int, advanced(help="The first seed of the test runs.")] = 100,
    folder: Annotated[Path, advanced(help="The folder of the test runs; finished ones are used again.")] = Path("plan"),
    workers: WorkersOption = None,
    with_theory: Annotated[bool, advanced("--theory", help="Show the step sizes that Theorem 3.1 admits.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Recommend quantizers and K for a budget or a target, by a race of short simulations.

    The plan keeps the recipe's step sizes. It says if the simulations did not reach the target.

    Example: qafel plan mushrooms-qafel-4bit --byte-budget 5MB --out plan.toml
    """
    if byte_budget is not None and client_budget is not None:
        raise ConfigError("--byte-budget is for all clients, --client-budget for each. Give one of them.")
    config = load_recipe(recipe, settings or ())
    task = config.task.make()
    budget_bytes = None if byte_budget is None else read_bytes(byte_budget, "--byte-budget")
    if client_budget is not None:
        count, budget_bytes = "received", task.clients * read_bytes(client_budget, "--client-budget")
    config = with_catch_up(config, count, task.layout)
    base = default_candidates(config, task.layout)
    candidates = Candidates(
        client_quantizer or base.clients, server_quantizer or base.servers, buffer_size or base.buffers
    )
    request = PlanRequest(
        config=config,
        candidates=candidates,
        target=config.evaluation.target if target is None else target,
        budget_bytes=budget_bytes,
        budget_s=None if time_budget is None else read_seconds(time_budget, "--time-budget"),
        counted=count,
        most_uploads=most_uploads,
        pilot_uploads=pilot_uploads,
        seeds=seeds,
        seed=seed,
    )
    candidates.require_fit(task.layout)

    def make(runs: Sequence[RunSpec]) -> None:
        with SweepProgress(runs, runs, quiet) as progress:
            failed = make_runs(runs, folder, progress, workers=worker_count(workers), task=task)
        for name, reason in failed.items():
            raise UserError(f"The run {folder / name} failed: {reason}")

    made = make_plan(request, folder, make)
    if out is not None:
        text = f"# Planned by `qafel plan`: {made.recommended.pair}.\n{made.recipe().to_toml()}"
        write_atomically(out, text.encode(), make_folder=True)
    said = [theory(config, task, made.recommended)] if with_theory else []
    if json_output:
        print_json(plan_json(made) | ({"theory": said} if said else {}))
        return
    _show_plan(made, said, task.clients)
    if out is not None:
        print_plain(f"To run it: qafel run {out}")


def _show_plan(made: BudgetPlan, theory: list[str], clients: int) -> None:
    request, best = made.request, made.recommended
    for caveat in caveats(made):
        console.print(f"[yellow]note:[/] {caveat}", highlight=False)
    counted = {"total": "in total", "sent": "up and broadcast", "received": "up and received"}[request.counted]
    aims = [] if request.target is None else [f"target {request.target:g}"]
    aims += [] if request.budget_bytes is None else [f"{human_bytes(request.budget_bytes)} {counted}"]
    aims += [] if request.budget_s is None else [f"{request.budget_s:g} of the recipe's clock"]
    console.print(f"{request.config.name}: {', '.join(aims)}", highlight=False)
    shown = [column(it, clients) for it in (best, made.fedbuff)]
    rows = ([f"[bold]{name}[/]", *(it.get(name, "") for it in shown)] for name in {**shown[0], **shown[1]})
    console.print(figures_table("", "", "recommended", "FedBuff", rows=rows, words=3))
    for reason in (*reasons(made), *theory):
        console.print(f"• {reason}", highlight=False)
    for it in made.others:
        figures = f"{human_count(it.run_uploads)} uploads, {human_bytes(it.spent.bytes_of(request.counted))}"
        console.print(f"next: {it.pair}: {figures}", style="dim", highlight=False)


def tune(
    recipe: RecipeName,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="A.B=SPEC", help="A setting to search, as low:high, low:high:log or a,b,c; repeatable."),
    ] = None,
    objective: Annotated[
        ObjectiveName,
        typer.Option(
            metavar="COST",
            help="The cost to minimise: uploads, total-bytes, upload-bytes, broadcast-bytes, received-bytes, "
            "virtual-time or metric.",
        ),
    ] = "uploads",
    target: TargetOption = None,
    trials: Annotated[int, typer.Option(min=1, help="The number of trials, with those in the folder.")] = 30,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each trial; their mean counts.")] = 1,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="The folder for results; by default tune/NAME.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials that run in parallel.")] = 1,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
    seconds: Annotated[float | None, advanced(min=0, help="Start no trial after this many seconds.")] = None,
    check: Annotated[int, advanced(min=0, help="New seeds on which the best trials run again at the end.")] = 5,
    start_from: StartOption = None,
    seed: Annotated[int | None, advanced(help="The seed of the search, and the first seed of the runs.")] = None,
    executor: Annotated[ExecutorName, advanced(help="Where the clients of a trial train.")] = "inline",
) -> None:
    """Search settings, by default learning rates, for the least cost of reaching a target. Resumes if it was stopped.

    Example: qafel tune mushrooms-qafel-4bit --target 0.01 --trials 40 --set stop.server_steps=2000
    """
    from qafel.search import tune as search_for  # noqa: PLC0415  (needs Optuna, an optional extra)

    drawing.require_drawing()
    config = load_recipe(recipe, with_start(settings, start_from), seed)
    space = parse_search(search or (), config)
    if (warning := uneven(config, space)) is not None:
        warn(warning)
    with _TuneProgress(config.name, trials, quiet) as progress:
        tuning = search_for(
            config,
            space,
            objective=objective,
            target=target,
            trials=trials,
            seconds=seconds,
            seeds=seeds,
            check=check,
            out=out,
            workers=workers,
            executor=executor,
            watch=progress.update,
            progress=progress.row,
            save=write_results,
        )
    if json_output:
        print_json(search_json(tuning))
    else:
        head, rows = best_trials(tuning, SHOWN)
        table = figures_table("", *head, rows=rows, words=0)
        table.columns[-1].justify = "left"
        console.print(table)
        for sentence in (*failures(tuning), lead_sentence(tuning)):
            console.print(sentence, highlight=False, markup=False)
        recipe_file = None if tuning.best is None else tuning.out / "best.toml"
        print_paths(recipe=recipe_file, trials=tuning.out / "trials.csv", page=tuning.out / "index.html")
    if (best := tuning.tuned) is None:
        raise typer.Exit(1)
    if tuning.layout is not None and any("quantizer" in path for path in tuning.search):
        warn_of_unfit_quantizers(best.algorithm.compose(tuning.layout), tuning.layout.size)


@final
class _TuneProgress(LiveBars):
    """A bar with the number of finished trials, the best one, and the trial that runs."""

    def __init__(self, name: str, trials: int, quiet: bool) -> None:
        super().__init__(
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            bar_column(errors),
            TextColumn("{task.fields[best]}"),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[row]}"),
            TimeElapsedColumn(),
            quiet=quiet,
        )
        self._bar = self.bars.add_task(name, total=trials, best="", row="")
        self._shown_s = 0.0

    def update(self, now: SearchProgress) -> None:
        wide = has_room(self.bars.console)
        settings = ", ".join(f"{short(path)} {value}" for path, value in now.trial.settings.items()) if wide else ""
        best = "" if now.best is None else f"best {now.objective.text(now.best.score)} (trial {now.best.number}) ·"
        what = f"{'checking ' if now.checking else ''}trial {now.trial.number}"
        self.bars.update(self._bar, completed=now.done, best=best, description=f"{what}: {settings}" if wide else what)

    def __exit__(self, *error: object) -> None:
        if not any(error):  # a search may end early
            self.bars.update(self._bar, total=self.bars.tasks[0].completed)
        super().__exit__(*error)

    def row(self, row: Row) -> None:
        if abs(row.wall_s - self._shown_s) > 0.1:
            self._shown_s = row.wall_s
            self.bars.update(self._bar, row=f"· {counted(row.uploads, 'upload')}, metric {row.metric:.3g}")
