"""`qafel paper`: one command per figure and table."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qafel.cli.progress import console, errors
from qafel.cli.sweep_progress import SweepProgress
from qafel.errors import ConfigError, UserError
from qafel.experiments import ENTRIES, Entry, Planned, Scale, entry_named
from qafel.experiments.measured import Missing
from qafel.experiments.outputs import Outcome, read_back, write_outputs
from qafel.experiments.requirements import why_missing
from qafel.experiments.sweep import Failure, sweep, unfinished, unique
from qafel.simulator.executor_choice import ExecutorName

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

    Finished runs are not run again; an interrupted one goes on where it was.

    Example: qafel paper qafel-vs-direct-qsgd --seeds 3
    """
    if name == "list":
        _show_list(json_output)
        return
    entries = list(ENTRIES.values()) if name == "all" else [entry_named(name)]
    plans = {entry.name: _plan(entry, seeds, quick, all_methods, family, only) for entry in entries}
    if not any(plans.values()):
        raise ConfigError(f"--only {' '.join(only or ())}: no run of {name} has such a name")
    if finished:
        plans = {entry: _finished(runs, out / "runs") for entry, runs in plans.items()}
        if not any(plans.values()):
            raise ConfigError(f"no run of {name} is finished in {out / 'runs'}: leave out --finished")
    entries = [entry for entry in entries if plans[entry.name]]
    skipped = _missing(entries, plans, out / "runs", several=name == "all")
    entries = [entry for entry in entries if entry.name not in skipped]
    planned = unique([run for entry in entries for run in plans[entry.name]])
    with SweepProgress(planned, len(planned) - len(unfinished(planned, out / "runs")), quiet) as progress:
        many = workers or os.cpu_count() or 1
        try:
            failures = sweep(planned, out / "runs", progress, executor=executor, workers=many, quick=quick)
        except KeyboardInterrupt:
            errors.print("interrupted: the same command goes on where this one was")
            raise
    options = _options(seeds, quick, all_methods, family, only) + (" --finished" if finished else "")
    outcomes, unwritten = _write(entries, plans, out, options, quick)
    if json_output:
        print(json.dumps(_as_json(outcomes, failures, skipped), indent=2, ensure_ascii=False))
    else:
        for outcome in outcomes:
            _show(outcome)
    for entry_name, reason in skipped.items():
        errors.print(f"[yellow]skipped[/] {entry_name}: {reason}", highlight=False, soft_wrap=True)
    for failure in failures:
        errors.print(f"[red]failed[/] {failure.run.folder}: {failure.reason}", highlight=False, soft_wrap=True)
    for entry_name, reason in unwritten.items():
        errors.print(f"[red]not written[/] {entry_name}: {reason}", highlight=False, soft_wrap=True)
    if failures or unwritten:
        raise typer.Exit(1)


def _plan(
    entry: Entry, seeds: int | None, quick: bool, all_methods: bool, family: str | None, only: list[str] | None
) -> list[Planned]:
    count = seeds or (1 if quick else entry.seeds)
    runs = list(entry.plan(Scale(tuple(range(count)), quick, all_methods, family)))
    return [run for run in runs if not only or any(fnmatch(run.config.name, pattern) for pattern in only)]


def _finished(runs: list[Planned], folder: Path) -> list[Planned]:
    todo = {run.folder for run in unfinished(runs, folder)}
    return [run for run in runs if run.folder not in todo]


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


def _options(seeds: int | None, quick: bool, all_methods: bool, family: str | None, only: list[str] | None) -> str:
    """The options that decide what is run, for the command that results state."""
    parts = [f"--seeds {seeds}" if seeds else "", "--quick" if quick else "", "--all-methods" if all_methods else ""]
    parts += [f"--family {family}" if family else "", *(f"--only '{pattern}'" for pattern in only or ())]
    return "".join(f" {part}" for part in parts if part)


def _write(
    entries: list[Entry], plans: dict[str, list[Planned]], out: Path, options: str, quick: bool
) -> tuple[list[Outcome], dict[str, str]]:
    """Every entry's files; and, by entry, why there are none."""
    outcomes, unwritten = [], {}
    for entry in entries:
        try:
            measured = read_back(plans[entry.name], out / "runs", quick)
            outcomes.append(write_outputs(entry, measured, f"qafel paper {entry.name}{options}", out / entry.name))
        except Missing as error:
            unwritten[entry.name] = str(error)
    return outcomes, unwritten


def _as_json(outcomes: list[Outcome], failures: list[Failure], skipped: dict[str, str]) -> object:
    return {
        "entries": [
            json.loads((outcome.folder / "claims.json").read_text(encoding="utf-8")) | {"folder": str(outcome.folder)}
            for outcome in outcomes
        ],
        "failed": {failure.run.folder: failure.reason for failure in failures},
        "skipped": skipped,
    }


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
    table = Table("entry", "what it is", "in the paper", "task", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("runs", justify="right")
    table.add_column("time")
    for name, entry in ENTRIES.items():
        table.add_row(name, entry.title, entry.paper, tasks[name], str(len(counts[name])), entry.time)
    console.print(table)
    console.print("time: roughly, of three seeds on two cores, where no run is there yet", style="dim")
