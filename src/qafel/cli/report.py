"""`qafel report`: compare runs in one HTML page and one figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from qafel.results.plots import comparison_figure, save_figure
from qafel.results.report import write_report
from qafel.results.report_styles import labels_of
from qafel.results.runs import Run


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, in the order to show them.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write. Default: report.html here, or in the run directory if it is only one."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page. Default: the names of the runs.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the written paths as JSON.")] = False,
) -> None:
    """Compare runs: write a self-contained HTML page, and comparison.png beside it.

    Example: qafel report runs/qafel runs/fedbuff --out comparison/report.html
    """
    page = _page_path(runs, out)
    loaded = [Run.load(path) for path in runs]
    write_report(loaded, page, title=title)
    figure = save_figure(comparison_figure(loaded), page.with_name("comparison.png"))
    if as_json:
        print(json.dumps({"report": str(page), "figure": str(figure), "runs": labels_of(loaded)}, ensure_ascii=False))
        return
    console = Console()
    for label, path in (("report", page), ("figure", figure)):
        # A Text, so that brackets in a path are not read as markup.
        console.print(Text.assemble((f"{label}  ", "bold"), str(path)), soft_wrap=True)
    unfinished = [label for label, run in zip(labels_of(loaded), loaded, strict=True) if not run.finished]
    if unfinished:
        console.print(Text(f"not finished, shown up to the last evaluation: {', '.join(unfinished)}"), soft_wrap=True)


def _page_path(runs: list[Path], out: Path | None) -> Path:
    if out is None:
        return (runs[0] if len(runs) == 1 else Path()) / "report.html"
    return out / "report.html" if out.is_dir() or not out.suffix else out
