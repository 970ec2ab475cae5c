"""`qafel paper`: one command per figure and table."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from qafel.cli.console import SweepProgress, console, errors
from qafel.errors import ConfigError, DataError, UserError
from qafel.paper.entry import Entry, Scale, why_missing
from qafel.paper.outputs import Outcome, beside_a_fuller_one, read_back, results_folder, write_outputs
from qafel.paper.registry import ENTRIES, entry_named
from qafel.simulator.executors import ExecutorName
from qafel.sweeps import sweep, unfinished, unique
from qafel.sweeps.run import Planned

_COLOURS = {"pass": "green", "fail": "red", "not comparable": "yellow"}


def paper(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An entry's name, `all`, or `list`.")] = "list",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds 0 to N − 1; three by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny version of every run: shows that it works.")] = False,
    out: Annotated[Path, typer.Option(help="Where to write; runs are shared by all entries.")] = Path("paper"),
    executor: Annotated[
        ExecutorName, typer.Option(help="Where clients train; inline also makes one run after another.")
    ] = "processes",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core by default.")] = None,
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="Every recipe of a neural task, not only the figure's.")
    ] = False,
    family: Annotated[
        str | None, typer.Option(help="Take a neural entry's recipes from another family, such as shakespeare-small.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Only runs so named, as in '*-c100*'; may be repeated.")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Run nothing: write what finished runs give.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print claims and files as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Reproduce a figure or table of the paper: run what is missing, then write table, figure, page and verdicts.

    Finished runs are not run again; an interrupted one goes on where it was; one with other settings is moved aside.
    Results go to OUT/NAME, those of --quick to NAME-quick, of --family to NAME-FAMILY; those of --only, where fuller
    ones are there, to NAME-part.

    Example: qafel paper qafel-vs-direct-qsgd --seeds 3
    """
    if name == "list":
        _show_list(json_output)
        return
    asked = _Asked(seeds, quick, all_methods, family, only or [], finished)
    entries = list(ENTRIES.values()) if name == "all" else [entry_named(name)]
    plans = _plans(entries, asked, name, out / "runs")
    skipped = _missing([entry for entry in entries if plans[entry.name]], plans, out / "runs", several=name == "all")
    entries = [entry for entry in entries if plans[entry.name] and entry.name not in skipped]
    if not entries:
        raise UserError("; ".join(f"{entry_name}: {reason}" for entry_name, reason in skipped.items()))
    planned = unique([run for entry in entries for run in plans[entry.name]])
    with SweepProgress(planned, unfinished(planned, out / "runs"), quiet) as progress:
        many = workers or os.cpu_count() or 1
        try:
            failures = sweep(planned, out / "runs", progress, executor=executor, workers=many, quick=quick)
        except KeyboardInterrupt:
            errors.print("interrupted: the same command goes on where this one was")
            raise
    outcomes, unwritten = _write(entries, plans, out, asked)
    failed = {failure.run.folder: failure.reason for failure in failures}
    if json_output:
        print(json.dumps(_as_json(outcomes, failed, skipped, unwritten), indent=2, ensure_ascii=False))
    else:
        for outcome in outcomes:
            _show(outcome)
    _complain("[yellow]skipped[/]", skipped)
    _complain("[red]failed[/]", failed)
    _complain("[red]not written[/]", unwritten)
    if failed or unwritten:
        raise typer.Exit(1)


class _Asked(NamedTuple):
    """The options that decide what is run."""

    seeds: int | None
    quick: bool
    all_methods: bool
    family: str | None
    only: list[str]
    finished: bool

    def plan(self, entry: Entry) -> list[Planned]:
        count = self.seeds or (1 if self.quick else entry.seeds)
        runs = entry.plan(Scale(tuple(range(count)), self.quick, self.all_methods, self.family))
        return [run for run in runs if not self.only or any(fnmatch(run.config.name, name) for name in self.only)]

    def command(self, entry: Entry) -> str:
        """The command that results state."""
        parts = [f"--seeds {self.seeds}" if self.seeds else "", "--quick" if self.quick else ""]
        parts += ["--all-methods" if self.all_methods else "", f"--family {self.family}" if self.family else ""]
        parts += [*(f"--only '{pattern}'" for pattern in self.only), "--finished" if self.finished else ""]
        return " ".join(("qafel paper", entry.name, *(part for part in parts if part)))

    def folder(self, entry: Entry, runs: list[Planned], found: int, out: Path) -> Path:
        folder = results_folder(out, entry.name, runs, self.quick, self.family)
        return beside_a_fuller_one(folder, found) if self.only else folder


