"""State is named arrays, numbers and rows. One pair of functions saves and restores every part.

Restored state is checked here, once, before it is used. Compiled code trusts the lengths of arrays, and NumPy
broadcasts short ones. Without checks, a crafted checkpoint would cause harm or a wrong result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError, DataError
from qafel.parts import errors_of, is_custom
from qafel.text import path_of

if TYPE_CHECKING:
    from qafel.algorithm.parts import Part

Arrays: TypeAlias = dict[str, NDArray[Any]]
_Named = TypeVar("_Named")
_FEW = 3  # names that an error lists
_BYTES = np.dtype(np.uint8)


@final
class Rows(MutableMapping[int, Any]):
    """One vector or payload (bytes) per client.

    A row never changes: its array becomes read-only, and a new value is assigned. So a checkpoint writes changed rows
    only.
    """

    __slots__ = ("_rows", "row_dtype")

    def __init__(self, rows: Mapping[int, Any] | None = None, dtype: type[np.generic] | None = None) -> None:
        """`dtype`: the type of every row, `np.uint8` for payloads; None: the type of the first row."""
        self.row_dtype = None if dtype is None else np.dtype(dtype)
        self._rows: dict[int, Any] = {}
        self.update(rows or {})

    def __getitem__(self, client: int) -> Any:
        return self._rows[client]

    def __setitem__(self, client: int, row: Any) -> None:
        if type(client) is not int or client < 0:
            client = _client_number(client)
        if isinstance(row, bytes | bytearray | memoryview):
            row, dtype = bytes(row), _BYTES
        elif is_row(row):
            dtype = row.dtype
            if not row.flags.contiguous or not (row.flags.owndata or _is_frozen(row)):
                row = row.copy()  # else its owner could change it
            row.flags.writeable = False
        else:
            kind = getattr(row, "dtype", type(row).__name__)
            raise ConfigError(f"a row is a vector of numbers (uint8 as bytes), or bytes; found {kind}{np.shape(row)}")
        if dtype != (self.row_dtype or dtype):
            raise ConfigError(f"all rows of this table are {self.row_dtype}, found a row of {dtype}")
        self.row_dtype = dtype
        self._rows[client] = row

    def __delitem__(self, client: int) -> None:
        del self._rows[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def copy(self) -> Rows:
        """Another table with the same rows."""
        copied = Rows()
        copied.row_dtype, copied._rows = self.row_dtype, self._rows.copy()
        return copied


def is_row(value: object) -> bool:
    """Whether the value is a vector that `Rows` take."""
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf" and value.dtype != _BYTES


def _client_number(client: object) -> int:
    if isinstance(client, int | np.integer) and not isinstance(client, bool) and client >= 0:
        return int(client)
    raise ConfigError(f"the key of a row is a client's number, 0 or more; found {client!r}")


def _is_frozen(row: NDArray[Any]) -> bool:
    """Whether no writable array shares the memory of this view."""
    base: object = row
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or isinstance(base, bytes)


State: TypeAlias = Mapping[str, Any]
"""Arrays, numbers and `Rows` by name."""
KEPT = (np.ndarray, np.integer, np.floating, np.bool_, Rows, float, int)
_MOST_WHOLE = 2**63 - 1
_MOST_BYTES = 8


@final
class Checkpoint(NamedTuple):
    """What survives a killed process: arrays and tables of rows by name, and values for JSON.

    All of it is safe to write while the run continues.
    """

    arrays: Arrays
    values: dict[str, Any]
    rows: dict[str, Rows] = {}  # noqa: RUF012  (never changed)


@final
class Expected(NamedTuple):
    """What an array must be: its type, its shape, and the least of its values, which are finite."""

    dtype: type[np.generic]
    shape: tuple[int | str, ...] = ()
    """Lengths. A word stands for any length, which is the same wherever the word stands."""
    low: float = -math.inf
    distinct: bool = False
    """Whether no value may be there twice."""
    finite: bool = True
    """Whether neither NaN nor infinity may be there."""


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
            expected_shape = ", ".join(str(lengths.get(str(length), length)) for length in wanted.shape)
            raise DataError(f"{name} is {array.dtype}{list(array.shape)}, expected {dtype}[{expected_shape}]")
        if not array.size:
            continue
        if dtype.kind == "f" and not np.isfinite(array).all():
            if wanted.finite:
                raise DataError(f"{name} holds a NaN or an infinity")
            continue
        if array.min() < wanted.low:
            raise DataError(f"{name} holds {array.min()}, expected at least {wanted.low}")
        if wanted.distinct and np.unique(array).size < array.size:
            raise DataError(f"{name} holds a value twice")


def state_of(parts: Mapping[str, Part]) -> dict[str, Any]:
    """The state of all parts, by "part.name"."""
    return {f"{role}.{name}": value for role, part in parts.items() for name, value in checked_state(part).items()}


def pack(state: State) -> tuple[Arrays, dict[str, Rows]]:
    """The result of `state_of` as arrays and tables of rows; copies."""
    arrays = {name: np.array(value, order="C") for name, value in state.items() if not isinstance(value, Rows)}
    return arrays, {name: value.copy() for name, value in state.items() if isinstance(value, Rows)}


def expected_arrays(new: State) -> dict[str, Expected]:
    """What is expected of saved arrays, given the state of new parts."""
    return {name: like(name, value) for name, value in new.items() if not isinstance(value, Rows)}


def inside(prefix: str, named: Mapping[str, _Named]) -> dict[str, _Named]:
    """The entries with this prefix, which is removed."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def require_restorable(parts: Mapping[str, Part], arrays: Arrays, expected: Mapping[str, Expected]) -> None:
    """Raise `ConfigError` if a custom part saves what `restore_` would refuse."""
    for key, wanted in expected.items():
        role, _, name = key.partition(".")
        if not is_custom(parts[role]):
            continue
        try:
            require_arrays({name: arrays[key]}, {name: wanted})
        except DataError as error:
            raise ConfigError(
                f"{path_of(parts[role])} could not be restored from a checkpoint: {error}. Attributes keep the shape "
                "of begin_, and are finite unless they begin otherwise; a first dimension of 0 may grow"
            ) from None


