"""`qafel run`: one recipe, one run directory."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qafel.cli.console import (
    JsonOption,
    QuietOption,
    RecipeNames,
    RunBar,
    SetOption,
    StartOption,
    console,
    errors,
    run_bars,
    with_start,
)
from qafel.config import Config, load_recipe
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.runs.directory import CHECKPOINT
from qafel.runs.summary import Summary
from qafel.simulator.api import quantizer_warnings, refuse_to_lose_a_run
from qafel.simulator.executors import ExecutorName
from qafel.simulator.run import run as simulate
from qafel.text import human_bytes


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
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard events, if it is installed.")] = True,
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
    config = load_recipe(recipe[0], settings, seed[0] if seed else None)
    out = out or Path("runs") / f"{config.name}-seed{config.seed}"
    if not resume and not overwrite:
        refuse_to_lose_a_run(config, out)
    task = config.task.make()
    warn_of_unfit_quantizers(config, task.layout, strict)
    try:
        with run_bars(quiet) as progress:
            summary = simulate(
                config,
                out,
                [RunBar(progress, config.name, config.stop, "metric")],
                task=task,
                executor=executor,
                workers=workers,
                resume=resume,
                checkpoint_every_s=checkpoint_every,
                tensorboard=tensorboard,
            )
    except KeyboardInterrupt:
        if not (out / CHECKPOINT).is_file():
            raise
        overrides = [part for setting in settings for part in ("--set", setting)]
        again = ["qafel", "run", recipe[0], *overrides, "--seed", str(config.seed), "--out", str(out), "--resume"]
        errors.print(f"interrupted, and saved; to go on: {shlex.join(again)}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    if json_output:
        print(json.dumps(summary, indent=2))
    else:
        _show(summary, out)


def _require_one_run(recipes: list[str], seeds: list[int], settings: list[str]) -> None:
    """Several recipes or seeds are a sweep's, not to be dropped but for the last."""
    if len(recipes) == 1 and len(seeds) <= 1:
        return
    listed = ",".join(map(str, seeds or [0]))
    parts = [*recipes, "--seeds", listed if len(seeds) > 1 else f"{listed},"]
    parts += [part for setting in settings for part in ("--set", setting)]
    raise ConfigError(f"qafel run makes one run; several are: {shlex.join(('qafel', 'sweep', *parts))}")


def warn_of_unfit_quantizers(config: Config, layout: Layout, strict: bool = False) -> None:
    """Say before a run what theory holds against its quantizers; under --strict, refuse."""
    warnings = quantizer_warnings(config.algorithm.wire(layout), layout.size)
    if warnings and strict:
        raise ConfigError(f"--strict: {warnings[0]}")
    for warning in warnings:
        errors.print(f"[yellow]warning:[/] {warning}", highlight=False)


def _show(summary: Summary, out: Path) -> None:
    final = summary["metric_final"]
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_row("status", summary["status"])
    table.add_row(summary["metric_name"], "–" if final is None else f"{final:.6g}  (best {summary['metric_best']:.6g})")
    table.add_row("server steps", f"{summary['server_steps']:,}")
    table.add_row("uploads", f"{summary['uploads']:,}, {summary['upload_bytes_mean']:,.0f} bytes each")
    table.add_row("sent up", human_bytes(summary["upload_bytes_total"]))
    table.add_row("broadcast", human_bytes(summary["broadcast_bytes_total"]))
    table.add_row("staleness", f"mean {summary['staleness_mean']:.2f}, max {summary['staleness_max']}")
    if summary["target"] is not None:
        reached = summary["uploads_to_target"]
        table.add_row("target", "not reached" if reached is None else f"reached after {reached:,} uploads")
    table.add_row(
        "time",
        f"{summary['wall_s']:.2f} s, {summary['updates_per_s']:,.0f} updates/s, "
        f"{100 * summary['overhead_share']:.0f} % of it neither training nor evaluation",
    )
    table.add_row("model sha256", summary["model_sha256"])
    console.print(table)
    console.print(f"results in {out}", highlight=False)
