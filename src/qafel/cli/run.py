"""`qafel run`: one recipe, one run directory. `qafel sweep`: recipes × seeds × settings, with one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qafel import drawing
from qafel.algorithm import Algorithm
from qafel.cli import advanced, output
from qafel.cli.console import (
    JsonOption,
    QuietOption,
    SetOption,
    StartOption,
    SweepProgress,
    TrackOption,
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
from qafel.config import load_recipe
from qafel.errors import ConfigError, RunFailed
from qafel.runs.directory import CHECKPOINT, state_of
from qafel.runs.live import figures_of
from qafel.runs.trackers import track_of
from qafel.search.runner import unfinished
from qafel.search.sweeps import grid, make_sweep, parse_seeds, parse_settings, require_sound
from qafel.simulator.api import quantizer_warnings, simulate
from qafel.simulator.executors import ExecutorName
from qafel.workers import worker_count


def run(
    recipe: Annotated[
        list[str], typer.Argument(metavar="RECIPE", help="A recipe's name (`qafel recipes`) or a TOML file.")
    ],
    settings: SetOption = None,
    seed: Annotated[list[int] | None, typer.Option(metavar="N", help="Random seed. Default: the recipe's.")] = None,
    start_from: StartOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    out: Annotated[Path | None, output(help="Run directory. Default: runs/NAME-seedN.")] = None,
    track: Annotated[
        list[str] | None,
        output(
            metavar="TRACKER",
            help="Send metrics to tensorboard (default, if installed), mlflow, wandb or none. Repeatable.",
        ),
    ] = None,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
    executor: Annotated[ExecutorName, advanced(help="Where clients train. The result is the same.")] = "inline",
    workers: WorkersOption = None,
    checkpoint_every: Annotated[float, advanced(metavar="SECONDS", min=0, help="Time between checkpoints.")] = 30.0,
    strict: Annotated[
        bool,
        advanced("--strict", help="Fail if a quantizer violates the theorem's assumptions."),
    ] = False,
) -> None:
    """Simulate a recipe and write its run directory.

    Example: qafel run mushrooms-qafel-4bit --seed 1 --set stop.server_steps=1000
    """
    settings = with_start(settings, start_from)
    if len(recipe) > 1 or len(seed or ()) > 1:
        raise ConfigError("qafel run makes one run; for several recipes or seeds, use qafel sweep")
    track_of(track)
    config = load_recipe(recipe[0], settings, seed[0] if seed else None)
    out = out or Path("runs") / f"{config.name}-seed{config.seed}"
    done = resume and state_of(out, config) == "finished"
    arguments = config.arguments()
    warn_of_unfit_quantizers(arguments["algorithm"], arguments["task"].layout.size, strict)
    failed: RunFailed | None = None
    try:
        summary = simulate(
            **arguments,
            out=out,
            resume=resume,
            overwrite=overwrite,
            checkpoint_every_s=checkpoint_every,
            executor=executor,
            workers=workers,
            progress=not quiet and not done,
            track=track,
            say=warn,
        ).summary
    except RunFailed as error:
        failed, summary = error, error.result.summary
    except KeyboardInterrupt:
        if not (out / CHECKPOINT).is_file():
            raise
        print_plain("interrupted and saved; to continue, run the same command with --resume", errors)
        raise typer.Exit(130) from None
    if done:
        print_plain(f"the run in {out} is already finished; to continue it, set larger limits", errors)
    if json_output:
        print_json(summary)
    else:
        table = Table(box=None, show_header=False)
        table.add_column(style="bold")
        for name, figure in figures_of(summary):
            table.add_row(name, figure)
        console.print(table)
        print_plain(f"results in {out}")
    if failed is not None:
        raise failed


def warn_of_unfit_quantizers(algorithm: Algorithm, size: int, strict: bool = False) -> None:
    """Warn if a quantizer violates the theorem's assumptions for a model of this size; if `strict`, refuse."""
    warnings = quantizer_warnings(algorithm, size)
    if warnings and strict:
        raise ConfigError(f"--strict: {warnings[0]}")
    for warning in warnings:
        warn(warning)


def sweep(
    recipes: Annotated[
        list[str], typer.Argument(metavar="RECIPE", help="Names of recipes (`qafel recipes`) or TOML files.")
    ],
    seeds: Annotated[str, typer.Option(help="The number of seeds, or a list: 3,7,9.")] = "5",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C,D", help="Values of a setting; the sweep runs all combinations."),
    ] = None,
    start_from: StartOption = None,
    out: Annotated[Path, typer.Option(help="The folder of run directories, report and table.")] = Path("sweep"),
    workers: WorkersOption = None,
    track: TrackOption = None,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run recipes with several seeds and settings, and compare them in one report.

    The same command resumes a sweep, and one with more values or seeds extends it. Commas separate values, except
    before key= (top_k:0.5,round=down) and within quotes or brackets.

    Example: qafel sweep mushrooms-qafel-4bit mushrooms-fedbuff --seeds 5 --set algorithm.client_lr=1,2,4
    """
    drawing.require_drawing()
    trackers = track_of(track or ())
    runs = grid(recipes, parse_seeds(seeds), parse_settings(with_start(settings, start_from)))
    todo = unfinished(runs, out)
    for warning in require_sound(todo):
        warn(warning)
    try:
        with SweepProgress(runs, todo, quiet) as progress:
            found = make_sweep(runs, out, progress, worker_count(workers), trackers)
    except KeyboardInterrupt:
        left = len(unfinished(runs, out))
        done = f"{len(runs) - left} of {len(runs)} runs are finished in {out}"
        print_plain(f"{done}; to continue, run the same command again", errors)
        raise
    table = out / "table.csv"
    if json_output:
        page = None if found.report is None else str(found.report)
        print_json({"runs": found.rows, "report": page, "table": str(table)})
    else:
        head, rows = found.over_seeds()
        console.print(figures_table("", *head, rows=rows, fold=True))
        for folder, reason in found.failed.items():
            print_plain(f"failed: {folder}: {reason}", errors)
        print_paths(report=found.report, table=table, runs=out)
    if found.failed:
        raise typer.Exit(1)
