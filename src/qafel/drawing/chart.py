"""A chart as values: panels of curves and bars, and their styles. `printed` and `page` draw them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]
Ends: TypeAlias = tuple[float, float]
Scale: TypeAlias = Literal["linear", "log"]
Unit: TypeAlias = Literal["", "B", "count", "integer", "%"]
Symbol: TypeAlias = Literal["circle", "circle-open", "x-thin-open", "triangle-up", "triangle-down"]

# Okabe and Ito's palette for colour-blind readers, without yellow and black: they vanish on white or dark pages.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
BLUE, RED, GREY = PALETTE[0], PALETTE[1], PALETTE[6]
DASHES = {"solid": (), "dash": (5, 2.5), "dot": (1.5, 1.5), "dashdot": (5, 1.5, 1, 1.5)}
"""Plotly's names for dashes, with the lengths of strokes and gaps for other renderers."""


@final
@dataclass(frozen=True)
class Style:
    """Label, colour and dashes of a legend entry; `index` is its position."""

    label: str
    colour: str
    dash: str = "solid"
    index: int = 0


@final
@dataclass(frozen=True)
class Series:
    """A curve or a set of points. `low` and `high` become a band, or error bars on points."""

    label: str
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    kind: Literal["curve", "steps", "points", "line-and-points", "reference", "rings", "marks"] = "curve"
    """Steps hold each value until the next. A reference is a dashed grey line; rings mark points of other series on it.
    Marks are points with a `symbol`; the page shows only their `hover` text."""
    hover: tuple[str, ...] = ()
    """Text for each point, shown on the page only."""
    symbol: Symbol = "circle"
    shade: Values | None = None
    """A colour for each mark instead of the style's, from 0 (dark) to 1 (bright)."""

    @property
    def is_reference(self) -> bool:
        return self.kind in ("reference", "rings")


@final
@dataclass(frozen=True)
class Bars:
    """Bars of one label: their positions and lengths."""

    label: str
    at: Values
    length: Values
    hover: tuple[str, ...] = ()
    text: str = ""
    """Text after the end of the last bar."""
    opacity: float = 1.0


@final
@dataclass(frozen=True)
class Axis:
    """An axis: label, scale, limits and ticks."""

    label: str
    log: bool = False
    unit: Unit = ""
    """Bytes and counts get prefixes (k, M, G); % shows a share of 1."""
    ticks: tuple[float, ...] = ()
    limits: Ends | None = None
    log_limits: Ends | None = None
    """The limits on a logarithmic scale, if they differ."""
    names: tuple[str, ...] = ()
    """Tick labels instead of numbers, at 0, 1, 2, …"""
    fixed: bool = False
    """A fixed axis keeps its scale. Readers of the page can switch other axes that have positive values."""

    @property
    def scale(self) -> Scale:
        return "log" if self.log else "linear"


@final
@dataclass(frozen=True)
class Panel:
    """Curves and bars on a pair of axes."""

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    note: str = ""
    bars: tuple[Bars, ...] = ()
    arrangement: Literal["grouped", "stacked", "rows"] = "grouped"
    """Vertical bars are grouped side by side, or stacked. Rows are horizontal bars end to end, named by `y`."""
    targets: tuple[float, ...] = ()
    """Target values of y, each a dashed line across the panel."""
    wide: bool = False
    """Whether the panel takes the full width of the page."""


