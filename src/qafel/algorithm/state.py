"""State is named arrays. What comes back from a file is checked here, once, before anything is made of it.

Compiled code trusts the length of the arrays that it is given, and NumPy stretches one that is too short: either way a
crafted checkpoint would do harm, or give another result without an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
_FEW = 3  # names that an error lists


@final
class Expected(NamedTuple):
    """What an array must be: its type, its shape, and the least and the largest of its values, which are finite."""

    dtype: type[np.generic]
    shape: tuple[int | str, ...] = ()
    """Lengths. A word stands for any length, which is the same wherever the word stands."""
    low: float = -math.inf
    high: float = math.inf
    distinct: bool = False
    """Whether no value may be there twice."""


def require_arrays(found: Arrays, expected: Mapping[str, Expected]) -> None:
    """Raise `DataError` unless the arrays are the expected ones: exactly these names, and each as it must be."""
    missing, unknown = expected.keys() - found.keys(), found.keys() - expected.keys()
    if missing or unknown:
        listed = ", ".join(sorted(missing or unknown)[:_FEW])
        raise DataError(f"{listed} is {'missing' if missing else 'not expected'}")
    lengths: dict[str, int] = {}
    for name, wanted in expected.items():
        array, dtype = found[name], np.dtype(wanted.dtype)
        shape = tuple(
            length if isinstance(length, int) else lengths.setdefault(length, own)
            for length, own in zip(wanted.shape, array.shape, strict=False)
        )
        if array.dtype != dtype or array.shape != shape or array.ndim != len(wanted.shape):
            told = ", ".join(str(lengths.get(str(length), length)) for length in wanted.shape)
            raise DataError(f"{name} is {array.dtype}{list(array.shape)}, expected {dtype}[{told}]")
        if not array.size:
            continue
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{name} holds a NaN or an infinity")
        if not wanted.low <= array.min() <= array.max() <= wanted.high:
            raise DataError(f"{name} holds {array.min()} to {array.max()}, expected {wanted.low} to {wanted.high}")
        if wanted.distinct and np.unique(array).size < array.size:
            raise DataError(f"{name} holds a value twice")


def require_numbers_of(values: Mapping[str, Any], expected: Mapping[str, Expected]) -> None:
    """The same for single numbers among a checkpoint's `values`; others are left alone."""
    chosen = {name: _as_array(values[name]) for name in expected if name in values}
    require_arrays(chosen, expected)


def _as_array(value: object) -> NDArray[Any]:
    return np.array(value if isinstance(value, int | float) else object())
