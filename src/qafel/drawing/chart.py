"""A chart as values: panels of curves and bars on axes, and how they look. `printed` and `page` draw them.

First styles, then panels, then what both drawers ask: limits, labels that fit, and curves with fewer points.
"""

from __future__ import annotations

import math
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

# Okabe and Ito's palette, safe for colour-blind readers, without yellow and black, which vanish on white or dark.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
BLUE, RED, GREY = PALETTE[0], PALETTE[1], PALETTE[6]
DASHES = {"solid": (), "dash": (5, 2.5), "dot": (1.5, 1.5), "dashdot": (5, 1.5, 1, 1.5)}
"""Plotly's words for dashes, with the lengths of strokes and gaps for those who draw them otherwise."""


@final
@dataclass(frozen=True)
class Style:
    """Label, colour and dashes of what the legend lists; `index` is its place there."""

    label: str
    colour: str
    dash: str = "solid"
    index: int = 0


@final
@dataclass(frozen=True)
class Series:
    """One curve, or a set of points; `low` and `high` are drawn as a band, or as error bars on points."""

    label: str
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    kind: Literal["curve", "steps", "points", "line-and-points", "reference", "rings", "marks"] = "curve"
    """Steps hold each value up to the next. A reference is a dashed grey line; rings are drawn on one, around points of
    other series. Marks are points with a symbol (Plotly's name of it), of which only the words in `hover` are told."""
    hover: tuple[str, ...] = ()
    """Words for the points on the page; in print there is no room beside them."""
    symbol: Symbol = "circle"
    shade: Values | None = None
    """A colour for each mark in place of the style's, from 0, dark, to 1, bright."""

    @property
    def is_reference(self) -> bool:
        return self.kind in ("reference", "rings")


@final
@dataclass(frozen=True)
class Bars:
    """Bars of one label: where they stand, and how long they are."""

    label: str
    at: Values
    length: Values
    hover: tuple[str, ...] = ()
    text: str = ""
    """Written beyond the end of the last bar."""
    pale: bool = False


@final
@dataclass(frozen=True)
class Axis:
    """An axis: what it measures, its scale, its limits, and what its ticks say."""

    label: str
    log: bool = False
    unit: Unit = ""
    """Bytes and counts have prefixes (k, M, G); % shows a share of 1."""
    ticks: tuple[float, ...] = ()
    limits: Ends | None = None
    log_limits: Ends | None = None
    """The limits on a logarithmic scale, if they are others."""
    names: tuple[str, ...] = ()
    """Words in place of numbers: the first stands at 0, the next at 1."""
    fixed: bool = False
    """A fixed axis keeps its scale; others can be switched by the page's reader, if they have positive values."""

    @property
    def scale(self) -> Scale:
        return "log" if self.log else "linear"


@final
@dataclass(frozen=True)
class Panel:
    """One picture: curves and bars on a pair of axes."""

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    note: str = ""
    bars: tuple[Bars, ...] = ()
    arrangement: Literal["grouped", "stacked", "rows"] = "grouped"
    """Grouped bars stand side by side, stacked ones on each other; rows lie end to end, under the names of `y`."""
    targets: tuple[float, ...] = ()
    """Heights to reach, each a dashed line across the panel."""
    wide: bool = False
    """Whether the panel takes the page's whole width."""


def styles_for(labels: Sequence[str], grey: Sequence[str] = ()) -> tuple[Style, ...]:
    """Give every label a style: colours in the order of `labels`, then the same colours dashed.

    Labels in `grey` are references, beside which the others are read: grey and dashed.
    """
    dashes = tuple(DASHES)
    return tuple(
        Style(label, GREY, "dash", index)
        if label in grey
        else Style(label, PALETTE[index % len(PALETTE)], dashes[index // len(PALETTE) % len(dashes)], index)
        for index, label in enumerate(labels)
    )


def panel_styles(panels: Sequence[Panel]) -> tuple[Style, ...]:
    """A style for every label of the panels, in order, for the legend too; references are grey and come last."""
    grey = {bars.label: False for panel in panels for bars in panel.bars}
    grey |= {series.label: series.is_reference for panel in panels for series in panel.series}
    return styles_for(sorted(grey, key=grey.__getitem__), [label for label in grey if grey[label]])


def limits_of(panel: Panel, name: Literal["x", "y"]) -> dict[Scale, Ends]:
    """The limits of the axis `name` for each scale that it can have: as it says, else all values with some room.

    Empty for bars that stand: they take the room that they need.
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
    """The end of the longest row, and room for the words beyond it."""
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


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Ticks of a logarithmic axis that has fewer than two powers of ten between its limits; else none are needed.

    First few to a decade, then more, and within a fraction of one at even steps: there are always two.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if sum(low <= 10.0**decade <= high for decade in decades) > 1:
        return ()
    for digits in ((1, 3), (1, 2, 5), range(1, 10)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        if len(within := tuple(tick for tick in ticks if low <= tick <= high)) > 2:
            return within
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    while (high - low) / step > 8:
        step *= 2 if (high - low) / step < 16 else 5
    return tuple(step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1))


def short_labels(labels: Sequence[str], most: int = 44) -> tuple[str, ...]:
    """Shorten labels to at most `most` letters: what long ones share at both ends goes, and they still differ."""
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
    """How many words all begin with; none if there is only one label."""
    if len(words) < 2:
        return 0
    shortest = min(len(own) for own in words)
    return next((at for at in range(shortest) if len({own[at] for own in words}) > 1), shortest)


def _cut(label: str, most: int) -> str:
    """The label without its middle, where most labels agree."""
    head = 2 * most // 3
    return label if len(label) <= most else f"{label[:head]}…{label[head + 1 - most :]}"


def thin(values: Values, limit: int) -> NDArray[np.int64]:
    """Choose at most about `limit` indices of `values` that draw the same curve, in order; the same every time.

    The history is cut into buckets, half of them evenly and half of them logarithmically spaced, so that the early
    steps keep their detail on linear and logarithmic axes alike; of each bucket the first, the smallest and the
    largest value stay. First and last row, overall extremes and the first value that is not finite always stay.
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
