"""How charts look, in print and on a page: colours, dashes, labels that fit, and curves with fewer points."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]

# Okabe and Ito's palette, safe for colour-blind readers, without yellow and black, which vanish on white or dark.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
BLUE, RED, GREY = PALETTE[0], PALETTE[1], PALETTE[6]
INK, MUTED, GRID = "#1f2328", "#656d76", "#e4e7eb"

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


def paler(colour: str, share: float = 0.45) -> str:
    """The colour mixed with white, of which it has `share`; unlike a transparent one it hides what lies behind."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)


def styles_for(labels: Sequence[str], grey: Collection[str] = ()) -> tuple[Style, ...]:
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
