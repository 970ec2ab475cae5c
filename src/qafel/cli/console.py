"""The terminal: options that commands share, where results and errors are printed, live progress of runs and sweeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Self, final

import typer
from rich.console import Console
from rich.progress import ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from qafel.runs import bars
from qafel.runs.bars import LiveProgress, bar_column, share_at, short_name
from qafel.runs.progress import Row
from qafel.search.runner import RunSpec
from qafel.text import counted, human_seconds

console = Console()
errors = bars.errors

RecipeName = Annotated[str, typer.Argument(help="A recipe's name (`qafel recipes`) or a TOML file.")]
RecipeNames = Annotated[
    list[str], typer.Argument(metavar="RECIPE", help="A recipe's name (`qafel recipes`) or a TOML file.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a setting; may be repeated.")
]
StartOption = Annotated[
    Path | None, typer.Option("--start-from", metavar="MODEL", help="Begin from this model.safetensors.")
]
TRACKERS = "tensorboard|mlflow|wandb|none"
TrackOption = Annotated[
    list[str] | None, typer.Option("--track", metavar=TRACKERS, help="Where else to show it; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def with_start(settings: Sequence[str] | None, start_from: Path | None) -> list[str]:
    """What `--set` and `--start-from` say, as settings."""
    start = [] if start_from is None else [f"start.model={json.dumps(str(start_from), ensure_ascii=False)}"]
    return [*(settings or ()), *start]


def print_json(value: object) -> None:
    """What `--json` prints."""
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def figures_table(title: str, *headings: str, words: int = 1) -> Table:
    """An empty table without lines: the first `words` columns hold text, the others numbers; no cell is wrapped."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < words else "right", no_wrap=True)
    return table


class LiveBars:
    """Progress bars on a terminal, shown while the context lasts; whoever has something to show adds its own."""

    def __init__(self, *columns: ProgressColumn, quiet: bool, console: Console = errors) -> None:
        """Bars that begin with a spinner and have these `columns`; `quiet` shows none."""
        self.bars = LiveProgress(SpinnerColumn(), *columns, console=console, disable=quiet)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bars.__exit__(*error)


@final
@dataclass(slots=True)
class _Line:
    """A run that goes on: how far it is, and how far it was when this sweep took it up."""

    run: RunSpec
    task: TaskID
    began: float | None = None
    share: float = 0.0

    @property
    def done(self) -> float:
        """The work that this sweep did in it."""
        return (self.share - (self.began or 0.0)) * self.run.work


@final
class SweepProgress(LiveBars):
    """All runs of a sweep in one bar, and a line for each run that goes on.

    The bar counts work, not runs, and only what this sweep has to do: so the time left is a fair guess even where
    runs differ a hundredfold, and where some go on from a checkpoint. Without a terminal each run's end is a line.
    """

    def __init__(
        self,
        runs: Sequence[RunSpec],
        todo: Sequence[RunSpec],
        quiet: bool = False,
        console: Console = errors,
        clock: Callable[[], float] = monotonic,
        then: Callable[[Sequence[RunSpec]], None] | None = None,
    ) -> None:
        """Progress of a sweep of `runs`, of which `todo` are not finished yet; `quiet` shows nothing.

        `then` is called with each run that has come to its end.
        """
        self._then = then
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
        if line.began is None:  # what a resumed run brings with it is not work of this sweep
            line.began = line.share
            self._work -= line.began * run.work
        self.bars.update(
            line.task, completed=line.share, note=f"{row.metric:.3g} after {counted(row.uploads, 'upload')}"
        )
        self._advance()

    def noted(self, run: RunSpec, text: str) -> None:
        self._print(f"{run.folder}: {text}")

    def ended(self, run: RunSpec, status: str) -> None:
        line = self._lines.pop(run.folder)
        self.bars.remove_task(line.task)
        self._finished += 1
        if status == "finished" and line.began is not None and not run.config.stop.at_target:
            line.share = 1.0  # its last row may not have been seen
        self._done += line.done
        self._work -= (1.0 - line.share) * run.work  # not done, and not to be done
        if status != "finished" or self._every_end:
            self._print(f"{run.folder}: {status} ({self._finished} of {self._total})")
        self._advance()
        if self._then is not None:
            self._then([run])

    def seconds_left(self) -> float | None:
        """As long as the rest takes at the pace so far; None before there is one."""
        done = self._done_by_now()
        return (self._clock() - self._start) * (self._work - done) / done if done > 0 else None

    def _done_by_now(self) -> float:
        return self._done + sum(line.done for line in self._lines.values())

    def _advance(self) -> None:
        note = f"{self._finished} of {self._total} done"
        if self._finished == self._total:  # also where no work was done, or its sum is a hair off
            self.bars.update(self._all, total=1.0, completed=1.0, note=note)
            return
        if (left := self.seconds_left()) is not None:
            note += f", {self._word} {human_seconds(left)} left"
        self.bars.update(self._all, total=max(self._work, 1e-9), completed=self._done_by_now(), note=note)

    def _print(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False, soft_wrap=True)
