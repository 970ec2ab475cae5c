"""A picture of a partition: how many samples clients hold, and of which labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from qafel.errors import ConfigError
from qafel.tasks.datasets.partition import Partition

_INK, _MUTED, _GRID = "#1f2328", "#656d76", "#e4e7eb"


_MOST_LABELS = 12


def partition_figure(
    partition: Partition, labels: NDArray[Any], classes: Sequence[str] = (), title: str = "", shown: int = 40
) -> Figure:
    """Draw the labels' shares at some clients, evenly chosen from the largest to the smallest, and the sizes of all."""
    if shown < 1:
        raise ConfigError(f"a picture shows at least one client; got {shown}")
    order = np.argsort(-partition.sizes, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(shown, len(order))).astype(np.int64))]
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_labels(left, partition, labels, chosen, classes)
    _draw_sizes(right, partition.sizes)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_MUTED, labelcolor=_INK)
    figure.suptitle(title or f"{partition.clients:,} clients, {len(partition.order):,} samples", color=_INK)
    return figure


def _draw_labels(
    axes: Axes, partition: Partition, labels: NDArray[Any], chosen: NDArray[np.int64], classes: Sequence[str]
) -> None:
    """A bar for each chosen client in the colours of its labels, each as high as its share."""
    values, totals = np.unique(labels, return_counts=True)
    # Where there are too many labels for colours, the most frequent ones have their own and the rest share one.
    named = np.sort(values[np.argsort(-totals, kind="stable")[: _MOST_LABELS if len(values) <= _MOST_LABELS else 11]])
    bottom, sizes = np.zeros(len(chosen)), partition.sizes[chosen]
    for number, value in enumerate(named):
        heights = np.array([np.sum(labels[partition.rows(int(client))] == value) for client in chosen]) / sizes
        name = classes[int(value)] if len(classes) > int(value) else f"label {value}"
        axes.bar(range(len(chosen)), heights, bottom=bottom, color=_colour(number), label=name, width=0.9)
        bottom += heights
    if len(named) < len(values):
        axes.bar(range(len(chosen)), 1 - bottom, bottom=bottom, color="#c9ced4", label="others", width=0.9)
    axes.set_xlabel(f"{len(chosen)} of {partition.clients:,} clients, largest first")
    axes.set_ylabel("share of the client's samples")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1)
    axes.legend(fontsize="x-small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1), reverse=True)


def _draw_sizes(axes: Axes, sizes: NDArray[np.int64]) -> None:
    """How many clients have at least so many samples."""
    ordered = np.sort(sizes)[::-1]
    axes.step(ordered, np.arange(1, len(ordered) + 1), where="post", color="#0969da", linewidth=1.5)
    if ordered[0] > 20 * max(1, ordered[-1]):
        axes.set_xscale("log")
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"samples (median {np.median(sizes):g}, mean {sizes.mean():.4g}, largest {sizes.max():,})")
    axes.set_ylabel("clients with at least so many")


def _colour(number: int) -> Any:
    return colormaps["tab20"]((2 * number) % 20 + (number >= 10))