def restore_(
    parts: Mapping[str, Part], arrays: Arrays, rows: Mapping[str, Rows], numpy_scalars: Collection[str] = ()
) -> None:
    """Restore the state of all parts, as new as `begin_` leaves them, from the result of `pack`.

    Arrays must have the names, types and shapes of the new parts' states. A leading dimension of zero may have any
    length. `numpy_scalars`: the names of numbers with a NumPy type, which in arithmetic differ from Python's numbers.
    """
    new = state_of(parts)
    require_arrays(arrays, expected_arrays(new))
    _require_rows(rows, {name: value for name, value in new.items() if isinstance(value, Rows)})
    state: dict[str, Any] = {name: table.copy() for name, table in rows.items()}
    for name, array in arrays.items():
        state[name] = array[()] if name in numpy_scalars else _like_new(new[name], array, name)
    for role, part in parts.items():
        with errors_of(part, "restore_"):
            part.restore_(inside(f"{role}.", state))


def _like_new(value: Any, saved: NDArray[Any], key: str) -> Any:
    """A saved value in the form of the new part's: an array in the same memory order, or a number of the same class."""
    if isinstance(value, np.ndarray):
        array = np.empty_like(value, shape=saved.shape, subok=False)
        array[...] = saved
        return array
    if not isinstance(value, Enum):
        return saved.item()
    try:
        return type(value)(saved.item())
    except ValueError:
        raise DataError(f"{key} is {saved.item()}, which is no {type(value).__name__}") from None


def like(key: str, value: Any) -> Expected:
    """What is expected of a saved array where a new part has this value."""
    array = np.asarray(value)
    free = array.ndim > 0 and not array.shape[0]
    finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return Expected(array.dtype.type, (key, *array.shape[1:]) if free else array.shape, finite=finite)


def checked_state(part: Part) -> State:
    """The state of a part, which a checkpoint can hold."""
    with errors_of(part, "state"):
        state: object = part.state()
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise ConfigError(f"{path_of(part)}.state() returned no mapping of names to arrays, numbers or Rows")
    for name, value in state.items():
        is_long = type(value) is int and abs(value) > _MOST_WHOLE
        dtype = getattr(value, "dtype", np.dtype(float))
        if is_long or not isinstance(value, KEPT) or dtype.kind not in "biuf" or dtype.itemsize > _MOST_BYTES:
            found = "a whole number of over 64 bits" if is_long else getattr(value, "dtype", type(value).__name__)
            raise ConfigError(
                f"{path_of(part)}.state(): {name} is {found}. A checkpoint saves arrays, numbers of up to 64 bits, and "
                "Rows"
            )
    return state


def require_vectors(table: Mapping[int, Any], new: NDArray[Any], what: str) -> None:
    """Raise `DataError` unless all rows are finite vectors of the type and shape of `new`."""
    for row in table.values():
        if not isinstance(row, np.ndarray) or (row.shape, row.dtype) != (new.shape, new.dtype):
            raise DataError(f"{what} does not have {new.size} numbers of type {new.dtype}")
        if not np.isfinite(row).all():
            raise DataError(f"{what} holds a NaN or an infinity")


def _require_rows(found: Mapping[str, Rows], expected: Mapping[str, Rows]) -> None:
    if different := found.keys() ^ expected.keys():
        raise DataError(f"{min(different)} is {'not expected' if min(different) in found else 'missing'}")
    for name, rows in found.items():
        if rows and expected[name].row_dtype not in (None, rows.row_dtype):
            raise DataError(f"{name} has rows of {rows.row_dtype}, expected {expected[name].row_dtype}")
        if any(isinstance(row, np.ndarray) and not np.isfinite(row).all() for row in rows.values()):
            raise DataError(f"{name} holds a NaN or an infinity")
