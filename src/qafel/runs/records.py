"""What the files of a run may hold, and the one way to read them.

A file of a run is read only if it is a regular file within a size, and its content must fit the record that declares
it. Anything else raises a `DataError` that names the file: one odd file never harms the reader or other runs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, Strict, TypeAdapter, ValidationError

from qafel.errors import DataError
from qafel.files import read_regular
from qafel.text import cut, printable

LARGEST = 1e150
"""The largest number. Beyond it a metric counts as infinite: sums and products of larger ones would overflow."""
_LONGEST = 1000
_Record = TypeVar("_Record")


def bounded(value: float) -> float:
    """The number; infinite if it is beyond `LARGEST`."""
    return value if not abs(value) > LARGEST else math.inf if value > 0 else -math.inf


Count: TypeAlias = Annotated[int, Strict(), Field(ge=0, lt=1 << 64)]
CountOrNone: TypeAlias = Annotated[int, Strict(), Field(ge=-1, lt=1 << 64)]
"""−1: not yet counted."""
Finite: TypeAlias = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Amount: TypeAlias = Annotated[float, Strict(), Field(ge=0, le=LARGEST, allow_inf_nan=False)]
"""Seconds, rates and shares."""
Number: TypeAlias = Annotated[float, Strict(), AfterValidator(bounded)]
"""What a task measured, which may have diverged."""
Text: TypeAlias = Annotated[str, Strict(), AfterValidator(lambda text: cut(printable(text[:_LONGEST]), _LONGEST))]
"""As a page or a terminal may show it."""


def read_record(file: Path, record: TypeAdapter[_Record], most_bytes: int, hint: str) -> _Record:
    """The content of a JSON file as its `record` declares it; `FileNotFoundError` if there is no such file.

    `hint` ends the error about a damaged one: what to do.
    """
    data = read_regular(file, most_bytes)
    try:
        return record.validate_json(data)
    except ValidationError as error:
        raise DataError(f"{file} is damaged ({fault_of(error)}): {hint}") from None


def fault_of(error: ValidationError) -> str:
    """The first thing that is wrong: where, what was expected, what was found."""
    first: Any = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    found = "" if first["type"] == "json_invalid" else f", found {first['input']!r}"
    message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return cut(printable(f"{where + ': ' if where else ''}{message}{found}"), 200)
