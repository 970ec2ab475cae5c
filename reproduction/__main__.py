"""`python -m reproduction`: one name per figure and table of the paper."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from qafel.errors import QafelError, UserError
from qafel.search import RunSpec, Watcher, make_runs
from qafel.simulator import Row
from qafel.text import counted
from reproduction.document import all_runs, write_document
from reproduction.entries import ENTRIES, entry_named
from reproduction.entry import Extent, Request, why_missing
from reproduction.outputs import EntryResult, write_entries
from reproduction.store import Store

ExecutorName: TypeAlias = Literal["inline", "processes", "ray"]

console, errors = Console(), Console(stderr=True)

_FORM: dict[str, Any] = {"box": None, "header_style": "bold", "padding": (0, 2, 0, 0)}
_COLOURS = {
    "pass": "green",
    "by construction": "green",
    "fail": "red",
    "undecided": "yellow",
    "not comparable": "yellow",
}


@final
class Progress(Watcher):
    """Prints how runs go to stderr and stores each run that ends; `quiet` prints notes and failures only."""

    def __init__(self, total: int, store: Store, quiet: bool) -> None:
        self._total, self._store, self._quiet, self._ended = total, store, quiet, 0

    def started(self, run: RunSpec) -> None:
        self._show(f"{run.folder}: started")

    def progressed(self, run: RunSpec, row: Row) -> None:
        if errors.is_terminal and not self._quiet:
            text = f"{run.folder}: {row.metric:.3g} after {counted(row.uploads, 'upload')}"
            errors.print(text, end="\r", highlight=False, markup=False, overflow="ellipsis", no_wrap=True)

    def noted(self, run: RunSpec, text: str) -> None:
        errors.print(f"{run.folder}: {text}", highlight=False, markup=False, soft_wrap=True)

    def ended(self, run: RunSpec, status: str) -> None:
        self._ended += 1
        self._show(f"{run.folder}: {status} ({self._ended} of {self._total})")
        self._store.keep([run])

    def _show(self, text: str) -> None:
        if not self._quiet:
            errors.print(text, highlight=False, markup=False, soft_wrap=True)


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An entry, `all`, `list` or `document`.")] = "list",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Run seeds 0 to N − 1. Default: three, for a few methods five.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Make a tiny version of every run.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for runs and results. All entries share it.")] = Path("paper"),
    executor: Annotated[ExecutorName, typer.Option(help="Where clients train. inline: one run at a time.")] = (
        "processes"
    ),
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes. Default: one per core.")] = None,
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="Run every method of a neural task, not only those of the figure.")
    ] = False,
    family: Annotated[
        str | None, typer.Option(help="Family of runs for a neural entry, for example shakespeare-small.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only runs with matching names, for example `'*-c100*'`. Repeatable."),
    ] = None,
    uploads: Annotated[int | None, typer.Option(min=1, help="End every run after N uploads.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of stored runs: use those in it, and store finished runs there.")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Make no run. Use finished runs only.")] = False,
    to: Annotated[Path, typer.Option(help="File that `document` writes; details go beside it.")] = Path(
        "docs/reproduction.md"
    ),
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Reproduce a figure or table of the paper: make missing runs, then write table, figure, page and verdicts.

    Finished runs are not repeated. Interrupted runs are resumed. Runs with other settings are moved aside. Results go
    to OUT/NAME. Suffixes keep variants apart: -quick, -FAMILY, -uN for --uploads, and -part next to results of more
    runs.

    Example: python -m reproduction qafel-vs-direct-qsgd --seeds 3
    """
    store = Store(out / "runs", results)
    if name == "list":
        _show_list(json_output)
        return
    if name == "document":
        _write_document(out, store, to, json_output)
        return
    request = Request(seeds, quick, all_methods, family, only or [], finished, uploads)
    entries = ENTRIES if name == "all" else {name: entry_named(name)}
    if not finished:
        store.require_writable()
    store.check(request.all_runs(entries))
    plans = request.plans(entries, store)
    skipped = {entry: reason for entry, runs in plans.items() if (reason := why_missing(store.unfinished(runs)))}
    if len(skipped) == len(plans):
        raise UserError("; ".join(f"{entry}: {reason}" for entry, reason in skipped.items()))
    plans = {entry: runs for entry, runs in plans.items() if entry not in skipped}
    planned = [run for runs in plans.values() for run in runs]
    store.keep(planned)
    todo = store.unfinished(planned)
    try:
        failed = make_runs(
            todo,
            store.runs,
            Progress(len(todo), store, quiet),
            executor=executor,
            workers=workers or os.cpu_count() or 1,
            quick=quick,
        )
    except KeyboardInterrupt:
        errors.print("Interrupted. Repeat the command to resume.")
        raise
    written, unwritten = write_entries(entries, plans, out, store, request)
    if json_output:
        listed = [result.claims() | {"folder": str(result.folder)} for result in written]
        _print_json({"entries": listed, "failed": failed, "skipped": skipped, "unwritten": unwritten})
    else:
        for result in written:
            _show(result)
    _complain("[yellow]skipped[/]", skipped)
    _complain("[red]failed[/]", failed)
    _complain("[red]not written[/]", unwritten)
    if failed or unwritten:
        raise typer.Exit(1)


def _write_document(out: Path, store: Store, to: Path, json_output: bool) -> None:
    store.check(all_runs(ENTRIES))
    found = write_document(ENTRIES, out, store, to)
    absent = [one.command for one in found if one.result is None]
    if json_output:
        _print_json([one.to_json() for one in found])
    else:
        console.print(f"{to}: {len(found) - len(absent)} of {len(found)} experiments have runs", highlight=False)
    _complain("[yellow]not run[/]", dict.fromkeys(absent, "no run is finished"))


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def _complain(what: str, of: dict[str, str]) -> None:
    for name, reason in of.items():
        errors.print(f"{what} {name}: {escape(reason)}", highlight=False, soft_wrap=True)


def _show(result: EntryResult) -> None:
    console.print(result.entry.title, style="italic", highlight=False)
    columns = list(zip(*([heading.title for heading in result.table.headings], *result.table.texts()), strict=True))
    for part in _split_columns(columns, console.width):
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


def _split_columns(columns: Sequence[tuple[str, ...]], width: int) -> Iterator[list[tuple[str, ...]]]:
    """Parts of a table that fit in the width. Each part repeats the first column."""
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
    plans = {name: entry.plan(Extent()) for name, entry in ENTRIES.items()}
    tasks = {name: ", ".join(dict.fromkeys(run.config.task.name for run in runs)) for name, runs in plans.items()}
    if json_output:
        _print_json(
            [
                {"name": name, "title": it.title, "paper": it.paper, "tasks": tasks[name], "runs": len(plans[name])}
                for name, it in ENTRIES.items()
            ]
        )
        return
    short, number = Column("entry", no_wrap=True), Column("runs", justify="right", no_wrap=True)
    table = Table(short, "title", "in the paper", "task", number, "time", **_FORM)
    for name, entry in ENTRIES.items():
        table.add_row(name, entry.title, entry.paper, tasks[name], str(len(plans[name])), entry.time)
    console.print(table)
    console.print("time: roughly, for three seeds on two cores", style="dim")


def main() -> None:
    """Run the command. A user's mistake is one line on stderr and exit code 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    app.command()(reproduce)
    try:
        app(prog_name="python -m reproduction")
    except UserError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except QafelError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
