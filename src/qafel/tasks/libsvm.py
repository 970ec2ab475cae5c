"""LIBSVM's text format: one row a line, `label index:value …`, indices from 1, ascending."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Dense features, one row per sample, and a label for each."""

    features: NDArray[np.float32]
    labels: NDArray[np.float64]


def read_libsvm(path: Path, features: int | None = None) -> LabelledRows:
    """Read a LIBSVM file; `features` is the number of columns, by default the largest index found."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put the LIBSVM text file there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as LIBSVM text: {error}") from None
    labels, rows = [], []
    for number, line in enumerate(lines, start=1):
        if not (fields := line.split("#", 1)[0].split()):
            continue
        try:
            pairs = [(int(index), float(value)) for index, value in (field.split(":") for field in fields[1:])]
            labels.append(float(fields[0]))
        except ValueError:
            raise DataError(f"{path}, line {number}: expected 'label index:value …', found {line[:60]!r}") from None
        indices = [index for index, _ in pairs]
        if any(index < 1 for index in indices) or sorted(set(indices)) != indices:
            raise DataError(f"{path}, line {number}: indices start at 1 and ascend, found {indices}")
        rows.append(pairs)
    if not rows:
        raise DataError(f"{path} has no rows")
    largest = max((pairs[-1][0] for pairs in rows if pairs), default=0)
    if features is not None and largest > features:
        raise DataError(f"{path} has feature {largest}, expected at most {features}")
    dense = np.zeros((len(rows), features or largest), np.float32)
    for row, pairs in zip(dense, rows, strict=True):
        for index, value in pairs:
            row[index - 1] = value
    return LabelledRows(dense, np.array(labels))


def write_libsvm(rows: LabelledRows) -> str:
    """The text that `read_libsvm` reads back, byte for byte as LIBSVM's site writes it."""
    lines = []
    for row, label in zip(rows.features, rows.labels, strict=True):
        fields = " ".join(f"{column + 1}:{row[column]:g}" for column in np.flatnonzero(row))
        lines.append(f"{label:g} {fields} ")
    return "\n".join(lines)
