"""Live progress of a run on the terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from qafel.cli.units import human_bytes
from qafel.simulator import Row

console = Console()
errors = Console(stderr=True)


@final
class RunProgress:
    """One bar per run: steps, rate, metric and bytes so far."""

    def __init__(self, quiet: bool = False) -> None:
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=errors,
            disable=quiet,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def bar(self, description: str, server_steps: int, metric_name: str) -> _Bar:
        return _Bar(self._bars, description, server_steps, metric_name)


@final
class _Bar:
    """What a run calls at every evaluation; the screen is touched at most some twenty times a second."""

    def __init__(self, bars: Progress, description: str, server_steps: int, metric_name: str) -> None:
        self._bars = bars
        self._bar = bars.add_task(description, total=server_steps, note="")
        self._metric_name = metric_name
        self._shown = -1.0

    def __call__(self, row: Row) -> None:
        if row.wall_s - self._shown < 0.05 and row.version:
            return
        self._shown = row.wall_s
        sent = human_bytes(row.upload_bytes_total + row.broadcast_bytes_total)
        rate = row.uploads / row.wall_s if row.wall_s else 0.0
        note = f"{self._metric_name} {row.metric:.3g} · {sent} · {rate:,.0f} updates/s"
        self._bars.update(self._bar, completed=row.version, note=note)

    def done(self, server_steps: int, note: str) -> None:
        self._bars.update(self._bar, completed=server_steps, note=note)