def _plans(entries: list[Entry], asked: _Asked, name: str, runs: Path) -> dict[str, list[Planned]]:
    plans = {entry.name: asked.plan(entry) for entry in entries}
    if not any(plans.values()):
        raise ConfigError(f"--only {' '.join(asked.only)}: no run of {name} has such a name")
    if not asked.finished:
        return plans
    todo = {run.folder for run in unfinished([run for plan in plans.values() for run in plan], runs)}
    plans = {entry: [run for run in plan if run.folder not in todo] for entry, plan in plans.items()}
    if not any(plans.values()):
        raise ConfigError(f"no run of {name} is finished in {runs}: leave out --finished")
    return plans


def _missing(entries: list[Entry], plans: dict[str, list[Planned]], runs: Path, several: bool) -> dict[str, str]:
    """Entries whose data is not there, with the reason; a single one that was asked for is an error."""
    skipped = {}
    for entry in entries:
        todo = unfinished(plans[entry.name], runs)
        if (reason := why_missing(todo)) is None:
            continue
        if not several:
            raise UserError(f"{entry.name}: {reason}")
        skipped[entry.name] = reason
    return skipped


def _write(
    entries: list[Entry], plans: dict[str, list[Planned]], out: Path, asked: _Asked
) -> tuple[list[Outcome], dict[str, str]]:
    """Every entry's files; and, by entry, why there are none: runs are missing, or damaged."""
    outcomes, unwritten = [], {}
    for entry in entries:
        runs = plans[entry.name]
        try:
            measured = read_back(runs, out / "runs", asked.quick)
            folder = asked.folder(entry, runs, len(measured.pairs), out)
            outcomes.append(write_outputs(entry, measured, asked.command(entry), folder))
        except DataError as error:
            unwritten[entry.name] = str(error)
    return outcomes, unwritten


def _complain(what: str, of: dict[str, str]) -> None:
    for name, reason in of.items():
        errors.print(f"{what} {name}: {escape(reason)}", highlight=False, soft_wrap=True)


def _as_json(
    outcomes: list[Outcome], failed: dict[str, str], skipped: dict[str, str], unwritten: dict[str, str]
) -> object:
    entries = [
        json.loads((outcome.folder / "claims.json").read_text(encoding="utf-8")) | {"folder": str(outcome.folder)}
        for outcome in outcomes
    ]
    return {"entries": entries, "failed": failed, "skipped": skipped, "unwritten": unwritten}


def _show(outcome: Outcome) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), title=outcome.entry.title, title_justify="left")
    for heading in outcome.table.headings:
        table.add_column(heading.title, justify="left" if heading is outcome.table.headings[0] else "right")
    for row in outcome.table.shown():
        table.add_row(*row)
    console.print(table)
    for claim, verdict in outcome.verdicts:
        colour = _COLOURS[verdict.result]
        console.print(f"[{colour}]{verdict.result}[/] {claim.text}: {verdict.because}", highlight=False)
    if warning := outcome.source.of_other_versions():
        console.print(f"[yellow]note[/] {warning}", highlight=False)
    console.print(f"results in {outcome.folder}\n", highlight=False)


def _show_list(json_output: bool) -> None:
    counts = {entry.name: list(entry.plan(Scale(tuple(range(entry.seeds))))) for entry in ENTRIES.values()}
    tasks = {name: ", ".join(dict.fromkeys(run.config.task.name for run in runs)) for name, runs in counts.items()}
    if json_output:
        listed = [
            {"name": name, "title": entry.title, "paper": entry.paper, "tasks": tasks[name], "runs": len(counts[name])}
            for name, entry in ENTRIES.items()
        ]
        print(json.dumps(listed, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("entry", no_wrap=True)
    for heading in ("what it is", "in the paper", "task"):
        table.add_column(heading)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("time")
    for name, entry in ENTRIES.items():
        table.add_row(name, entry.title, entry.paper, tasks[name], str(len(counts[name])), entry.time)
    console.print(table)
    console.print("time: roughly, of three seeds on two cores, where no run is there yet", style="dim")
