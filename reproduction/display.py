"""Tables of an entry as text, Markdown and CSV, and panels that several figures share."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np

from qafel.drawing.chart import Axis, Panel, Series
from qafel.runs import Run, Spread, mean_curve
from qafel.text import human_bytes, human_count, human_metric
from reproduction.comparison import Column, EntryRuns, Figure, everything, settled, to_target, traffic

Cell: TypeAlias = str | float | Spread
Across: TypeAlias = Literal["steps", "uploads", "bytes", "everything", "time"]
Show: TypeAlias = Callable[[float], str]


@final
@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a column, and the format of its numbers."""

    title: str
    show: Show = human_metric


@final
@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its title, its cell for the runs of one row, and the format of its numbers."""

    title: str
    cell: Callable[[EntryRuns], Cell]
    show: Show = human_metric

    @staticmethod
    def spread(title: str, figure: Figure | str, show: Show = human_metric) -> TableColumn:
        """A figure, or a number of the summary, with its spread over seeds."""
        return TableColumn(title, lambda runs: runs.spread(figure), show)

    @staticmethod
    def mean(title: str, figure: Figure | str, show: Show = human_metric) -> TableColumn:
        """The mean of a figure, or of a number of the summary, over seeds."""
        return TableColumn(title, lambda runs: runs.spread(figure).mean, show)


@final
@dataclass(frozen=True)
class Table:
    """Headings and rows. A cell is text, a number, or a figure over seeds."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @staticmethod
    def of(title: str, rows: Iterable[EntryRuns], *columns: TableColumn) -> Table:
        """A table with a row for each group of runs. The first column, `title`, has the method."""
        headings = (Heading(title), *(Heading(column.title, column.show) for column in columns))
        return Table(headings, tuple((runs.methods[0], *(column.cell(runs) for column in columns)) for runs in rows))

    def texts(self) -> list[list[str]]:
        """All cells as text, rounded."""
        return [[_text(cell, heading) for cell, heading in zip(row, self.headings, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """A Markdown table, with bars in cells escaped."""
        titles = [heading.title for heading in self.headings]
        numeric = [all(not isinstance(row[index], str) for row in self.rows) for index in range(len(titles))]
        lines = [titles, ["--:" if right else "---" for right in numeric], *self.texts()]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def csv(self, comments: Sequence[str] = ()) -> str:
        """CSV with all digits. A figure over seeds takes five columns. `comments` become lines with a leading #."""
        text = io.StringIO()
        text.writelines(f"# {line}\n" for comment in comments for line in comment.splitlines())
        columns: list[list[object]] = []
        for heading, cells in zip(self.headings, zip(*self.rows, strict=True), strict=True):
            columns.append([heading.title, *(cell.mean if isinstance(cell, Spread) else cell for cell in cells)])
            if any(isinstance(cell, Spread) for cell in cells):
                for part, name in (("std", "std"), ("min", "low"), ("max", "high"), ("seeds", "count")):
                    further = (getattr(cell, name) if isinstance(cell, Spread) else "" for cell in cells)
                    columns.append([f"{heading.title}, {part}", *further])
        csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
        return text.getvalue()


def _text(cell: Cell, heading: Heading) -> str:
    if isinstance(cell, str):
        return cell
    return (cell if isinstance(cell, Spread) else Spread.of((cell,))).text(heading.show)


def three_digits(value: float) -> str:
    return f"{value:.3f}"


END_COLUMNS = (
    TableColumn.spread("final f(x) − f*", settled),
    TableColumn.mean("uploads", "uploads", human_count),
    TableColumn.mean("uploaded", "upload_bytes_total", human_bytes),
    TableColumn.mean("broadcast", "broadcast_bytes_total", human_bytes),
)
"""The final level and the traffic of a method."""
ACROSS: Mapping[Across, tuple[str, Axis, Callable[[Run], Column]]] = {
    "steps": ("by server steps", Axis("server steps", unit="count"), lambda run: run.column("version")),
    "uploads": ("by uploads", Axis("uploads", unit="count"), lambda run: run.column("uploads")),
    "bytes": ("by bytes", Axis("bytes uploaded and broadcast", log=True, unit="B"), traffic),
    "everything": ("by all bytes", Axis("bytes with downloads", log=True, unit="B"), everything),
    "time": ("by virtual time", Axis("virtual time", log=True), lambda run: run.column("virtual_time")),
}
"""The x axes of curves: the panel's title, the axis, and a run's values on it."""


def curve(label: str, runs: Sequence[Run], across: Across) -> Series:
    """The mean metric of runs, with its range over seeds. A logarithmic axis leaves out the start of runs."""
    _, axis, values = ACROSS[across]
    first = 1 if axis.log else 0
    found = mean_curve([values(run)[first:] for run in runs], [run.column("metric")[first:] for run in runs])
    return Series(label, *found)


def curve_panels(measured: EntryRuns, keys: Sequence[Across]) -> tuple[Panel, ...]:
    """f(x) − f* on a logarithmic axis against each of `keys`. The first panel names methods that diverged."""
    gone = [group.methods[0] for group in measured.by_method() if any(run.diverged for run in group.runs())]
    start = max(float(run.column("metric")[0]) for run in measured.runs())
    panels: list[Panel] = []
    for key in keys:
        series = [curve(method, measured.runs(method), key) for method in measured.methods]
        # A method that diverged before its second evaluation has an empty curve.
        values = np.concatenate([one.y for one in series])
        values = values[np.isfinite(values)]
        limits = (float(values.min()) / 1.5, 1.5 * start) if values.size else None
        note = f"Stopped being finite: {', '.join(gone)}." if gone and not panels else ""
        title, x, _ = ACROSS[key]
        panels.append(Panel(key, title, x, Axis("f(x) − f*", log=True, limits=limits), tuple(series), note))
    return tuple(panels)


def accuracy_panel(measured: EntryRuns, key: str, title: str, across: Across = "uploads", **at: float) -> Panel:
    """Accuracy at the place `at` in the sweep, with the target."""
    shown, (_, x, _) = measured.of(None, **at), ACROSS[across]
    series = [curve(method, shown.runs(method), across) for method in measured.methods if shown.has(method)]
    if math.isfinite(target := shown.runs()[0].number("target")):
        reached = np.concatenate([one.x for one in series])
        ends = np.array([float(reached.min()), float(reached.max())])
        series.append(Series("target", ends, np.full(2, target), kind="reference"))
    return Panel(key, title, x, Axis("accuracy"), tuple(series))


def points(label: str, x: Sequence[float], spreads: Sequence[Spread]) -> Series:
    """Figures over seeds as points with bars, without unknown and infinite ones."""
    kept = [(place, spread) for place, spread in zip(x, spreads, strict=True) if math.isfinite(spread.mean)]
    mean, low, high = (np.array([getattr(spread, name) for _, spread in kept]) for name in ("mean", "low", "high"))
    return Series(label, np.array([place for place, _ in kept]), mean, low, high, kind="line-and-points")


def not_empty(panels: Iterable[Panel]) -> list[Panel]:
    """The panels without empty series, and without panels that have no series left."""
    found = [replace(panel, series=tuple(one for one in panel.series if len(one.x))) for panel in panels]
    return [panel for panel in found if panel.series]


def target_panels(measured: EntryRuns, key: str, x: Axis) -> list[Panel]:
    """Uploads and bytes to the target against `key`. A panel without points is left out."""
    panels, methods, (left, right) = [], measured.methods, x.limits or (0.0, 0.0)
    # A small shift keeps the bars of equal methods apart.
    shifts = [0.012 * (right - left) * (place - (len(methods) - 1) / 2) for place in range(len(methods))]
    for column, label in (
        ("uploads", "uploads"),
        ("upload_bytes_total", "bytes uploaded"),
        ("broadcast_bytes_total", "bytes broadcast"),
    ):
        series = []
        for group, shift in zip(measured.by_method(), shifts, strict=True):
            places = group.places(key)
            spreads = [group.of(None, **{key: place}).spread(to_target(column)) for place in places]
            series.append(points(group.methods[0], [place + shift for place in places], spreads))
        if shown := tuple(one for one in series if len(one.x)):
            panels.append(Panel(column.replace("_", "-"), label, x, _target_axis(column, label, shown), shown))
    return panels


def _target_axis(column: str, label: str, series: Sequence[Series]) -> Axis:
    """A linear axis from zero, or a logarithmic one if methods differ by a factor above 30."""
    values = np.concatenate([one.y for one in series])
    most = max(float(one.high.max()) for one in series if one.high is not None)
    wide = bool(values.max() > 30 * values.min())
    unit: Literal["count", "B"] = "count" if column == "uploads" else "B"
    return Axis(f"{label} to the target", wide, unit, limits=None if wide else (0.0, 1.1 * most))
