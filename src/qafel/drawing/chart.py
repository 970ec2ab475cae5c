"""One chart of the report: a plain Plotly figure, ready for JSON.

Every trace carries `meta.run`, by which the page's legend shows and hides a run in all charts at once. Text from files
is escaped, because Plotly reads a little HTML in labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np

from qafel.runs.reading import Column

Trace: TypeAlias = dict[str, Any]


BYTES_AXIS = {"tickformat": ".3~s", "ticksuffix": "B", "tickangle": 0}


COUNT_AXIS = {"tickformat": ".3~s"}


@final
@dataclass(frozen=True)
class Chart:
    """One card of the page; `toggles` names the axes that may switch between linear and logarithmic."""

    key: str
    title: str
    notes: tuple[str, ...]
    traces: tuple[Trace, ...]
    layout: dict[str, Any]
    toggles: tuple[str, ...] = ()
    wide: bool = False
    height: int = 340


def plain(values: Column) -> list[float | int | None]:
    """Six significant digits for JSON; what is not finite becomes a gap."""
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> float | int:
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


@final
@dataclass(frozen=True)
class Series:
    """One curve, or a set of points; `low` and `high` are drawn as a band, or as error bars on points."""

    label: str
    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None
    kind: Literal["curve", "points", "line-and-points", "reference", "rings"] = "curve"
    """A reference is a dashed line; rings are drawn on one, around points of other series."""
    hover: tuple[str, ...] = ()
    """Words for the points on the page; in print there is no room beside them."""


@final
@dataclass(frozen=True)
class Axis:
    """An axis: what it measures, its scale, and what its ticks say."""

    label: str
    log: bool = False
    unit: Literal["", "B", "count"] = ""
    ticks: tuple[float, ...] = ()
    limits: tuple[float, float] | None = None


@final
@dataclass(frozen=True)
class Panel:
    """One picture of a figure."""

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    note: str = ""


def labels_of(panels: Sequence[Panel]) -> list[str]:
    """Every label once, in order: what the legend lists and what colours follow. References, all grey, come last."""
    grey = {series.label: series.kind in ("reference", "rings") for panel in panels for series in panel.series}
    return sorted(grey, key=lambda label: grey[label])


def limits_of(panel: Panel) -> tuple[float, float]:
    """The panel's y limits: as it says, else all curves with some room; on a log axis, all that is positive."""
    if panel.y.limits is not None:
        return panel.y.limits
    parts = [part for series in panel.series for part in (series.y, series.low, series.high) if part is not None]
    values = np.concatenate(parts) if parts else np.zeros(0)
    values = values[np.isfinite(values) & ((values > 0) | (not panel.y.log))]
    if not values.size:
        return (0.1, 1.0) if panel.y.log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if panel.y.log:
        room = min(1.25, max(1.01, (high / low) ** 0.15))
        return low / room, high * room
    room = 0.05 * ((high - low) or abs(high) or 1.0)
    return (min(0.0, low) if low < 0.4 * high else low - room), high + room
