"""`qafel paper`: one command per figure and table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from qafel import drawing
from qafel.cli.console import JsonOption, QuietOption, SweepProgress, console, errors, print_json
from qafel.errors import UserError
from qafel.paper import ENTRIES, Extent, Request, entry_named
from qafel.paper.document import all_runs, write_document
from qafel.paper.entry import why_missing
from qafel.paper.kept import keep, require_writable, take_back
from qafel.paper.outputs import EntryResult, write_entries
from qafel.search.runner import make_runs, unfinished, unique
from qafel.simulator.executors import ExecutorName
from qafel.workers import worker_count

_FORM: dict[str, Any] = {"box": None, "header_style": "bold", "padding": (0, 2, 0, 0)}
_COLOURS = {
    "pass": "green",
    "by construction": "green",
    "fail": "red",
    "undecided": "yellow",
    "not comparable": "yellow",
}


def paper(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An entry, `all`, `list` or `document`.")] = "list",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Run seeds 0 to N − 1; by default three, of a few runs five.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Make a tiny version of every run.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of results; all entries share its runs.")] = Path("paper"),
    executor: Annotated[ExecutorName, typer.Option(help="Where clients train; inline: run by run.")] = "processes",
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; one per core by default.")] = None,
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="Run every recipe of a neural task, not only those of the figure.")
    ] = False,
    family: Annotated[
        str | None, typer.Option(help="Take the recipes of a neural entry from a family such as shakespeare-small.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only runs with such names: `'*-c100*'`; can be repeated."),
    ] = None,
    uploads: Annotated[int | None, typer.Option(min=1, help="End every run after so many uploads.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Keep finished runs in this folder, a few kB each, and take runs from there.")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Run nothing; write results of finished runs.")] = False,
    to: Annotated[Path, typer.Option(help="Where `document` writes.")] = Path("docs/reproduction.md"),
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Reproduce a figure or table of the paper: run what is missing, then write table, figure, page and verdicts.

    A finished run is not run again; an interrupted run continues; a run with other settings is moved aside. Results
    go to OUT/NAME, those of --quick to NAME-quick, of --family to NAME-FAMILY, of --uploads to NAME-uN, and where there
    are results of more runs to NAME-part.

    Example: qafel paper qafel-vs-direct-qsgd --seeds 3
    """
    if name == "list":
        _show_list(json_output)
        return
    if name == "document":
        _write_document(out, results, to, json_output)
        return
    drawing.require_drawing()
    request = Request(seeds, quick, all_methods, family, only or [], finished, uploads)
    entries = ENTRIES if name == "all" else {name: entry_named(name)}
    if results is not None:
        if not finished:
            require_writable(results)
        take_back(request.all_runs(entries), out / "runs", results)
    plans = request.plans(entries, out / "runs")
    todo = {entry: unfinished(runs, out / "runs") for entry, runs in plans.items()}
    skipped = {entry: reason for entry, runs in todo.items() if (reason := why_missing(runs))}
    if len(skipped) == len(plans):
        raise UserError("; ".join(f"{entry}: {reason}" for entry, reason in skipped.items()))
    plans = {entry: runs for entry, runs in plans.items() if entry not in skipped}
    planned = unique([run for runs in plans.values() for run in runs])
    keep_run = partial(keep, runs=out / "runs", results=results) if results is not None else None
    if keep_run is not None:
        keep_run(planned)
    with SweepProgress(planned, unfinished(planned, out / "runs"), quiet, then=keep_run) as progress:
        many = worker_count(workers)
        try:
            failed = make_runs(planned, out / "runs", progress, executor=executor, workers=many, quick=quick)
        except KeyboardInterrupt:
            errors.print("interrupted: run the same command again to continue")
            raise
    written, unwritten = write_entries(entries, plans, out, request)
    if json_output:
        listed = [result.claims() | {"folder": str(result.folder)} for result in written]
        report = {"entries": listed, "failed": failed, "skipped": skipped, "unwritten": unwritten}
        print_json(report)
    else:
        for result in written:
            _show(result)
    _complain("[yellow]skipped[/]", skipped)
    _complain("[red]failed[/]", failed)
    _complain("[red]not written[/]", unwritten)
    if failed or unwritten:
        raise typer.Exit(1)


def _write_document(out: Path, results: Path | None, to: Path, json_output: bool) -> None:
    if results is not None:
        take_back(all_runs(ENTRIES), out / "runs", results)
    found = write_document(ENTRIES, out, to)
    absent = [one.command for one in found if one.result is None]
    if json_output:
        print_json([one.listed() for one in found])
    else:
        have = f"{len(found) - len(absent)} of {len(found)} experiments have finished runs"
        console.print(f"{to}: {have}", highlight=False)
    _complain("[yellow]not run[/]", dict.fromkeys(absent, "it is said to be missing there"))


def _complain(what: str, of: dict[str, str]) -> None:
    for name, reason in of.items():
        errors.print(f"{what} {name}: {escape(reason)}", highlight=False, soft_wrap=True)


def _show(result: EntryResult) -> None:
    console.print(result.entry.title, style="italic", highlight=False)
    columns = list(zip(*([heading.title for heading in result.table.headings], *result.table.shown()), strict=True))
    for part in _that_fit(columns, console.width):
        table = Table(*(Column(part[0][0]), *(Column(title, justify="right") for title, *_ in part[1:])), **_FORM)
        for row in zip(*(cells for _, *cells in part), strict=True):
            table.add_row(*row)
        console.print(table)
    for claim, verdict in result.verdicts:
        colour = _COLOURS[verdict.result]
        console.print(f"[{colour}]{verdict.result}[/] {claim.text}: {verdict.because}", highlight=False)
    if warning := result.source.of_other_versions():
        console.print(f"[yellow]note[/] {warning}", highlight=False)
    console.print(f"results in {result.folder}\n", highlight=False)


def _that_fit(columns: Sequence[tuple[str, ...]], width: int) -> Iterator[list[tuple[str, ...]]]:
    """Parts of a table that fit in the width, each with its first column."""
    (first, most), *others = ((column, 2 + max(map(len, column))) for column in columns)
    part, room = [first], width - most
    for column, needed in others:
        if len(part) > 1 and needed > room:
            yield part
            part, room = [first], width - most
        part.append(column)
        room -= needed
    yield part


def _show_list(json_output: bool) -> None:
    counts = {name: entry.plan(Extent()) for name, entry in ENTRIES.items()}
    tasks = {name: ", ".join(dict.fromkeys(run.config.task.name for run in runs)) for name, runs in counts.items()}
    if json_output:
        listed = [
            {"name": name, "title": entry.title, "paper": entry.paper, "tasks": tasks[name], "runs": len(counts[name])}
            for name, entry in ENTRIES.items()
        ]
        print_json(listed)
        return
    short, number = Column("entry", no_wrap=True), Column("runs", justify="right", no_wrap=True)
    table = Table(short, "what it is", "in the paper", "task", number, "time", **_FORM)
    for name, entry in ENTRIES.items():
        table.add_row(name, entry.title, entry.paper, tasks[name], str(len(counts[name])), entry.time)
    console.print(table)
    console.print("time: roughly, for three seeds on two cores, if no run is finished yet", style="dim")
