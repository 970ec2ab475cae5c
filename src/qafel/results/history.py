"""A run's evaluations as columns, in the manner of a data frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray


@final
class History(Mapping[str, NDArray[Any]]):
    """Columns by name: `history["metric"]`, `history.columns`, `len(history.rows)`, `history.to_pandas()`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)
        self.columns = list(self.rows[0]) if self.rows else []

    def __getitem__(self, column: str) -> NDArray[Any]:
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        values = [row.get(column) for row in self.rows]
        if all(value is None or isinstance(value, int | float) for value in values):
            return np.array([np.nan if value is None else value for value in values])
        array = np.empty(len(values), object)
        array[:] = values
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"History({len(self.rows)} rows × {len(self.columns)} columns: {', '.join(self.columns)})"

    def to_pandas(self) -> Any:
        """A pandas DataFrame, where pandas is installed."""
        import pandas as pd  # noqa: PLC0415  (an optional extra of the user's own)

        return pd.DataFrame(self.rows)
