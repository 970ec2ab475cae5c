"""One chart of the report: a plain Plotly figure, ready for JSON.

Every trace carries `meta.run`, by which the page's legend shows and hides a run in all charts at once. Text from files
is escaped, because Plotly reads a little HTML in labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias, final

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
