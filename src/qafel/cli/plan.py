"""`qafel plan`: which bits and K a budget is best spent on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from qafel.cli.console import JsonOption, QuietOption, SetOption, SweepProgress, console, print_json
from qafel.config import Config, load_recipe
from qafel.errors import ConfigError, UserError
from qafel.files import write_atomically
from qafel.search.planning import (
    Candidates,
    DurationLaw,
    Fleet,
    Plan,
    PlanRequest,
    Prediction,
    caveats,
    checked_candidates,
    column,
    default_candidates,
    make_plan,
    plan_json,
    reasons,
)
from qafel.search.planning.explain import prediction_json, theory
from qafel.search.planning.pilot import require_plannable
from qafel.search.planning.plan import Counted, default_specs, for_thin_downlinks, predict_from_figures
from qafel.search.runner import RunSpec, make_runs, unfinished
from qafel.text import human_bytes, human_count, read_bytes, read_seconds
from qafel.workers import worker_count

_RECIPE, _FIGURES = "With a recipe", "Without a recipe"


def plan(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A recipe's name (`qafel recipes`) or a TOML file.")
    ] = None,
    byte_budget: Annotated[str | None, typer.Option(help="For what --count says: 200MB.")] = None,
    time_budget: Annotated[str | None, typer.Option(help="For the training: 3600, 90min, 12h, 2d.")] = None,
    target: Annotated[float | None, typer.Option(help="The metric to reach; the recipe's own by default.")] = None,
    count: Annotated[
        Counted, typer.Option(help="Count bytes sent (up, and each broadcast once) or received (up, and downloaded).")
    ] = "sent",
    most_uploads: Annotated[float, typer.Option(min=1, help="At most so many times FedBuff's uploads.")] = 2.0,
    client_quantizer: Annotated[
        list[str] | None, typer.Option(help="A client quantizer to consider; can be repeated; by default trellis.")
    ] = None,
    server_quantizer: Annotated[
        list[str] | None, typer.Option(help="A server quantizer to consider; can be repeated; by default trellis.")
    ] = None,
    buffer_size: Annotated[
        list[int] | None, typer.Option(min=1, help="A K to consider; can be repeated; by default 1, 2, 4 times it.")
    ] = None,
    settings: SetOption = None,
    pilot_uploads: Annotated[
        int, typer.Option(min=200, help="Uploads of each run of the pilot.", rich_help_panel=_RECIPE)
    ] = 20_000,
    checks: Annotated[
        int, typer.Option(min=0, help="How many of the best are checked by a run.", rich_help_panel=_RECIPE)
    ] = 2,
    seed: Annotated[int, typer.Option(help="The seed of pilot and checks.", rich_help_panel=_RECIPE)] = 100,
    folder: Annotated[
        Path, typer.Option(help="The pilot's run directories; finished ones serve again.", rich_help_panel=_RECIPE)
    ] = Path("plan"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; one per core by default.", rich_help_panel=_RECIPE)
    ] = None,
    with_theory: Annotated[
        bool, typer.Option("--theory", help="Say which step sizes Theorem 3.1 admits.", rich_help_panel=_RECIPE)
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the plan as a recipe that `qafel run` takes.", rich_help_panel=_RECIPE)
    ] = None,
    size: Annotated[
        int | None, typer.Option("--size", "-d", min=1, help="Parameters.", rich_help_panel=_FIGURES)
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients.", rich_help_panel=_FIGURES)] = None,
    uploads: Annotated[
        float | None, typer.Option(min=1, help="Uploads that FedBuff takes.", rich_help_panel=_FIGURES)
    ] = None,
    client_cost: Annotated[
        float | None,
        typer.Option(
            min=0, help="The share of progress that ω = 1 takes, from an earlier plan.", rich_help_panel=_FIGURES
        ),
    ] = None,
    server_cost: Annotated[
        float | None,
        typer.Option(min=0, help="The same for the server's q/(1 − q) = 1.", rich_help_panel=_FIGURES),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(help="Time per update: seconds, or half-normal:1, log-normal:1,0.5.", rich_help_panel=_FIGURES),
    ] = None,
    upload_rate: Annotated[
        str | None, typer.Option(help="Bytes a second that a client uploads: 1Mbit.", rich_help_panel=_FIGURES)
    ] = None,
    download_rate: Annotated[
        str | None, typer.Option(help="Bytes a second that it downloads.", rich_help_panel=_FIGURES)
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="The latency of a message: 50ms.", rich_help_panel=_FIGURES)
    ] = None,
    arrival_rate: Annotated[
        float | None, typer.Option(help="Clients that start a second; else all train.", rich_help_panel=_FIGURES)
    ] = None,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Recommend quantizers and K for a budget or a target, from a short pilot of the recipe's own task.

    The pilot runs the recipe without quantizers, with rough ones, and with a large K; the best pairs are checked by
    runs of the same length. Step sizes stay the recipe's. Without a recipe, bytes and time follow from figures.

    Example: qafel plan mushrooms-qafel-4bit --byte-budget 5MB --out plan.toml
    """
    for_figures: dict[str, Any] = {
        "--size": size, "--clients": clients, "--uploads": uploads, "--client-cost": client_cost,
        "--server-cost": server_cost, "--duration": duration, "--upload-rate": upload_rate,
        "--download-rate": download_rate, "--latency": latency, "--arrival-rate": arrival_rate,
    }  # fmt: skip
    if recipe is None:
        for_recipe = {"--byte-budget": byte_budget, "--time-budget": time_budget, "--target": target, "--out": out}
        _refuse_given({**for_recipe, "--set": settings or None}, "needs a RECIPE to plan for")
        _from_figures(for_figures, client_quantizer, server_quantizer, buffer_size, most_uploads, json_output)
        return
    _refuse_given(for_figures, "is for a plan without a recipe; change the recipe with --set instead")
    config = load_recipe(recipe, settings or ())
    require_plannable(config)
    layout = config.task.make().layout
    config = for_thin_downlinks(config, layout) if count == "received" else config
    base = default_candidates(config, layout)
    asked = Candidates(client_quantizer or base.clients, server_quantizer or base.servers, buffer_size or base.buffers)
    request = PlanRequest(
        config=config,
        candidates=checked_candidates(asked, layout),
        target=config.evaluation.target if target is None else target,
        budget_bytes=None if byte_budget is None else read_bytes(byte_budget, "--byte-budget"),
        budget_s=None if time_budget is None else read_seconds(time_budget, "--time-budget"),
        counted=count,
        most_uploads=most_uploads,
        pilot_uploads=pilot_uploads,
        checks=checks,
        seed=seed,
    )
    made = make_plan(request, folder, lambda runs: _make(runs, folder, workers, quiet))
    if out is not None:
        write_atomically(out, _recipe_text(made).encode(), make_folder=True)
    said = theory(config, made.recommended) if with_theory else []
    if json_output:
        print_json(plan_json(made) | ({"theory": said} if said else {}))
    else:
        _show(made, said)
        if out is not None:
            console.print(f"the plan as a recipe: qafel run {out}", highlight=False, markup=False, soft_wrap=True)


