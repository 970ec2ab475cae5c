"""`qafel report`: compare runs in one HTML page and one figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from qafel.drawing.printed import save_figure
from qafel.errors import DataError, NothingToShow, OutputError
from qafel.report import comparison_figure, write_report
from qafel.report.groups import run_labels
from qafel.runs.reading import Run


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, in the order to show them.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write. Default: report.html here, or in the run directory if it is only one."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page. Default: the names of the runs.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the written paths as JSON.")] = False,
) -> None:
    """Compare runs: write a self-contained HTML page, and a figure of the same name beside it.

    Of several runs, those without any evaluation yet are left out and named, and so is what is no run directory.

    Example: qafel report runs/qafel runs/fedbuff --out comparison/report.html
    """
    page = _page_path(runs, out)
    loaded, left_out = _load(runs)
    for path, why in left_out:
        typer.echo(f"left out: {path} ({why})", err=True)
    # A page may be passed on: it names folders, not the way to them.
    named = [f"{path.resolve().name} ({why})" for path, why in left_out]
    write_report(loaded, page, title=title, left_out=named)
    figure = save_figure(comparison_figure(loaded), page.with_suffix(".png"))
    if as_json:
        written = {"report": str(page), "figure": str(figure), "runs": run_labels(loaded)}
        print(json.dumps(written | {"left_out": [str(path) for path, _ in left_out]}, ensure_ascii=False))
        return
    console = Console()
    for label, path in (("report", page), ("figure", figure)):
        # A Text, so that brackets in a path are not read as markup.
        console.print(Text.assemble((f"{label}  ", "bold"), str(path)), soft_wrap=True)
    _say(console, "diverged", loaded, [run.diverged for run in loaded])
    _say(console, "not finished, shown up to the last evaluation", loaded, [not run.finished for run in loaded])


def _load(paths: list[Path]) -> tuple[list[Run], list[tuple[Path, str]]]:
    """The runs; of several, those with nothing to show yet are left out, each with the reason."""
    loaded: list[Run] = []
    left_out: list[tuple[Path, str]] = []
    for path in paths:
        try:
            loaded.append(Run.load(path))
        except NothingToShow as error:
            if len(paths) == 1:
                raise
            left_out.append((path, error.why))
    if not loaded:
        reasons = ", ".join(f"{path} ({why})" for path, why in left_out)
        raise DataError(f"none of these has an evaluation to report on: {reasons}")
    return loaded, left_out


def _say(console: Console, what: str, runs: list[Run], which: list[bool]) -> None:
    if labels := [label for label, chosen in zip(run_labels(runs), which, strict=True) if chosen]:
        console.print(Text(f"{what}: {', '.join(labels)}"), soft_wrap=True)


def _page_path(runs: list[Path], out: Path | None) -> Path:
    if out is None:
        return (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if out.suffix.lower() == ".png":
        raise OutputError(f"{out} should end in .html: it names the page, and the figure beside it ends in .png")
    return out / "report.html" if out.is_dir() or not out.suffix else out
