"""Live progress of a sweep: all runs in one bar, and a line for each that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, final

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from qafel.cli.progress import errors, share_done
from qafel.experiments import Planned
from qafel.simulator import Row


@final
class SweepProgress:
    """Told by the sweep how it goes; the bar counts parts of runs, so that the time left is a fair guess."""

    def __init__(self, runs: Sequence[Planned], finished: int, quiet: bool = False) -> None:
        self._total, self._finished = len(runs), finished
        self._lines: dict[str, tuple[TaskID, float]] = {}
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=errors,
            disable=quiet,
        )
        self._all = self._bars.add_task("all runs", total=max(1, self._total), note="")

    def __enter__(self) -> Self:
        self._bars.start()
        self._advance()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def started(self, run: Planned) -> None:
        self._lines[run.folder] = self._bars.add_task(run.folder, total=1.0, note=""), 0.0

    def progressed(self, run: Planned, row: Row) -> None:
        line, _ = self._lines[run.folder]
        share = min(1.0, share_done(row, run.config.stop))
        self._lines[run.folder] = line, share
        self._bars.update(line, completed=share, note=f"{row.metric:.3g} after {row.uploads:,} uploads")
        self._advance()

    def ended(self, run: Planned, status: str) -> None:
        line, _ = self._lines.pop(run.folder)
        self._bars.remove_task(line)
        self._finished += 1
        if status != "finished":
            self._bars.console.print(f"{run.folder}: {status}", highlight=False)
        self._advance()

    def _advance(self) -> None:
        going = sum(share for _, share in self._lines.values())
        note = f"{self._finished} of {self._total} done"
        self._bars.update(self._all, completed=self._finished + going, note=note)
