"""`qafel plan`: quantizers and K for a budget or a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from qafel.cli import advanced
from qafel.cli.console import JsonOption, RecipeName, SetOption, SweepProgress, console, print_json
from qafel.config import load_recipe
from qafel.errors import UserError
from qafel.files import write_atomically
from qafel.search.plan_text import caveats, column, plan_json, reasons, theory
from qafel.search.planning import (
    BudgetPlan,
    Candidates,
    Counted,
    PlanRequest,
    Prediction,
    default_candidates,
    for_thin_downlinks,
    make_plan,
)
from qafel.search.runner import RunSpec, make_runs
from qafel.text import human_bytes, human_count, read_bytes, read_seconds
from qafel.workers import worker_count


def plan(
    recipe: RecipeName,
    byte_budget: Annotated[str | None, typer.Option(help="Bytes to spend at most, for example 200MB.")] = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Training time at most, for example 90min; it is the recipe's clock.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="The metric to reach; by default the recipe's target.")] = None,
    count: Annotated[
        Counted, typer.Option(help="The bytes that count: uploads and broadcasts, or uploads and downloads.")
    ] = "sent",
    most_uploads: Annotated[
        float, typer.Option(min=1, help="Accept at most this many times the uploads of FedBuff.")
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
    pilot_uploads: Annotated[int, typer.Option(min=320, help="Uploads of the longest test runs.")] = 20_000,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the recommendation as a recipe for `qafel run`.")] = None,
    json_output: JsonOption = False,
    seeds: Annotated[int, advanced(min=2, help="Test runs of each finalist.")] = 3,
    seed: Annotated[int, advanced(help="The first seed of the test runs.")] = 100,
    folder: Annotated[Path, advanced(help="The folder of the test runs; finished ones are used again.")] = Path("plan"),
    workers: Annotated[int | None, advanced(min=1, help="Worker processes; by default one per core.")] = None,
    with_theory: Annotated[bool, advanced("--theory", help="Show the step sizes that Theorem 3.1 admits.")] = False,
    quiet: Annotated[bool, advanced("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Recommend quantizers and K for a budget or a target, by a race of short simulations.

    The plan keeps the recipe's step sizes. It says if the simulations did not reach the target.

    Example: qafel plan mushrooms-qafel-4bit --byte-budget 5MB --out plan.toml
    """
    config = load_recipe(recipe, settings or ())
    task = config.task.make()
    config = for_thin_downlinks(config, task.layout) if count == "received" else config
    base = default_candidates(config, task.layout)
    candidates = Candidates(
        client_quantizer or base.clients, server_quantizer or base.servers, buffer_size or base.buffers
    )
    request = PlanRequest(
        config=config,
        candidates=candidates,
        target=config.evaluation.target if target is None else target,
        budget_bytes=None if byte_budget is None else read_bytes(byte_budget, "--byte-budget"),
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
        text = f"# Planned by `qafel plan {config.name}`: {made.recommended.pair}.\n{made.recipe().to_toml()}"
        write_atomically(out, text.encode(), make_folder=True)
    said = [theory(config, task, made.recommended)] if with_theory else []
    if json_output:
        print_json(plan_json(made) | ({"theory": said} if said else {}))
        return
    _show(made, said)
    if out is not None:
        console.print(f"To run it: qafel run {out}", highlight=False, markup=False, soft_wrap=True)


def _show(made: BudgetPlan, theory: list[str]) -> None:
    request = made.request
    for caveat in caveats(made):
        console.print(f"[yellow]note:[/] {caveat}", highlight=False)
    counted = "up and broadcast" if request.counted == "sent" else "up and received"
    aims = [] if request.target is None else [f"target {request.target:g}"]
    aims += [] if request.budget_bytes is None else [f"{human_bytes(request.budget_bytes)} {counted}"]
    aims += [] if request.budget_s is None else [f"{request.budget_s:g} of the recipe's clock"]
    console.print(f"{request.config.name}: {', '.join(aims)}", highlight=False)
    _print_table({"recommended": made.recommended, "FedBuff": made.fedbuff})
    for reason in (*reasons(made), *theory):
        console.print(f"• {reason}", highlight=False)
    for it in made.others:
        figures = f"{human_count(it.run_uploads)} uploads, {human_bytes(it.spent.bytes_of(request.counted))}"
        console.print(f"next: {it.pair}: {figures}", style="dim", highlight=False)


def _print_table(predictions: dict[str, Prediction]) -> None:
    columns = (Column(name, no_wrap=True) for name in ("", *predictions))
    table = Table(*columns, box=None, header_style="bold", padding=(0, 2, 0, 0))
    shown = [column(it) for it in predictions.values()]
    for name in dict.fromkeys(name for it in shown for name in it):
        table.add_row(f"[bold]{name}[/]", *(it.get(name, "") for it in shown))
    console.print(table)
