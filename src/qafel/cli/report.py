"""Runs compared in a page and a figure: any by `qafel report`, those of the paper's first problem by `qafel demo`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from qafel import drawing
from qafel.cli.console import JsonOption, SweepProgress, console, figures_table, print_json
from qafel.config import load_recipe
from qafel.errors import DataError, NothingToShow, OutputError, QafelError
from qafel.files import writing
from qafel.report import comparison_figure, write_report
from qafel.report.groups import run_labels
from qafel.runs.reading import Run, folder_name, is_moved_aside, run_directories
from qafel.search.runner import RunSpec, make_runs, unfinished
from qafel.text import human_bytes
from qafel.workers import worker_count

_DAMAGED = "damaged"
REFERENCE = "mushrooms-fedbuff"
RECIPES = (
    REFERENCE,
    "mushrooms-qafel-4bit",
    "mushrooms-qafel-qsgd",
    "mushrooms-direct-qsgd",
    "mushrooms-qafel-topk",
    "mushrooms-direct-topk",
)


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories, or folders of them, in the order to show.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write. Default: report.html here, or in RUN if that is only one."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page. Default: the names of the runs.")] = "",
    json_output: JsonOption = False,
) -> None:
    """Compare runs: write a self-contained HTML page, and a figure of the same name beside it.

    Runs that differ only by seed are one curve and one row. Of several runs, those that are damaged or have no
    evaluation yet are left out and named, and so is what is not a run directory.

    Example: qafel report runs/qafel runs/fedbuff --out comparison/report.html
    """
    drawing.require_drawing()
    page = _page_path(runs, out)
    loaded, left_out = _load(runs)
    for path, error in left_out:
        typer.echo(f"left out: {error if _why(error) == _DAMAGED else f'{path} ({_why(error)})'}", err=True)
    # A page may be passed on: it names folders, not the way to them.
    named = [f"{folder_name(path)} ({_why(error)})" for path, error in left_out]
    write_report(loaded, page, title=title, left_out=named)
    figure = drawing.printed.save_figure(comparison_figure(loaded), page.with_suffix(".png"))
    if json_output:
        written = {"report": str(page), "figure": str(figure), "runs": run_labels(loaded)}
        print_json(written | {"left_out": [str(path) for path, _ in left_out]})
        return
    for label, path in (("report", page), ("figure", figure)):
        # A Text, so that brackets in a path are not read as markup.
        console.print(Text.assemble((f"{label}  ", "bold"), str(path)), soft_wrap=True)
    _say("diverged", loaded, [run.diverged for run in loaded])
    _say("not finished, shown up to the last evaluation", loaded, [not run.finished for run in loaded])


def _load(paths: list[Path]) -> tuple[list[Run], list[tuple[Path, DataError]]]:
    """The runs; of several, those that are damaged or have nothing to show yet are left out, each with the reason."""
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


def _say(what: str, runs: list[Run], which: list[bool]) -> None:
    if labels := [label for label, chosen in zip(run_labels(runs), which, strict=True) if chosen]:
        console.print(Text(f"{what}: {', '.join(labels)}"), soft_wrap=True)


def _page_path(runs: list[Path], out: Path | None) -> Path:
    if out is None:
        return (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if out.suffix.lower() == ".png":
        raise OutputError(f"{out} should end in .html: it names the page, and the figure beside it ends in .png")
    return out / "report.html" if out.is_dir() or not out.suffix else out


def demo(
    out: Annotated[Path, typer.Option(help="Where to write the runs, the picture and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Server steps of each run.")] = 10_000,
    json_output: JsonOption = False,
) -> None:
    """Compare QAFeL with FedBuff and direct quantization on mushrooms; no network, no torch, half a minute.

    Its runs go side by side, one per core. One that is finished is not made again; an interrupted one continues.

    Example: qafel demo --steps 2000
    """
    drawing.require_drawing()
    # Evaluated every tenth step: the demo is for looking, `qafel run` has every step.
    overrides = [f"stop.server_steps={steps}", "evaluation.every=10"]
    configs = [load_recipe(name, overrides, seed) for name in RECIPES]
    planned = [RunSpec(config.description, config) for config in configs]
    with writing(str(out)):
        out.mkdir(parents=True, exist_ok=True)
    with SweepProgress(planned, unfinished(planned, out)) as progress:
        failed = make_runs(planned, out, progress, workers=worker_count())
    if failed:
        raise QafelError("; ".join(f"{folder} failed: {reason}" for folder, reason in failed.items()))
    runs = [Run.load(out / run.folder) for run in planned]
    summaries = [run.summary for run in runs]
    drawing.printed.save_figure(comparison_figure(runs), out / "comparison.png")
    write_report(runs, out / "report.html", title="QAFeL on mushrooms")
    if json_output:
        print_json(summaries)
    else:
        console.print(_demo_table([config.description for config in configs], summaries))
        console.print(f"picture: {out / 'comparison.png'}\nreport:  {out / 'report.html'}", highlight=False)


def _demo_table(descriptions: list[str], summaries: Sequence[Mapping[str, Any]]) -> Table:
    reference = next(summary for summary in summaries if summary["name"] == REFERENCE)
    table = figures_table(
        "Mushrooms: 100 clients, K = 10, P = 10; × is relative to FedBuff",
        *("method", "f(x) − f*", "×", "uploads", "sent up", "broadcast", "traffic ×"),
    )
    for description, summary in zip(descriptions, summaries, strict=True):
        table.add_row(
            description,
            "–" if summary["metric_final"] is None else f"{summary['metric_final']:.3e}",
            _times(summary["metric_final"], reference["metric_final"]),
            f"{summary['uploads']:,}",
            human_bytes(summary["upload_bytes_total"]),
            human_bytes(summary["broadcast_bytes_total"]),
            f"{_traffic(summary) / _traffic(reference):.3f}",
        )
    return table


def _times(metric: float | None, reference: float | None) -> str:
    if metric is None or not reference:
        return "–"
    worse = metric / reference
    return f"[{'red' if worse > 2 else 'green'}]{worse:.2f}[/]"


def _traffic(summary: Mapping[str, Any]) -> int:
    return int(summary["upload_bytes_total"] + summary["broadcast_bytes_total"])
