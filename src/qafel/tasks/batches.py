"""In which order a client sees its samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from qafel.algorithm import LocalTraining
from qafel.tasks.partition import Indices


def batches(rows: Indices, local: LocalTraining, generator: np.random.Generator) -> Iterator[Indices]:
    """The rows of every local step. Each epoch has a new order; its last batch may be smaller."""
    endless = (batch for _ in itertools.count() for batch in _epoch(rows, local.batch_size, generator))
    if len(rows) == 0:
        return iter(())
    if local.steps is not None:
        return itertools.islice(endless, local.steps)
    size = local.batch_size or len(rows)
    return itertools.islice(endless, (local.epochs or 1) * -(-len(rows) // size))


def _epoch(rows: Indices, batch_size: int | None, generator: np.random.Generator) -> Iterator[Indices]:
    if batch_size is None:
        yield rows
        return
    shuffled = generator.permutation(rows)
    for start in range(0, len(shuffled), batch_size):
        yield shuffled[start : start + batch_size]
