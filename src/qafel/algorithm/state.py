"""State is named arrays, numbers and rows: one pair of functions saves and restores every part.

What comes back from a file is checked here, once, before anything is made of it. Compiled code trusts the length of the
arrays that it is given, and NumPy stretches one that is too short: a crafted checkpoint would do harm, or give another
result without an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError, DataError
from qafel.parts import blaming
from qafel.text import path_of

if TYPE_CHECKING:
    from qafel.algorithm.parts import Part

Arrays: TypeAlias = dict[str, NDArray[Any]]
_FEW = 3  # names that an error lists


@final
class Rows(MutableMapping[int, Any]):
    """One array or payload per client. It remembers which rows changed since they were last saved."""

    __slots__ = ("_rows", "changed", "row_dtype")

    def __init__(self, rows: Mapping[int, Any] | None = None, dtype: type[np.generic] | None = None) -> None:
        """`dtype`: the type of every row, `np.uint8` for payloads; None: any."""
        self.row_dtype = None if dtype is None else np.dtype(dtype)
        self._rows: dict[int, Any] = dict(rows or {})
        self.changed: set[int] = set(self._rows)

    def __getitem__(self, client: int) -> Any:
        return self._rows[client]

    def __setitem__(self, client: int, row: Any) -> None:
        self._rows[client] = row
        self.changed.add(client)

    def __delitem__(self, client: int) -> None:
        del self._rows[client]
        self.changed.add(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


State: TypeAlias = Mapping[str, Any]
"""Arrays, numbers and `Rows` by name."""
KEPT = (np.ndarray, Rows, float, int)


@final
class Checkpoint(NamedTuple):
    """What survives a killed process: arrays (copies, safe to write while the run continues) and values for JSON."""

    arrays: Arrays
    values: dict[str, Any]


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


def require_arrays(found: Mapping[str, NDArray[Any]], expected: Mapping[str, Expected]) -> None:
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


def states(parts: Mapping[str, Part]) -> dict[str, State]:
    """The state of each part."""
    return {name: _state(part) for name, part in parts.items()}


def as_arrays(states: Mapping[str, State]) -> Arrays:
    """The state of all parts as arrays named "part.name"; copies."""
    arrays: Arrays = {}
    for prefix, state in states.items():
        for name, value in state.items():
            if isinstance(value, Rows):
                arrays |= {f"{prefix}.{name}.{column}": array for column, array in _columns(value).items()}
            else:
                arrays[f"{prefix}.{name}"] = np.array(value)
    return arrays


def restore_(parts: Mapping[str, Part], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Restore the state of all parts, as new as `begin_` leaves them, from the arrays of `as_arrays`.

    Arrays must have the names, types and shapes that the new parts' own states have. A leading dimension of zero may
    have any length.
    """
    new = states(parts)
    values = {f"{prefix}.{name}": value for prefix, state in new.items() for name, value in state.items()}
    tables = {key: _rows(key, arrays, value.row_dtype) for key, value in values.items() if isinstance(value, Rows)}
    found = {
        name: array
        for name, array in arrays.items()
        if name.partition(".")[0] in parts and name.rpartition(".")[0] not in tables
    }
    require_arrays(found, {key: like(key, value) for key, value in values.items() if key not in tables})
    for prefix, part in parts.items():
        state: dict[str, Any] = {}
        for name, value in new[prefix].items():
            key = f"{prefix}.{name}"
            if key in tables:
                state[name] = tables[key]
            else:
                state[name] = found[key].copy() if isinstance(value, np.ndarray) else found[key].item()
        with blaming(part, "restore_"):
            part.restore_(state)


def like(key: str, value: Any) -> Expected:
    """What is expected of a saved array where a new part has this value."""
    array = np.asarray(value)
    free = array.ndim > 0 and not array.shape[0]
    return Expected(array.dtype.type, (key, *array.shape[1:]) if free else array.shape)


def _state(part: Part) -> State:
    with blaming(part, "state"):
        state: object = part.state()
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(value, KEPT) and getattr(value, "dtype", np.dtype(int)).kind in "biuf"
        for name, value in state.items()
    ):
        raise ConfigError(f"{path_of(part)}.state() returned no mapping of names to arrays, numbers or Rows")
    return state


def _columns(rows: Rows) -> Arrays:
    """Rows as arrays: the clients, each row's length, and all rows one after another."""
    for row in rows.values():
        if isinstance(row, np.ndarray) and (row.ndim != 1 or row.dtype == np.uint8):
            raise ConfigError(f"a row is a vector of numbers, or bytes; found an array {row.dtype}{list(row.shape)}")
    values = [row if isinstance(row, np.ndarray) else np.frombuffer(row, np.uint8) for row in rows.values()]
    kinds = {value.dtype.str for value in values}
    if len(kinds) > 1:
        raise ConfigError(f"rows of one table have one type, found {', '.join(sorted(kinds))}")
    kind = kinds.pop() if kinds else "|u1"
    joined = np.concatenate(values) if values else np.empty(0, kind)
    return {
        "clients": np.fromiter(rows, np.int64, len(rows)),
        "lengths": np.array([value.size for value in values], np.int64),
        "rows": joined,
    }


def _rows(key: str, arrays: Mapping[str, NDArray[Any]], dtype: np.dtype[Any] | None) -> Rows:
    columns = {name: array for name, array in arrays.items() if name.rpartition(".")[0] == key}
    joined = columns.get(f"{key}.rows", np.empty(0, np.uint8))
    lengths = columns.get(f"{key}.lengths", np.empty(0, np.int64))
    if joined.dtype.kind not in "biuf" or (joined.size and dtype not in (None, joined.dtype)):
        raise DataError(f"{key}.rows is {joined.dtype}, expected {dtype or 'numbers'}")
    expected = {
        f"{key}.clients": Expected(np.int64, ("rows",), 0, distinct=True),
        f"{key}.lengths": Expected(np.int64, ("rows",), 0),
        f"{key}.rows": Expected(joined.dtype.type, (int(lengths.sum()) if lengths.dtype == np.int64 else 0,)),
    }
    require_arrays(columns, expected)
    cut = np.split(joined, np.cumsum(lengths)[:-1]) if lengths.size else []
    rows = [row.tobytes() if row.dtype == np.uint8 else row.copy() for row in cut]
    return Rows(dict(zip(columns[f"{key}.clients"].tolist(), rows, strict=True)), None if dtype is None else dtype.type)
