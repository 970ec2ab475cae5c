"""Checkpoint files, and the log of rows beside them.

A checkpoint file holds arrays and values. Its rows lie in a log in the same folder, so that a checkpoint writes only
rows that changed. Rows are appended before the checkpoint that points to them is written. A process that is killed in
between leaves the previous checkpoint, whose rows are still there.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import safetensors
import safetensors.numpy
import xxhash
from numpy.typing import NDArray
from pydantic import TypeAdapter

from qafel.algorithm import Checkpoint, Rows
from qafel.algorithm.state import Arrays, Expected, require_arrays
from qafel.errors import DataError
from qafel.files import open_regular, read_checked, sync_folder, write_checked, writing

_FORMAT = 3
_VALUES = TypeAdapter(dict[str, Any])
_LOG_HEAD = b"qafel rows 1\n"
_LOG_NAME = re.compile(r"rows-\d{9}\.qafel")
_COLUMNS: dict[str, Any] = {"clients": np.int64, "offsets": np.int64, "lengths": np.int64, "checksums": np.uint64}
_SMALL_BYTES = 1 << 16
"""A log up to this size is not compacted."""


class _Place(NamedTuple):
    """Where the log holds a row."""

    row: Any
    """The row itself: while it is referenced here, no other object has its id."""
    offset: int
    length: int
    checksum: int


@final
class RowLog:
    """The rows of a folder's checkpoints, each written once.

    Rows never change, so a row object that was written before is known by its identity. A log that holds more than
    twice the bytes of the current rows is replaced by a new one.
    """

    def __init__(self, folder: Path, kept: int = 1) -> None:
        """`kept`: how many of the last checkpoints must stay readable."""
        self._folder = folder
        self._name: str | None = None
        self._places: dict[int, _Place] = {}
        self._in_use: deque[str] = deque(maxlen=kept)

    def append(self, tables: Mapping[str, Rows]) -> tuple[str | None, Arrays]:
        """Append the rows that the log does not hold; return its name and where each row lies, as arrays."""
        rows = {id(row): row for table in tables.values() for row in table.values()}
        views = {key: memoryview(row).cast("B") for key, row in rows.items()}
        places = {key: self._places[key] for key in rows.keys() & self._places.keys()}
        with writing(f"rows to {self._folder}"):
            path = self._folder / self._name if self._name else None
            added = sum(views[key].nbytes for key in rows.keys() - places.keys())
            live = sum(view.nbytes for view in views.values())
            if path is None or not path.exists() or path.stat().st_size + added > 2 * live + _SMALL_BYTES:
                path, places = self._folder / self._next_name(), {}
            if len(places) < len(rows):
                self._folder.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:
                    if not file.tell():
                        file.write(_LOG_HEAD)
                    for key, view in views.items():
                        if key not in places:
                            checksum = xxhash.xxh3_64_intdigest(view)
                            places[key] = _Place(rows[key], file.tell(), view.nbytes, checksum)
                            file.write(view)
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(self._folder)
        self._name, self._places = (path.name, places) if rows else (None, {})
        index: Arrays = {}
        for name, table in tables.items():
            found = [places[id(row)] for row in table.values()]
            columns = (list(table), *([place[field] for place in found] for field in (1, 2, 3)))
            index |= {
                f"{name}.{column}": np.array(values, dtype)
                for (column, dtype), values in zip(_COLUMNS.items(), columns, strict=True)
            }
        return self._name, index

    def keep(self, name: str | None) -> None:
        """Note the log of a checkpoint that was written, and delete logs that no kept checkpoint needs."""
        if name is None:
            return
        self._in_use.append(name)
        old = [path for path in self._folder.glob("rows-*.qafel") if path.name < min(self._in_use)]
        if old:
            sync_folder(self._folder)  # the checkpoint's new name lasts before the old rows go
        for path in old:
            path.unlink(missing_ok=True)

    def load(self, name: str | None, types: Mapping[str, str], index: Mapping[str, NDArray[Any]]) -> dict[str, Rows]:
        """The tables of a checkpoint, whose log is `name`; `DataError` if the log is missing or damaged."""
        require_arrays(
            index,
            {
                f"{table}.{column}": Expected(dtype, (table,), 0, distinct=column == "clients")
                for table in types
                for column, dtype in _COLUMNS.items()
            },
        )
        if name is None or not _LOG_NAME.fullmatch(name):
            if name is not None or any(array.size for array in index.values()):
                raise DataError(f"{name} is not a log of rows")
            return {table: Rows() for table in types}
        path, read = self._folder / name, dict[tuple[int, int, int, str], Any]()
        tables: dict[str, Rows] = {}
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                for table, kind in types.items():
                    tables[table] = Rows()
                    columns = [index[f"{table}.{column}"].tolist() for column in _COLUMNS]
                    for client, offset, length, checksum in zip(*columns, strict=True):
                        place = (offset, length, checksum, kind)
                        if place not in read:
                            if offset + length > size:
                                raise DataError(f"{path} is truncated: it has {size} bytes")
                            file.seek(offset)
                            data = file.read(length)
                            if xxhash.xxh3_64_intdigest(data) != checksum:
                                raise DataError(f"{path} is damaged at byte {offset}: its checksum differs")
                            read[place] = data if kind == "|u1" else np.frombuffer(data, np.dtype(kind))
                        tables[table][client] = read[place]
        except FileNotFoundError:
            raise DataError(f"{path} is missing") from None
        self._name, self._places = name, {id(row): _Place(row, *place[:3]) for place, row in read.items()}
        self._in_use.append(name)
        return tables

    def _next_name(self) -> str:
        numbers = [int(path.stem[5:]) for path in self._folder.glob("rows-*") if _LOG_NAME.fullmatch(path.name)]
        return f"rows-{max(numbers, default=0) + 1:09}.qafel"


def write_checkpoint(path: Path, checkpoint: Checkpoint, log: RowLog | None = None) -> None:
    """Replace the checkpoint file `path`; a process killed meanwhile leaves the previous one.

    Arrays are in safetensors, values as JSON in its header, and a checksum covers both. `log` holds the rows: by
    default a new one in the same folder.
    """
    log = log or RowLog(path.parent)
    name, index = log.append(checkpoint.rows) if checkpoint.rows else (None, {})
    types = {table: (rows.row_dtype or np.dtype(np.uint8)).str for table, rows in checkpoint.rows.items()}
    metadata = {"values": checkpoint.values, "log": name, "rows": types}
    header = {key: json.dumps(value) for key, value in metadata.items()}
    # safetensors writes memory as it lies, whatever the array's order
    arrays = {key: np.asarray(array, order="C") for key, array in {**checkpoint.arrays, **index}.items()}
    write_checked(path, "checkpoint", _FORMAT, safetensors.numpy.save(arrays, metadata=header))
    log.keep(name)


def read_checkpoint(path: Path, log: RowLog | None = None) -> Checkpoint:
    """Read a checkpoint file; `DataError` says that it or its rows are missing, damaged or of another version."""
    data = read_checked(path, "checkpoint", _FORMAT)
    try:
        arrays = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        values, types = (_VALUES.validate_json(header[key]) for key in ("values", "rows"))
        index = {name: array for name, array in arrays.items() if name.rpartition(".")[0] in types}
        rows = (log or RowLog(path.parent)).load(json.loads(header["log"]), types, index)
    except (safetensors.SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}): its content is not a checkpoint") from None
    return Checkpoint({name: array for name, array in arrays.items() if name not in index}, values, rows)
