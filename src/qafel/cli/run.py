"""`qafel run`: one recipe, one run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qafel.algorithm import Algorithm
from qafel.cli import advanced, output
from qafel.cli.console import (
    JsonOption,
    QuietOption,
    SetOption,
    StartOption,
    console,
    errors,
    print_json,
    print_plain,
    warn,
    with_start,
)
from qafel.config import load_recipe
from qafel.errors import ConfigError, RunFailed
from qafel.runs.directory import CHECKPOINT, state_of
from qafel.runs.summary import figures_of
from qafel.runs.trackers import track_of
from qafel.simulator.api import quantizer_warnings, simulate
from qafel.simulator.executors import ExecutorName


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
    workers: Annotated[
        int | None, advanced(metavar="N", min=1, help="Worker processes. Default: one per core.")
    ] = None,
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
