"""A picture of a partition: how many samples clients hold, and of which labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from qafel.drawing.chart import BLUE, PALETTE, Axis, Bars, Panel, Series, Style, panel_styles
from qafel.drawing.printed import draw
from qafel.errors import ConfigError
from qafel.tasks.datasets.partition import Partition

_MOST_LABELS = 12


def partition_figure(
    partition: Partition, labels: NDArray[Any], classes: Sequence[str] = (), title: str = "", shown: int = 40
) -> Figure:
    """Draw the labels' shares at some clients, evenly chosen from the largest to the smallest, and the sizes of all.

    `labels` are those of all samples, `classes` their names, if they have any; at most `shown` clients are drawn.
    """
    if shown < 1:
        raise ConfigError(f"a picture shows at least one client; got {shown}")
    order = np.argsort(-partition.sizes, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(shown, len(order))).astype(np.int64))]
    panels = (_labels_panel(partition, labels, chosen, classes), _sizes_panel(partition.sizes))
    styles = (*panel_styles(panels[:1]), Style("", BLUE))
    return draw(panels, title or f"{partition.clients:,} clients, {len(partition.order):,} samples", styles=styles)


def _labels_panel(
    partition: Partition, labels: NDArray[Any], chosen: NDArray[np.int64], classes: Sequence[str]
) -> Panel:
    """A bar for each chosen client in the colours of its labels, each as high as its share."""
    values, totals = np.unique(labels, return_counts=True)
    # Where there are too many labels for colours, the most frequent ones have their own and the rest share one.
    named = np.sort(values[np.argsort(-totals, kind="stable")[: _MOST_LABELS if len(values) <= _MOST_LABELS else 11]])
    rest, at, bars = np.ones(len(chosen)), np.arange(len(chosen), dtype=np.float64), []
    for number, value in enumerate(named):
        counts = np.array([np.sum(labels[partition.rows(int(client))] == value) for client in chosen])
        name = classes[int(value)] if len(classes) > int(value) else f"label {value}"
        bars.append(Bars(name, at, counts / partition.sizes[chosen], pale=number >= len(PALETTE)))
        rest -= bars[-1].length
    if len(named) < len(values):
        bars.append(Bars("others", at, rest, pale=True))
    x = Axis(f"{len(chosen)} of {partition.clients:,} clients, largest first", unit="integer")
    y = Axis("share of the client's samples", limits=(0.0, 1.0))
    return Panel("labels", "labels", x, y, bars=tuple(bars), arrangement="stacked")


def _sizes_panel(sizes: NDArray[np.int64]) -> Panel:
    """How many clients have at least so many samples."""
    ordered = np.sort(sizes)[::-1].astype(np.float64)
    counts = np.arange(1.0, len(ordered) + 1)
    x = Axis("samples", log=bool(ordered[0] > 20 * max(1, ordered[-1])))
    note = f"Samples of a client: median {np.median(sizes):g}, mean {sizes.mean():.4g}, largest {sizes.max():,}."
    series = (Series("", ordered, counts, kind="steps"),)
    return Panel("sizes", "sizes", x, Axis("clients with at least so many"), series, note)
