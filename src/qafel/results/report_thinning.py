"""Fewer points, the same picture: rows of a long history to keep, the same ones every time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qafel.results.runs import Column


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