def _refuse_given(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} {why}")


def _make(runs: Sequence[RunSpec], folder: Path, workers: int | None, quiet: bool) -> None:
    with SweepProgress(runs, unfinished(runs, folder), quiet) as progress:
        failed = make_runs(runs, folder, progress, workers=worker_count(workers))
    if failed:
        name, reason = next(iter(failed.items()))
        raise UserError(f"the run {folder / name} failed: {reason}")


def _recipe_text(made: Plan) -> str:
    config: Config = made.recipe()
    return f"# RunSpec by `qafel plan {made.request.config.name}`: {made.recommended.pair}.\n{config.to_toml()}"


def _show(made: Plan, said: list[str]) -> None:
    request = made.request
    for caveat in caveats(made):
        console.print(f"[yellow]note:[/] {caveat}", highlight=False)
    counted = "up and broadcast" if request.counted == "sent" else "up and received"
    aims = [] if request.target is None else [f"target {request.target:g}"]
    aims += [] if request.budget_bytes is None else [f"{human_bytes(request.budget_bytes)} {counted}"]
    aims += [] if request.budget_s is None else [f"{request.budget_s:g} of the recipe's clock"]
    console.print(f"{request.config.name}: {', '.join(aims)}", highlight=False)
    _print_table({"recommended": made.recommended, "FedBuff": made.fedbuff})
    for reason in reasons(made):
        console.print(f"• {reason}", highlight=False)
    for it in made.others:
        uploads = human_count(it.uploads.middle)
        line = f"{it.pair}: {uploads} uploads, {human_bytes(it.bytes_of(request.counted))}"
        console.print(f"next: {line}", style="dim", highlight=False)
    for line in said:
        console.print(f"• {line}", highlight=False)