def styles_for(labels: Sequence[str], grey: Sequence[str] = ()) -> tuple[Style, ...]:
    """Return a style for every label: colours in order, then the same colours dashed.

    Labels in `grey` are references: grey and dashed.
    """
    dashes = tuple(DASHES)
    return tuple(
        Style(label, GREY, "dash", index)
        if label in grey
        else Style(label, PALETTE[index % len(PALETTE)], dashes[index // len(PALETTE) % len(dashes)], index)
        for index, label in enumerate(labels)
    )


def panel_styles(panels: Sequence[Panel]) -> tuple[Style, ...]:
    """Return a style for every label of the panels. References are grey and come last."""
    grey = {bars.label: False for panel in panels for bars in panel.bars}
    grey |= {series.label: series.is_reference for panel in panels for series in panel.series}
    return styles_for(sorted(grey, key=grey.__getitem__), [label for label in grey if grey[label]])


def limits_of(panel: Panel, name: Literal["x", "y"]) -> dict[Scale, Ends]:
    """Return the limits of the axis `name` for each possible scale: its own, else the range of values with a margin.

    The result is empty for vertical bars: the renderer chooses their limits.
    """
    axis: Axis = getattr(panel, name)
    if axis.names:
        return {"linear": (-0.5, len(axis.names) - 0.5)}
    if axis.limits is not None:
        found: dict[Scale, Ends] = {"linear": axis.limits}
        if (log := axis.log_limits or axis.limits)[0] > 0:
            found["log"] = log
        return found
    if panel.bars:
        return {"linear": (0.0, _longest(panel))} if panel.arrangement == "rows" else {}
    values = _values(panel, name)
    found = {"linear": _linear(values, from_zero=name == "y")}
    if axis.log or (values > 0).any():
        found["log"] = axis.log_limits or _logarithmic(values[values > 0])
    return found


def _longest(panel: Panel) -> float:
    """Return the end of the longest row, with room for its text."""
    at = np.concatenate([bars.at for bars in panel.bars]).astype(np.int64)
    return 1.3 * float(np.bincount(at, np.concatenate([bars.length for bars in panel.bars])).max()) or 1.0


def _values(panel: Panel, name: str) -> Values:
    names = ("x",) if name == "x" else ("y", "low", "high")
    parts = [part for series in panel.series for own in names if (part := getattr(series, own)) is not None]
    values: Values = np.concatenate([np.zeros(0), *parts])
    return values[np.isfinite(values)]


def _linear(values: Values, from_zero: bool) -> Ends:
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = 0.04 * ((high - low) or abs(high) or 1.0)
    return (min(0.0, low) if from_zero and low < 0.4 * high else low - room), high + room


def _logarithmic(values: Values) -> Ends:
    if not values.size:
        return 0.1, 1.0
    low, high = float(values.min()), float(values.max())
    room = min(1.25, (high / low) ** 0.1) if high > low else 1.5
    return low / room, high * room


def short_labels(labels: Sequence[str], most: int = 44) -> tuple[str, ...]:
    """Shorten labels to at most `most` letters, without their common start and end. They stay distinct."""
    if all(len(label) <= most for label in labels):
        return tuple(labels)
    words = [re.findall(r"[^\W_]+|[\W_]+", label) for label in labels]
    start = _shared(words)
    end = _shared([list(reversed(own[start:])) for own in words])
    kept = [_cut("".join(own[start : len(own) - end]), most) for own in words]
    if len(set(kept)) < len(kept) or "" in kept:
        kept = [_cut(f"#{number} {label}".strip(), most) for number, label in enumerate(kept, start=1)]
    return tuple(kept)


def _shared(words: Sequence[Sequence[str]]) -> int:
    """Return the number of first words that all labels share; 0 for a single label."""
    if len(words) < 2:
        return 0
    shortest = min(len(own) for own in words)
    return next((at for at in range(shortest) if len({own[at] for own in words}) > 1), shortest)


def _cut(label: str, most: int) -> str:
    """Cut the middle out of a long label."""
    head = 2 * most // 3
    return label if len(label) <= most else f"{label[:head]}…{label[head + 1 - most :]}"


def thin(values: Values, limit: int) -> NDArray[np.int64]:
    """Return about `limit` indices of `values` that draw the same curve. The choice is deterministic.

    Half of the buckets are evenly spaced and half logarithmically, so that early steps keep their detail on both kinds
    of axes. Each bucket keeps its first, smallest and largest value. The first and last value and the first one that is
    not finite always stay.
    """
    size = len(values)
    if size <= limit:
        return np.arange(size)
    buckets = max(2, limit // 6)
    edges = np.unique(
        np.concatenate((np.linspace(0, size, buckets + 1), np.geomspace(1, size, buckets))).astype(np.int64)
    )
    finite = np.isfinite(values)
    low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    kept = {0, size - 1, *np.flatnonzero(~finite)[:1].tolist()}
    for start, stop in pairwise(edges.tolist()):
        kept |= {start, start + int(np.argmin(low[start:stop])), start + int(np.argmax(high[start:stop]))}
    return np.array(sorted(kept), dtype=np.int64)
