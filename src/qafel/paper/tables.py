"""A table for people and for programs: Markdown and HTML with rounded figures, CSV with all digits."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias, final

from qafel.paper.measured import Spread
from qafel.text import UNKNOWN, human_bytes, human_count, human_metric

Cell: TypeAlias = str | float | Spread


Show: TypeAlias = Callable[[float], str]


@final
@dataclass(frozen=True, slots=True)
class Heading:
    """A column: its title, and how its numbers are shown."""

    title: str
    show: Show = human_metric


def metric_heading(title: str) -> Heading:
    return Heading(title)


def bytes_heading(title: str) -> Heading:
    return Heading(title, human_bytes)


def count_heading(title: str) -> Heading:
    return Heading(title, human_count)


def ratio_heading(title: str) -> Heading:
    return Heading(title, lambda value: f"{value:.3g}×")


@final
@dataclass(frozen=True)
class Table:
    """Headings and rows; a cell is text, a number, or a figure over seeds."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def shown(self) -> list[list[str]]:
        """All cells as text."""
        return [[_shown(cell, heading) for cell, heading in zip(row, self.headings, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """A Markdown table; a bar within a cell would end it, so it is escaped."""
        titles = [heading.title for heading in self.headings]
        numeric = [all(not isinstance(row[index], str) for row in self.rows) for index in range(len(titles))]
        lines = [titles, ["--:" if right else "---" for right in numeric], *self.shown()]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(heading.title)}</th>' for heading in self.headings)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
            for first, *rest in self.shown()
        )
        table = f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        return f'<div class="scroll" tabindex="0">{table}</div>'

    def csv(self, comments: Sequence[str] = ()) -> str:
        """CSV, with comments in lines that begin with #; a figure over seeds takes five columns."""
        text = io.StringIO()
        text.writelines(f"# {line}\n" for comment in comments for line in comment.splitlines())
        writer = csv.writer(text, lineterminator="\n")
        spread = [any(isinstance(row[index], Spread) for row in self.rows) for index in range(len(self.headings))]
        writer.writerow(
            [name for heading, wide in zip(self.headings, spread, strict=True) for name in _names(heading.title, wide)]
        )
        for row in self.rows:
            writer.writerow([value for cell, wide in zip(row, spread, strict=True) for value in _values(cell, wide)])
        return text.getvalue()


def _shown(cell: Cell, heading: Heading) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Spread):
        mean = _number(cell.mean, heading.show)
        return f"{mean} ± {heading.show(cell.std)}" if cell.count > 1 and math.isfinite(cell.std) else mean
    return _number(cell, heading.show)


def _number(value: float, show: Show) -> str:
    if math.isnan(value):
        return UNKNOWN
    return show(value) if math.isfinite(value) else "∞"


def _names(title: str, wide: bool) -> list[str]:
    return [title, f"{title}, std", f"{title}, min", f"{title}, max", f"{title}, seeds"] if wide else [title]


def _values(cell: Cell, wide: bool) -> list[str | float]:
    if not wide:
        return [cell] if not isinstance(cell, Spread) else [cell.mean]
    if isinstance(cell, Spread):
        return [cell.mean, cell.std, cell.low, cell.high, cell.count]
    return [cell, "", "", "", ""]
