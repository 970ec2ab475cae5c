"""Samples to learn from: inputs and targets, read by row numbers; and samples from LEAF's files."""

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
"""Makes inputs and targets of the x and y of LEAF's files in a folder."""
Source: TypeAlias = Literal["auto", "official", "leaf"]
"""Which files a dataset is read from: its authors', or LEAF's; auto takes LEAF's if only they are there."""
_PARTS = ("train", "test")


class Samples(Protocol):
    """A set of samples; rows are numbered from 0."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> NDArray[Any]:
        """One target per sample, in order."""

    def batch(self, rows: Rows) -> Batch:
        """Inputs and targets of these rows, as new arrays."""


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

    def batch(self, rows: Rows) -> Batch:
        return self.inputs[rows], self.labels[rows]


def as_samples(given: Samples | tuple[Any, Any]) -> Samples:
    """Samples as they are, or from a pair of arrays, inputs and targets; float64 becomes float32, a model's type."""
    if not isinstance(given, tuple):
        return given
    inputs, labels = (np.asarray(part) for part in given)
    narrow = [part.astype(np.float32) if part.dtype == np.float64 else part for part in (inputs, labels)]
    return ArraySamples(*narrow)


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
    """What a dataset gives: samples to train on and to test on, and, if it has users, whose they are."""

    train: Samples
    test: Samples
    users: NDArray[Any] | None = None
    """The user of each training sample, numbered from 0."""

    @staticmethod
    def of_arrays(arrays: Arrays) -> FederatedData:
        """From the arrays train, train_labels, test, test_labels and, if it is there, users."""
        train, test = (ArraySamples(arrays[part], arrays[f"{part}_labels"]) for part in _PARTS)
        return FederatedData(train, test, arrays.get("users"))


def leaf_files(folder: Path, dataset: str) -> list[Path]:
    """LEAF's JSON files in `folder`/train, then those in `folder`/test, each in order of their names."""
    found = []
    for part in _PARTS:
        paths = sorted((folder / part).glob("*.json"))
        if not paths:
            raise DataError(
                f"{dataset}: there is no LEAF file in {folder / part}: expected *.json, as LEAF's preprocess.sh "
                "writes them"
            )
        found += paths
    return found


def load_leaf(data: Path, dataset: str, found: Sequence[Path], encode: Encode) -> FederatedData:
    """Samples from LEAF's own files, JSON with the samples of each user.

        {"users": ["a", …], "num_samples": [2, …], "user_data": {"a": {"x": […], "y": […]}, …}}

    LEAF's `preprocess.sh` writes them; all files of a folder belong together. `data` is the folder of all datasets,
    `dataset` the name for people, and `found` are the `leaf_files`, and what else `encode` reads.
    S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
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
    """The user's number, x and y of all samples; a user that is in several `files` has the samples of all."""
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
            raise DataError(f"{damaged}: user {name!r} should have as many x as y")
    return found
