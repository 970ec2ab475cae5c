"""Samples to learn from: inputs and targets, read by row numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError

Rows: TypeAlias = NDArray[np.integer[Any]]


class Samples(Protocol):
    """A set of samples; rows are numbered from 0."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> NDArray[Any]:
        """One target per sample, in order."""
        ...

    def batch(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs and targets of these rows, as new arrays."""
        ...


@final
@dataclass(frozen=True, eq=False)
class ArraySamples:
    """Samples that are rows of an array, in memory or memory-mapped."""

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DataError(f"there are {len(self.inputs)} inputs and {len(self.labels)} labels: one label per input")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.inputs[rows], self.labels[rows]


@final
@dataclass(frozen=True, eq=False)
class TextWindows:
    """Windows of `length` characters of a text, from each of `starts` on; the target is the next character."""

    text: NDArray[np.uint8]
    starts: NDArray[Any]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def labels(self) -> NDArray[Any]:
        return self.text[self.starts.astype(np.int64) + self.length]

    def batch(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        windows = self.text[self.starts[rows].astype(np.int64)[:, None] + np.arange(self.length + 1)]
        return windows[:, :-1], windows[:, -1]


@final
@dataclass(frozen=True, eq=False)
class FederatedData:
    """What a dataset gives: samples to train on and to test on, and whose they are where it says so."""

    train: Samples
    test: Samples
    users: NDArray[Any] | None = None
    """The user of each training sample, numbered from 0."""


@final
@dataclass(frozen=True, eq=False)
class Subset:
    """Some rows of other samples, renumbered."""

    samples: Samples
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> NDArray[Any]:
        labels: NDArray[Any] = self.samples.labels[self.rows]
        return labels

    def batch(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.samples.batch(self.rows[rows])