def _print_table(predictions: dict[str, Prediction]) -> None:
    columns = (Column(name, no_wrap=True) for name in ("", *predictions))
    table = Table(*columns, box=None, header_style="bold", padding=(0, 2, 0, 0))
    shown = [column(it) for it in predictions.values()]
    for name in shown[0]:
        if any(it[name] != "NaN" for it in shown):
            table.add_row(f"[bold]{name}[/]", *(it[name] for it in shown))
    console.print(table)


def _from_figures(
    given: dict[str, Any],
    client_specs: list[str] | None,
    server_specs: list[str] | None,
    buffers: list[int] | None,
    most_uploads: float,
    json_output: bool,
) -> None:
    size, clients, uploads = (given[name] for name in ("--size", "--clients", "--uploads"))
    if None in (size, clients, uploads):
        raise ConfigError(
            "nothing can be predicted without a measurement: name a RECIPE for a pilot of its task, or give --size, "
            "--clients and --uploads (what FedBuff takes)"
        )
    for name in ("--uploads", "--client-cost", "--server-cost"):
        if given[name] is not None and not math.isfinite(given[name]):
            raise ConfigError(f"{name} takes a finite number, got {given[name]}")
    costs = {name: given[f"--{name}-cost"] for name in ("client", "server") if given[f"--{name}-cost"] is not None}
    rates = {
        name: None if given[option] is None else read_bytes(given[option], option)
        for name, option in (("upload_rate", "--upload-rate"), ("download_rate", "--download-rate"))
    }
    fleet = Fleet(
        clients=clients,
        durations=DurationLaw.parse(given["--duration"] or "half-normal:1"),
        latency=read_seconds(given["--latency"] or "0", "--latency"),
        arrival_rate=given["--arrival-rate"],
        **rates,
    )
    up, down = default_specs(size)
    candidates = Candidates(client_specs or up, server_specs or down, buffers or [10])
    fedbuff, *found = predict_from_figures(size, fleet, candidates, uploads, costs, most_uploads)
    unknown = [name for name in ("client", "server") if name not in costs]
    note = (
        f"nothing is known of what the {' and the '.join(unknown)}'s quantizer costs in uploads on this problem: "
        "here it costs none, so take these bytes as a lower limit; a RECIPE would be measured"
    )
    if json_output:
        listed: dict[str, Any] = {"caveats": [note] if unknown else [], "recommended": prediction_json(found[0])}
        listed |= {"fedbuff": prediction_json(fedbuff), "others": [prediction_json(it) for it in found[1:]]}
        print_json(listed)
        return
    if unknown:
        console.print(f"[yellow]note:[/] {note}", highlight=False)
    _print_table({"recommended" if costs else "fewest bytes": found[0], "FedBuff": fedbuff})
