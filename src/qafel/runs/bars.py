"""Progress bars of runs, on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from qafel.config import Limits
from qafel.errors import UserError
from qafel.runs.live import Listener, Summary
from qafel.runs.progress import Row
from qafel.text import counted, human_bytes

errors = Console(stderr=True)
"""The console on stderr, for bars and the messages beside them."""
_WIDE = 110  # columns of a terminal with room for details


@final
class LiveProgress(Progress):
    """Bars on a terminal. A user's error removes them, so that only its message stays."""

    def __exit__(self, *error: Any) -> None:
        if any(isinstance(part, UserError) for part in error):
            self.live.transient = True
            self.live.stop()
        else:
            self.stop()


def has_room(console: Console) -> bool:
    """Return whether the terminal is wide enough for details."""
    return console.width >= _WIDE


def bar_column(console: Console) -> BarColumn:
    """Return the column of the bar, short on a narrow terminal."""
    return BarColumn(bar_width=24 if has_room(console) else 8, table_column=Column(no_wrap=True))


def short_name(name: str, console: Console) -> str:
    """Shorten a run's name to the terminal. Its end stays, which has the settings and the seed."""
    most = 60 if has_room(console) else 20
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


@contextmanager
def progress_bar(name: str, limits: Limits, metric_name: str) -> Iterator[Listener]:
    """Show a bar for the run `name` and yield the listener that updates it.

    A notebook shows HTML: Rich's bars show nothing there without ipywidgets. On 80 columns the bar is short, without
    a rate.
    """
    if errors.is_jupyter:
        from IPython.display import HTML, display  # noqa: PLC0415  (a notebook has it)

        def html(share: float, words: str) -> Any:
            bar = f'<progress max="1" value="{min(share, 1.0):.3f}"></progress>'
            return HTML(f"{bar} <b>{escape(name)}</b> {escape(words)}")

        place: Any = display(html(0.0, ""), display_id=True)
        yield RunBar(
            lambda share, steps, note: place.update(html(share, f"{steps} · {note}")),
            limits,
            metric_name,
            every_s=0.2,
            rate=False,
        )
        return
    amount, note = TextColumn("{task.fields[amount]}"), TextColumn("{task.fields[note]}")
    left = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), bar_column(errors), amount, note, left)
    with LiveProgress(*columns, console=errors) as bars:
        bar = bars.add_task(short_name(name, errors), total=1000, note="", amount="")

        def show(share: float, steps: str, note: str) -> None:
            bars.update(bar, completed=1000 * share, note=note, amount=steps)

        yield RunBar(show, limits, metric_name, every_s=0.05, rate=has_room(errors))


@final
class RunBar:
    """A listener that shows a run's progress, at most once in `every_s`.

    `show` draws a bar: the share done, the steps and a note as text.
    """

    def __init__(
        self, show: Callable[[float, str, str], None], limits: Limits, metric_name: str, every_s: float, rate: bool
    ) -> None:
        self._show, self._limits, self._metric_name = show, limits, metric_name
        self._every_s, self._rate = every_s, rate
        self._shown_s = -1.0

    def on_row(self, row: Row) -> None:
        if row.wall_s - self._shown_s < self._every_s and row.version:
            return
        self._shown_s = row.wall_s
        total = human_bytes(row.total_bytes)
        rate = f" · {row.uploads / row.wall_s:,.0f} updates/s" if row.wall_s and self._rate else ""
        note = f"{self._metric_name} {row.metric:.3g} · {total}{rate}"
        self._show(share_at(row, self._limits), counted(row.version, "step"), note)

    def on_end(self, summary: Summary | None) -> None:
        if summary is not None:
            final = "–" if summary["metric_final"] is None else f"{summary['metric_final']:.3g}"
            note = f"{self._metric_name} {final} · {summary['status']}"
            self._show(1.0, counted(summary["server_steps"], "step"), note)


def share_at(row: Row, limits: Limits) -> float:
    """Return the run's progress at `row` towards the nearest of its `limits`, from 0 to 1."""
    return limits.share_done(row.version, row.uploads, row.total_bytes, row.virtual_time)
