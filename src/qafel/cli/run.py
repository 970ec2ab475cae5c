"""`qafel run`: one recipe, one run directory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from qafel.algorithm import Algorithm
from qafel.cli.console import (
    TRACKERS,
    JsonOption,
    QuietOption,
    RecipeNames,
    SetOption,
    StartOption,
    console,
    errors,
    print_json,
    with_start,
)
from qafel.config import load_recipe
from qafel.errors import ConfigError, RunFailed
from qafel.runs.directory import CHECKPOINT, state_of
from qafel.runs.summary import Summary, figures_of
from qafel.runs.trackers import track_of
from qafel.simulator.api import quantizer_warnings, simulate
from qafel.simulator.executors import ExecutorName


def run(
    recipe: RecipeNames,
    settings: SetOption = None,
    seed: Annotated[list[int] | None, typer.Option(help="Random seed; the recipe's own by default.")] = None,
    start_from: StartOption = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; runs/NAME-seedN by default.")] = None,
    executor: Annotated[ExecutorName, typer.Option(help="Where clients train; the result is the same.")] = "inline",
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; one per core by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")] = False,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 30.0,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar=TRACKERS, help="Where else to show it; may be repeated. TensorBoard, if it is installed."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if theory warns against a quantizer.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run, or half a run.")] = False,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Simulate a recipe and write its run directory.

    Example: qafel run mushrooms-qafel-4bit --seed 1 --set stop.server_steps=1000
    """
    settings = with_start(settings, start_from)
    _require_one_run(recipe, seed or [], settings)
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
        overrides = [part for setting in settings for part in ("--set", setting)]
        again = ["qafel", "run", recipe[0], *overrides, "--seed", str(config.seed), "--out", str(out), "--resume"]
        again += [part for name in track or () for part in ("--track", name)]
        errors.print(f"interrupted, and saved; to go on: {shlex.join(again)}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    if done:
        told = f"the run in {out} is finished: nothing is left to do, unless you set larger limits"
        errors.print(told, highlight=False, markup=False, soft_wrap=True)
    if json_output:
        print_json(summary)
    else:
        _show(summary, out)
    if failed is not None:
        raise failed


def _require_one_run(recipes: list[str], seeds: list[int], settings: list[str]) -> None:
    """Several recipes or seeds are a sweep's, not to be dropped but for the last."""
    if len(recipes) == 1 and len(seeds) <= 1:
        return
    listed = ",".join(map(str, seeds or [0]))
    parts = [*recipes, "--seeds", listed if len(seeds) > 1 else f"{listed},"]
    parts += [part for setting in settings for part in ("--set", setting)]
    raise ConfigError(f"qafel run makes one run; several are: {shlex.join(('qafel', 'sweep', *parts))}")


def warn_of_unfit_quantizers(algorithm: Algorithm, size: int, strict: bool = False) -> None:
    """Warn if a quantizer violates the theorem's assumptions for a model of this size; under --strict, refuse."""
    warnings = quantizer_warnings(algorithm, size)
    if warnings and strict:
        raise ConfigError(f"--strict: {warnings[0]}")
    for warning in warnings:
        warn(warning)


def warn(text: str) -> None:
    """Say what the user should know, though nothing has failed."""
    errors.print(f"[yellow]warning:[/] {escape(text)}", highlight=False)


def _show(summary: Summary, out: Path) -> None:
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    for name, figure in figures_of(summary):
        table.add_row(name, figure)
    console.print(table)
    console.print(f"results in {out}", highlight=False)
