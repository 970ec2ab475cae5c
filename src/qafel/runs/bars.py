"""A run's bar while it goes on, on a terminal or in a notebook: a listener, whoever drives the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from qafel.config import Limits
from qafel.errors import UserError
from qafel.runs.listeners import Listener
from qafel.runs.progress import Row
from qafel.runs.summary import Summary
from qafel.text import counted, human_bytes

errors = Console(stderr=True)
"""The terminal beside results: bars, and what is said while they are shown."""
_WIDE = 110  # columns of a terminal, from which on there is room for more than the least


@final
class LiveProgress(Progress):
    """Bars on a terminal. What is refused leaves its sentence alone, and no bar that has not moved."""

    def __exit__(self, *error: Any) -> None:
        if any(isinstance(part, UserError) for part in error):
            self.live.transient = True
            self.live.stop()
        else:
            self.stop()


def is_wide(console: Console) -> bool:
    """Whether there is room for more than the least."""
    return console.width >= _WIDE


def bar_column(console: Console) -> BarColumn:
    """The bar itself, short on a narrow terminal."""
    return BarColumn(bar_width=24 if is_wide(console) else 8, table_column=Column(no_wrap=True))


def short_name(name: str, console: Console) -> str:
    """A run's name as there is room for it: its beginning, and its end, where settings and seed stand."""
    most = 60 if is_wide(console) else 20
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


@contextmanager
def shown(name: str, limits: Limits, metric_name: str) -> Iterator[Listener]:
    """A listener that shows the run `name`, on the terminal or in the notebook."""
    if errors.is_jupyter:
        yield NotebookBar(name, limits, metric_name)
        return
    with run_bars() as bars:
        yield RunBar(bars, name, limits, metric_name)


def run_bars() -> Progress:
    """Room for the bars of runs, each filled by a `RunBar`: steps, metric, bytes, rate so far.

    On 80 columns the bar is short and there is no rate; nothing is cut but a long name.
    """
    amount, note = TextColumn("{task.fields[amount]}"), TextColumn("{task.fields[note]}")
    left = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), bar_column(errors), amount, note, left)
    return LiveProgress(*columns, console=errors)


@final
class RunBar:
    """A listener that shows a run; the screen is touched at most some twenty times a second."""

    def __init__(self, bars: Progress, description: str, limits: Limits, metric_name: str) -> None:
        """Add a bar to `bars`; `description` and `metric_name` are shown, `limits` say how far the run is."""
        self._bars, self._limits, self._metric_name = bars, limits, metric_name
        self._bar = bars.add_task(short_name(description, bars.console), total=1000, note="", amount="")
        self._shown = -1.0

    def on_row(self, row: Row) -> None:
        if row.wall_s - self._shown < 0.05 and row.version:
            return
        self._shown = row.wall_s
        note = note_of(row, self._metric_name)
        if row.wall_s and is_wide(self._bars.console):
            note += f" · {row.uploads / row.wall_s:,.0f} updates/s"
        share = share_at(row, self._limits)
        self._bars.update(self._bar, completed=1000 * share, note=note, amount=counted(row.version, "step"))

    def on_end(self, summary: Summary | None) -> None:
        if summary is not None:
            note = last_note(summary, self._metric_name)
            self._bars.update(self._bar, completed=1000, note=note, amount=counted(summary["server_steps"], "step"))


def share_at(row: Row, limits: Limits) -> float:
    """How far a run at `row` is towards the nearest of its `limits`, from 0 to 1."""
    traffic = row.upload_bytes_total + row.broadcast_bytes_total
    return limits.share_done(row.version, row.uploads, traffic, row.virtual_time)


def note_of(row: Row, metric_name: str) -> str:
    """The metric and the traffic so far."""
    return f"{metric_name} {row.metric:.3g} · {human_bytes(row.upload_bytes_total + row.broadcast_bytes_total)}"


def last_note(summary: Summary, metric_name: str) -> str:
    """The last metric, and how the run ended."""
    final = "–" if summary["metric_final"] is None else f"{summary['metric_final']:.3g}"
    return f"{metric_name} {final} · {summary['status']}"


@final
class NotebookBar:
    """A listener that shows a run below a notebook's cell, in one place, some five times a second.

    It needs IPython alone. Rich's bars would need ipywidgets there, and show nothing without them.
    """

    def __init__(self, name: str, limits: Limits, metric_name: str) -> None:
        from IPython.display import HTML, display  # noqa: PLC0415  (there is one where there is a notebook)

        self._name, self._limits, self._metric_name = name, limits, metric_name
        self._shown = -1.0
        self._html: Any = HTML
        self._place: Any = display(HTML(self._bar(0.0, "")), display_id=True)

    def on_row(self, row: Row) -> None:
        if row.wall_s - self._shown >= 0.2 or not row.version:
            self._shown = row.wall_s
            words = f"{counted(row.version, 'step')} · {note_of(row, self._metric_name)}"
            self._place.update(self._html(self._bar(share_at(row, self._limits), words)))

    def on_end(self, summary: Summary | None) -> None:
        if summary is not None:
            words = f"{counted(summary['server_steps'], 'step')} · {last_note(summary, self._metric_name)}"
            self._place.update(self._html(self._bar(1.0, words)))

    def _bar(self, share: float, words: str) -> str:
        bar = f'<progress max="1" value="{min(share, 1.0):.3f}"></progress>'
        return f"{bar} <b>{escape(self._name)}</b> {escape(words)}"
