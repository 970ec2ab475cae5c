"""Live progress of a run on the terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from qafel.cli.units import human_bytes
from qafel.config import StopConfig
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
            TextColumn("{task.fields[amount]}"),
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

    def bar(self, description: str, stop: StopConfig, metric_name: str) -> _Bar:
        return _Bar(self._bars, description, stop, metric_name)


@final
class _Bar:
    """What a run calls at every evaluation; the screen is touched at most some twenty times a second."""

    def __init__(self, bars: Progress, description: str, stop: StopConfig, metric_name: str) -> None:
        self._bars = bars
        self._stop = stop
        self._bar = bars.add_task(description, total=1000, note="", amount="")
        self._metric_name = metric_name
        self._shown = -1.0

    def __call__(self, row: Row) -> None:
        if row.wall_s - self._shown < 0.05 and row.version:
            return
        self._shown = row.wall_s
        sent = human_bytes(row.upload_bytes_total + row.broadcast_bytes_total)
        rate = row.uploads / row.wall_s if row.wall_s else 0.0
        note = f"{self._metric_name} {row.metric:.3g} · {sent} · {rate:,.0f} updates/s"
        self._bars.update(
            self._bar, completed=1000 * share_done(row, self._stop), note=note, amount=f"{row.version:,} steps"
        )

    def done(self, note: str) -> None:
        self._bars.update(self._bar, completed=1000, note=note)


def share_done(row: Row, stop: StopConfig) -> float:
    """How far a run is towards the nearest of its limits."""
    traffic = row.upload_bytes_total + row.broadcast_bytes_total
    reached = (row.version, row.uploads, row.virtual_time, traffic)
    limits = (stop.server_steps, stop.uploads, stop.virtual_time, stop.traffic_bytes)
    return max(now / limit for now, limit in zip(reached, limits, strict=True) if limit is not None)
