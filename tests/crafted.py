"""Checkpoints that were tampered with: each array and each value in turn, with a checksum that is right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm import Checkpoint, Rows

Mutation = Callable[[NDArray[Any]], NDArray[Any] | None]

MUTATIONS: dict[str, Mutation] = {
    "missing": lambda array: None,
    "shrunk": lambda array: array[:-1],
    "emptied": lambda array: array[:0],
    "a single one": lambda array: array[:1],
    "grown": lambda array: np.concatenate([array, array[-1:]]),
    "a scalar": lambda array: array.reshape(-1)[0],
    "another dimension more": lambda array: array[None],
    "another type": lambda array: array.astype(np.float64 if array.dtype != np.float64 else np.float32),
    "half the width": lambda array: array.astype(f"{array.dtype.kind}{array.dtype.itemsize // 2}"),
    "bytes": lambda array: np.frombuffer(array.tobytes(), np.uint8),
}
ODD: tuple[Any, ...] = (
    *(None, "word", "", [], {}, True, -1, 0.5, -0.5, 2**70, 10**400, 1e308, -1e308, float("nan"), float("inf")),
    *([1, "word"], {"a": 1}, [[1, -1.0]], "version.999"),
)


def with_array(checkpoint: Checkpoint, name: str, array: NDArray[Any] | None) -> Checkpoint:
    """The checkpoint with another array of this name, or without it."""
    arrays = {key: own for key, own in checkpoint.arrays.items() if key != name}
    return checkpoint._replace(arrays=arrays if array is None else {**arrays, name: np.ascontiguousarray(array)})


def other_arrays(checkpoint: Checkpoint, extra: Sequence[str] = ()) -> Iterator[tuple[str, Checkpoint]]:
    """The checkpoint with one array missing, of another shape or type, not finite, or more; each with its name."""
    for name, array in checkpoint.arrays.items():
        for word, mutate in MUTATIONS.items():
            if word == "half the width" and array.dtype.itemsize == 1:
                continue
            if not array.ndim and word not in ("missing", "another dimension more", "another type"):
                continue
            other = mutate(array) if array.size or word not in ("a scalar", "grown") else None
            if other is None or (other.dtype, other.shape) != (array.dtype, array.shape):
                yield f"{name}: {word}", with_array(checkpoint, name, other)
        if array.dtype.kind == "f" and array.size:
            for odd in (np.nan, np.inf, -np.inf):
                other = array.copy()
                other.reshape(-1)[-1] = odd
                yield f"{name}: {odd}", with_array(checkpoint, name, other)
    for name, table in checkpoint.rows.items():
        others = {key: kept for key, kept in checkpoint.rows.items() if key != name}
        yield f"{name}: missing", checkpoint._replace(rows=others)
        yield f"{name}: misnamed", checkpoint._replace(rows={**others, f"{name}s": table})
        if table.row_dtype == np.float32:
            for odd in (np.full(1, np.nan, np.float32), np.zeros(1, np.float64), b"abc"):
                yield f"{name}: {odd!r}", checkpoint._replace(rows={**others, name: Rows({0: odd})})
    for name in extra:
        if name not in checkpoint.arrays:
            yield f"extra {name}", with_array(checkpoint, name, checkpoint.arrays[next(iter(checkpoint.arrays))])


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values, and to the tables and lists that they are in; of a long list, to a few."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from paths_in(entry, (*path, key))
    elif isinstance(value, list):
        for number in {0, len(value) // 2, len(value) - 1} if value else ():
            yield from paths_in(value[number], (*path, number))


def with_value(checkpoint: Checkpoint, path: tuple[Any, ...], value: Any, remove: bool = False) -> Checkpoint:
    """The checkpoint with another value, or without it."""
    values = copy.deepcopy(checkpoint.values)
    inside = values
    for key in path[:-1]:
        inside = inside[key]
    if remove:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return checkpoint._replace(values=values)


def other_values(checkpoint: Checkpoint, names: Collection[str] | None = None) -> Iterator[tuple[str, Checkpoint]]:
    """The checkpoint with one value odd, or missing; of the tables with these `names`, by default of all."""
    values = {name: value for name, value in checkpoint.values.items() if names is None or name in names}
    for path in paths_in(values):
        for odd in ODD:
            yield f"{path}: {str(odd)[:20]}", with_value(checkpoint, path, odd)
        if not isinstance(path[-1], int):
            yield f"{path}: missing", with_value(checkpoint, path, None, remove=True)
