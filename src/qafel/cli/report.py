"""`qafel report` and `qafel demo`: runs compared on a page and in a figure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from qafel import drawing
from qafel.cli import output
from qafel.cli.console import JsonOption, SweepProgress, console, figures_table, print_json, print_plain
from qafel.config import load_recipe
from qafel.errors import DataError, NothingToShow, OutputError, QafelError
from qafel.files import writing
from qafel.report import comparison_figure, write_report
from qafel.report.groups import run_labels
from qafel.runs.reading import BYTES, Run, folder_name, is_moved_aside, run_directories
from qafel.search.runner import RunSpec, make_runs, unfinished
from qafel.text import human_bytes
from qafel.workers import worker_count

_DAMAGED = "damaged"
REFERENCE, LINKED = "mushrooms-fedbuff", "mushrooms-qafel-linked"
RECIPES = (
    REFERENCE,
    "mushrooms-qafel-4bit",
    LINKED,
    "mushrooms-qafel-qsgd",
    "mushrooms-direct-qsgd",
    "mushrooms-qafel-topk",
    "mushrooms-direct-topk",
)
PICTURE = {
    REFERENCE: "FedBuff, no quantization",
    LINKED: "QAFeL, 4 bits, linked starts",
    "mushrooms-qafel-qsgd": "QAFeL, 3 bits down",
    "mushrooms-direct-qsgd": "Direct quantization, 3 bits down",
}
"""The curves of the demo's picture, by recipe."""


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories, or folders of them, in display order.")
    ],
    out: Annotated[
        Path | None, output(help="Page to write. Default: report.html, in RUN if there is only one.")
    ] = None,
    title: Annotated[str, output(help="Title of the page. Default: the names of the runs.")] = "",
    json_output: JsonOption = False,
) -> None:
    """Compare runs on a self-contained HTML page, and in a figure of the same name.

    Runs that differ only in their seeds share a curve and a row. The report leaves out damaged runs, runs without an
    evaluation and other folders, and names them.

    Example: qafel report runs/qafel runs/fedbuff --out comparison/report.html
    """
    drawing.require_drawing()
    page = _page_path(runs, out)
    loaded, left_out = _load(runs)
    for path, error in left_out:
        typer.echo(f"left out: {error if _why(error) == _DAMAGED else f'{path} ({_why(error)})'}", err=True)
    # A page may be shared: it shows names of folders, not their paths.
    named = [f"{folder_name(path)} ({_why(error)})" for path, error in left_out]
    write_report(loaded, page, title=title, left_out=named)
    figure = drawing.printed.save_figure(comparison_figure(loaded), page.with_suffix(".png"))
    if json_output:
        written = {"report": str(page), "figure": str(figure), "runs": run_labels(loaded)}
        print_json(written | {"left_out": [str(path) for path, _ in left_out]})
        return
    print_plain(f"report  {page}\nfigure  {figure}")
    labels = run_labels(loaded)
    for what, chosen in (
        ("diverged", [run.diverged for run in loaded]),
        ("not finished, shown up to the last evaluation", [not run.finished for run in loaded]),
    ):
        if any(chosen):
            print_plain(f"{what}: {', '.join(compress(labels, chosen))}")


def _load(paths: list[Path]) -> tuple[list[Run], list[tuple[Path, DataError]]]:
    """Load the runs. Among several, those that are damaged or without an evaluation come back with the reason."""
    loaded: list[Run] = []
    left_out: list[tuple[Path, DataError]] = []
    found = [(inside, inside != path) for path in paths for inside in run_directories(path)]
    for path, within in found:
        try:
            if within and is_moved_aside(path):
                raise NothingToShow(f"{path} was moved aside", "moved aside")
            loaded.append(Run.load(path))
        except DataError as error:
            if len(found) == 1 or not os.path.lexists(path):
                raise
            left_out.append((path, error))
    if not loaded:
        reasons = ", ".join(f"{path} ({_why(error)})" for path, error in left_out)
        raise DataError(f"none of these has an evaluation to report on: {reasons}")
    return loaded, left_out


def _why(error: DataError) -> str:
    return error.why if isinstance(error, NothingToShow) else _DAMAGED


def _page_path(runs: list[Path], out: Path | None) -> Path:
    if out is None:
        return (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if out.suffix.lower() == ".png":
        raise OutputError(f"--out names the page and ends in .html, got {out}; the figure gets the same name with .png")
    return out / "report.html" if out.is_dir() or not out.suffix else out


def demo(
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Server steps of each run.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Annotated[Path, output(help="Folder of the runs, the picture and the report.")] = Path("demo"),
    json_output: JsonOption = False,
) -> None:
    """Compare QAFeL with FedBuff and direct quantization on real data, in half a minute.

    The demo needs neither a network nor PyTorch. It keeps finished runs and resumes interrupted ones.

    Example: qafel demo --steps 2000
    """
    drawing.require_drawing()
    overrides = [f"stop.server_steps={steps}", "evaluation.every=10"]
    linked = [*overrides, f"name={LINKED}", "description='QAFeL, 4 bits, linked'", "algorithm.catch_up=auto"]
    configs = [
        load_recipe("mushrooms-qafel-4bit", linked, seed) if name == LINKED else load_recipe(name, overrides, seed)
        for name in RECIPES
    ]
    planned = [RunSpec(config.description, config) for config in configs]
    with writing(str(out)):
        out.mkdir(parents=True, exist_ok=True)
    with SweepProgress(planned, unfinished(planned, out)) as progress:
        failed = make_runs(planned, out, progress, workers=worker_count())
    if failed:
        raise QafelError("; ".join(f"{folder} failed: {reason}" for folder, reason in failed.items()))
    runs = [Run.load(out / run.folder) for run in planned]
    summaries = [run.summary for run in runs]
    picture = [replace(run, name=PICTURE[run.name]) for run in runs if run.name in PICTURE]
    drawing.printed.save_figure(comparison_figure(picture), out / "comparison.png")
    write_report(runs, out / "report.html", title="QAFeL on mushrooms")
    if json_output:
        print_json(summaries)
    else:
        console.print(_demo_table([config.description for config in configs], summaries))
        print_plain(f"picture  {out / 'comparison.png'}\nreport   {out / 'report.html'}")


def _demo_table(descriptions: list[str], summaries: Sequence[Mapping[str, Any]]) -> Table:
    reference = next(summary for summary in summaries if summary["name"] == REFERENCE)
    table = figures_table(
        f"Mushrooms, 100 clients, {reference['uploads']:,} uploads; × is relative to FedBuff",
        *("method", "f(x) − f*", "total bytes", "×", "up", "broadcast", "received"),
    )
    for description, summary in zip(descriptions, summaries, strict=True):
        final, least = summary["metric_final"], reference["metric_final"]
        colour = "red" if final is None or least is None or final > 2 * least else "green"
        table.add_row(
            description,
            f"[{colour}]{'–' if final is None else f'{final:.3e}'}[/]",
            human_bytes(summary["total_bytes"]),
            f"{summary['total_bytes'] / reference['total_bytes']:.3f}",
            *(human_bytes(summary[part]) for part in BYTES),
        )
    return table
