"""`qafel sweep`: recipes × seeds × settings, with a run directory each and one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qafel import drawing
from qafel.cli.console import (
    JsonOption,
    QuietOption,
    StartOption,
    SweepProgress,
    TrackOption,
    console,
    errors,
    figures_table,
    print_json,
    warn,
    with_start,
)
from qafel.runs.trackers import track_of
from qafel.search.grid import grid, parse_seeds, parse_settings, require_sound
from qafel.search.runner import unfinished
from qafel.search.sweeps import Sweep, make_sweep
from qafel.workers import worker_count


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
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; by default one per core.")] = None,
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
        errors.print(f"{done}; to continue, run the same command again", highlight=False, soft_wrap=True)
        raise
    if json_output:
        listed = {"runs": found.rows, "report": str(found.report), "table": str(out / "table.csv")}
        print_json(listed)
    else:
        _show(found)
    if found.failed:
        raise typer.Exit(1)


def _show(found: Sweep) -> None:
    console.print(_table(found))
    for folder, reason in found.failed.items():
        errors.print(f"failed: {folder}: {reason}", highlight=False, markup=False, soft_wrap=True)
    lines = [f"report  {found.report}"] if found.report is not None else []
    for line in (*lines, f"table   {found.folder / 'table.csv'}", f"runs    {found.folder}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(found: Sweep) -> Table:
    head, rows = found.over_seeds()
    table = figures_table("", *head)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for row in rows:
        table.add_row(*row)
    return table
