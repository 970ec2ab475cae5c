"""Samples: inputs and targets by row number; samples from LEAF's files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError
from qafel.tasks.datasets.files import Arrays, cached

Rows: TypeAlias = NDArray[np.integer[Any]]
Batch: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and targets."""
Encode: TypeAlias = Callable[[list[Any], list[Any], Path], Batch]
"""Converts x and y of LEAF's files in a folder to inputs and targets."""
Source: TypeAlias = Literal["auto", "official", "leaf"]
"""The files of a dataset: its authors' or LEAF's. "auto" takes LEAF's only if the others are missing."""
_PARTS = ("train", "test")


class Samples(Protocol):
    """A set of samples. Rows are numbered from 0."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> NDArray[Any]:
        """The target of each sample, in order."""

    def batch(self, rows: Rows) -> Batch:
        """Return inputs and targets of these rows as new arrays."""


@final
@dataclass(frozen=True, eq=False)
class ArraySamples:
    """Samples that are rows of an array, in memory or memory-mapped."""

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DataError(f"expected a label per input, got {len(self.inputs)} inputs and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Rows) -> Batch:
        return self.inputs[rows], self.labels[rows]


def as_samples(given: Samples | tuple[Any, Any]) -> Samples:
    """Return samples unchanged, or made from a pair of arrays, inputs and targets. float64 becomes float32."""
    if not isinstance(given, tuple):
        return given
    inputs, labels = (np.asarray(part) for part in given)
    narrow = [part.astype(np.float32) if part.dtype == np.float64 else part for part in (inputs, labels)]
    return ArraySamples(*narrow)


@final
@dataclass(frozen=True, eq=False)
class TextWindows:
    """Windows of `length` characters of a text at `starts`. The target is the next character."""

    text: NDArray[np.uint8]
    starts: NDArray[Any]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def labels(self) -> NDArray[Any]:
        return self.text[self.starts.astype(np.int64) + self.length]

    def batch(self, rows: Rows) -> Batch:
        windows = self.text[self.starts[rows].astype(np.int64)[:, None] + np.arange(self.length + 1)]
        return windows[:, :-1], windows[:, -1]


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

    def batch(self, rows: Rows) -> Batch:
        return self.samples.batch(self.rows[rows])


@final
@dataclass(frozen=True, eq=False)
class FederatedData:
    """A dataset: samples for training and testing, and the users of the training samples if it has users."""

    train: Samples
    test: Samples
    users: NDArray[Any] | None = None
    """The user of each training sample, numbered from 0."""

    @staticmethod
    def of_arrays(arrays: Arrays) -> FederatedData:
        """Return the dataset of the arrays train, train_labels, test, test_labels and, optionally, users."""
        train, test = (ArraySamples(arrays[part], arrays[f"{part}_labels"]) for part in _PARTS)
        return FederatedData(train, test, arrays.get("users"))


def leaf_files(folder: Path, dataset: str) -> list[Path]:
    """Return LEAF's JSON files in `folder`/train, then in `folder`/test, sorted by name."""
    found = []
    for part in _PARTS:
        paths = sorted((folder / part).glob("*.json"))
        if not paths:
            raise DataError(
                f"{dataset}: expected LEAF files *.json in {folder / part}, as LEAF's preprocess.sh writes them"
            )
        found += paths
    return found


def load_leaf(data: Path, dataset: str, found: Sequence[Path], encode: Encode) -> FederatedData:
    """Return the samples of LEAF's files, JSON with the samples of each user.

        {"users": ["a", …], "num_samples": [2, …], "user_data": {"a": {"x": […], "y": […]}, …}}

    LEAF's `preprocess.sh` writes them. S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.

    data      the folder of datasets
    dataset   the name of the dataset
    found     the `leaf_files`, and other files that `encode` reads
    """

    def build() -> Arrays:
        arrays: Arrays = {}
        for part in _PARTS:
            paths = [path for path in found if path.parent.name == part]
            users, xs, ys = read_leaf(paths, dataset)
            arrays[part], arrays[f"{part}_labels"] = encode(xs, ys, paths[0].parent)
            arrays.setdefault("users", np.array(users, np.int32))
        return arrays

    return FederatedData.of_arrays(cached(data, f"{dataset.lower()}-leaf", found, build))


def read_leaf(files: Sequence[Path], dataset: str) -> tuple[list[int], list[Any], list[Any]]:
    """Return user number, x and y of all samples. A user may appear in several `files`."""
    numbers: dict[str, int] = {}
    users, xs, ys = [], [], []
    for path in files:
        for name, own_xs, own_ys in _users_of(path, dataset):
            users += [numbers.setdefault(name, len(numbers))] * len(own_xs)
            xs += own_xs
            ys += own_ys
    return users, xs, ys


def _users_of(path: Path, dataset: str) -> list[tuple[str, list[Any], list[Any]]]:
    damaged = f"{dataset}: {path} is not a LEAF file"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = [
            (str(name), content["user_data"][name]["x"], content["user_data"][name]["y"]) for name in content["users"]
        ]
    except (OSError, ValueError) as error:
        raise DataError(f"{damaged}: {error}") from None
    except (KeyError, TypeError):
        raise DataError(f'{damaged}: expected "users", and "user_data" with "x" and "y" for each') from None
    for name, xs, ys in found:
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            raise DataError(f"{damaged}: user {name!r} must have as many x as y")
    return found
