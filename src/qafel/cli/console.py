"""Terminal output: options that commands share, results, errors, live progress of runs and sweeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Self, final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from qafel.cli import advanced, output
from qafel.runs import bars
from qafel.runs.bars import LiveProgress, bar_column, share_at, short_name
from qafel.runs.progress import Row
from qafel.search.runner import RunSpec, Watcher
from qafel.text import counted, human_seconds

console = Console()
errors = bars.errors

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name (`qafel recipes`) or a TOML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: stop.uploads=500. Repeatable."),
]
StartOption = Annotated[
    Path | None, typer.Option("--start-from", metavar="FILE", help="Start from this model.safetensors.")
]
TrackOption = Annotated[
    list[str] | None,
    output("--track", metavar="TRACKER", help="Send metrics to tensorboard, mlflow or wandb. Repeatable."),
]
WorkersOption = Annotated[int | None, advanced(metavar="N", min=1, help="Worker processes. Default: one per core.")]
JsonOption = Annotated[bool, output("--json", help="Print the result as JSON.")]
QuietOption = Annotated[bool, output("--quiet", "-q", help="Hide progress.")]


def with_start(settings: Sequence[str] | None, start_from: Path | None) -> list[str]:
    """The values of `--set` and `--start-from` as settings."""
    start = [] if start_from is None else [f"start.model={json.dumps(str(start_from), ensure_ascii=False)}"]
    return [*(settings or ()), *start]


def print_json(value: object) -> None:
    """Print the result for `--json`."""
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def print_plain(text: str, to: Console = console) -> None:
    """Print text unchanged: no markup, no colors, no line breaks."""
    to.print(text, highlight=False, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning."""
    errors.print(f"[yellow]warning:[/] {escape(text)}", highlight=False)


def figures_table(
    title: str, *headings: str, rows: Iterable[Sequence[str]] = (), words: int = 1, fold: bool = False
) -> Table:
    """A table without lines. The first `words` columns hold text, the others numbers.

    No cell wraps, except in the first column if `fold`.
    """
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < words else "right", no_wrap=True)
    if fold:
        table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for row in rows:
        table.add_row(*row)
    return table


def print_paths(**paths: object) -> None:
    """Print where results are, a line each; None is left out."""
    for name, path in paths.items():
        if path is not None:
            print_plain(f"{name:7} {path}")


class LiveBars:
    """A context that shows progress bars on a terminal. Callers add tasks to `bars`."""

    def __init__(self, *columns: ProgressColumn, quiet: bool, console: Console = errors) -> None:
        """Each bar starts with a spinner, followed by `columns`. `quiet` hides the bars."""
        self.bars = LiveProgress(SpinnerColumn(), *columns, console=console, disable=quiet)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bars.__exit__(*error)


@final
@dataclass(slots=True)
class _Line:
    """An active run: its progress now, and when this sweep started or resumed it."""

    run: RunSpec
    task: TaskID
    began: float | None = None
    share: float = 0.0

    @property
    def done(self) -> float:
        """The work that this sweep did for the run."""
        return (self.share - (self.began or 0.0)) * self.run.work


@final
class SweepProgress(LiveBars, Watcher):
    """One bar for all runs of a sweep, and a line for each active run.

    The bar counts work that this sweep has to do. The estimate of the time left therefore holds if runs differ in
    length, or resume from a checkpoint. Without a terminal, each run prints a line at its end.
    """

    def __init__(
        self,
        runs: Sequence[RunSpec],
        todo: Sequence[RunSpec],
        quiet: bool = False,
        console: Console = errors,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Show a sweep of `runs`; `todo` are those not finished yet. `quiet` hides everything."""
        columns = (TextColumn("{task.description}"), bar_column(console), TextColumn("{task.fields[note]}"))
        super().__init__(*columns, TimeElapsedColumn(), quiet=quiet, console=console)
        self._total, self._finished = len(runs), len(runs) - len(todo)
        self._work, self._done = sum(run.work for run in todo), 0.0
        self._lines: dict[str, _Line] = {}
        self._clock, self._start = clock, clock()
        self._word = "at most" if any(run.config.stop.at_target for run in todo) else "about"
        self._every_end = not quiet and not console.is_terminal
        self._all = self.bars.add_task("all runs", note="")
        self._advance()

    def started(self, run: RunSpec) -> None:
        self._lines[run.folder] = _Line(
            run, self.bars.add_task(short_name(run.folder, self.bars.console), total=1.0, note="")
        )

    def progressed(self, run: RunSpec, row: Row) -> None:
        line = self._lines[run.folder]
        line.share = min(1.0, share_at(row, run.config.stop))
        if line.began is None:  # earlier work is not work of this sweep
            line.began = line.share
            self._work -= line.began * run.work
        self.bars.update(
            line.task, completed=line.share, note=f"{row.metric:.3g} after {counted(row.uploads, 'upload')}"
        )
        self._advance()

    def noted(self, run: RunSpec, text: str) -> None:
        print_plain(f"{run.folder}: {text}", self.bars.console)

    def ended(self, run: RunSpec, status: str) -> None:
        line = self._lines.pop(run.folder)
        self.bars.remove_task(line.task)
        self._finished += 1
        if status == "finished" and line.began is not None and not run.config.stop.at_target:
            line.share = 1.0  # the last row may not have arrived
        self._done += line.done
        self._work -= (1.0 - line.share) * run.work  # this work is skipped
        if status != "finished" or self._every_end:
            print_plain(f"{run.folder}: {status} ({self._finished} of {self._total})", self.bars.console)
        self._advance()

    def seconds_left(self) -> float | None:
        """Estimated seconds for the remaining work at the pace so far; None before any progress."""
        done = self._done_by_now()
        return (self._clock() - self._start) * (self._work - done) / done if done > 0 else None

    def _done_by_now(self) -> float:
        return self._done + sum(line.done for line in self._lines.values())

    def _advance(self) -> None:
        note = f"{self._finished} of {self._total} done"
        if self._finished == self._total:  # also if there was no work, or rounding errors remain
            self.bars.update(self._all, total=1.0, completed=1.0, note=note)
            return
        if (left := self.seconds_left()) is not None:
            note += f", {self._word} {human_seconds(left)} left"
        self.bars.update(self._all, total=max(self._work, 1e-9), completed=self._done_by_now(), note=note)
