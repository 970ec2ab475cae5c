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
from qafel.tasks.datasets.files import Arrays, cache_folder, cached

Rows: TypeAlias = NDArray[np.integer[Any]]
Batch: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and targets."""
Source: TypeAlias = Literal["auto", "official", "leaf"]
"""Which files a dataset is read from: its authors', or LEAF's; auto takes LEAF's if only they are there."""


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
class FederatedData:
    """What a dataset gives: samples to train on and to test on, and, if it has users, whose they are."""

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

    def batch(self, rows: Rows) -> Batch:
        return self.samples.batch(self.rows[rows])


def load_leaf(
    data: Path, dataset: str, folder: Path, encode: Callable[[LeafPart, Path], Batch], sources: Sequence[Path] = ()
) -> FederatedData:
    """Samples from LEAF's own files, JSON with the samples of each user, in `folder`/train and `folder`/test.

        {"users": ["a", …], "num_samples": [2, …], "user_data": {"a": {"x": […], "y": […]}, …}}

    LEAF's `preprocess.sh` writes them; all files of a folder belong together. `data` is the folder of all datasets,
    `dataset` the name for people, `encode` makes inputs and labels of a part that it found in a folder, and `sources`
    are what else it reads. S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
    """
    files = leaf_files(folder, dataset)

    def build() -> Arrays:
        parts = {name: read_leaf(paths, dataset) for name, paths in files.items()}
        arrays: Arrays = {"users": np.array(parts["train"].users, np.int32)}
        for name, part in parts.items():
            arrays[name], arrays[f"{name}_labels"] = encode(part, folder / name)
        return arrays

    everything = [*files["train"], *files["test"], *sources]
    arrays = cached(cache_folder(data), f"{dataset.lower()}-leaf", everything, build)
    train, test = (ArraySamples(arrays[name], arrays[f"{name}_labels"]) for name in ("train", "test"))
    return FederatedData(train, test, arrays["users"])


def leaf_files(folder: Path, dataset: str) -> dict[str, list[Path]]:
    """The JSON files of both parts, "train" and "test", in order of their names."""
    files = {part: sorted((folder / part).glob("*.json")) for part in ("train", "test")}
    for part, paths in files.items():
        if not paths:
            raise DataError(
                f"{dataset}: there is no LEAF file in {folder / part}: expected *.json, as LEAF's preprocess.sh "
                "writes them"
            )
    return files


@final
@dataclass(frozen=True)
class LeafPart:
    """All samples of a folder of LEAF files, one after the other, and the number of each sample's user."""

    users: list[int]
    x: list[Any]
    y: list[Any]


def read_leaf(files: list[Path], dataset: str) -> LeafPart:
    """The samples of all files; a user that is in several has the samples of all."""
    numbers: dict[str, int] = {}
    part = LeafPart([], [], [])
    for path in files:
        for name, xs, ys in _users_of(path, dataset):
            number = numbers.setdefault(name, len(numbers))
            part.users.extend([number] * len(xs))
            part.x.extend(xs)
            part.y.extend(ys)
    return part


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
