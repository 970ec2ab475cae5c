"""How a run looks, the same in every chart: its label, its colour and its dashes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from qafel.runs.reading import Column, Run

# Okabe and Ito's palette, safe for colour-blind readers, without yellow and black, which vanish on white or dark.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")


DASHES = ("solid", "dash", "dot", "dashdot")


@final
@dataclass(frozen=True)
class Style:
    """Label, colour and dashes of one run; `dash` is Plotly's word for it, `index` its place in the legend."""

    label: str
    colour: str
    dash: str
    index: int = 0


def styles_of(runs: Sequence[Run]) -> tuple[Style, ...]:
    """One style per run: colours in the order given, then the same colours dashed."""
    return tuple(
        Style(label, PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)], index)
        for index, label in enumerate(labels_of(runs))
    )


def labels_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """Names that differ: the run's own, with seed, directory or number added where others share it."""
    labels = [run.name for run in runs]
    additions = (
        [f"seed {run.summary['seed']}" if "seed" in run.summary else "" for run in runs],
        [run.path.resolve().name for run in runs],
        [f"#{index}" for index in range(1, len(runs) + 1)],
    )
    for addition in additions:
        shared = {label for label, count in Counter(labels).items() if count > 1}
        useful = {label for label in shared if len(_additions_to(label, labels, addition)) > 1}
        labels = [
            f"{label} · {added}" if label in useful and added else label
            for label, added in zip(labels, addition, strict=True)
        ]
    return tuple(labels)


def short_labels(labels: Sequence[str], most: int = 44) -> tuple[str, ...]:
    """Labels of at most so many letters, that differ if the given ones do: what long ones share at both ends goes."""
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
    """How many words all begin with, of several."""
    if len(words) < 2:
        return 0
    shortest = min(len(own) for own in words)
    return next((at for at in range(shortest) if len({own[at] for own in words}) > 1), shortest)


def _cut(label: str, most: int) -> str:
    """The label without its middle, where most labels agree."""
    head = 2 * most // 3
    return label if len(label) <= most else f"{label[:head]}…{label[head + 1 - most :]}"


def _additions_to(label: str, labels: Sequence[str], addition: Sequence[str]) -> set[str]:
    return {added for other, added in zip(labels, addition, strict=True) if other == label}


# Fewer points, the same picture: rows of a long history to keep, the same ones every time.


def thin(values: Column, limit: int) -> NDArray[np.int64]:
    """Indices of at most about `limit` values that draw the same curve, in order.

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
