"""The paper's first problem: ℓ₂-regularised logistic regression on LIBSVM's mushrooms.

- 8,124 rows of 112 binary features and an intercept: d = 113.
- Labels 1 (poisonous) and 2 (edible) become 0 and 1.
- The rows are split in file order into contiguous parts, one per client.
- f(x) = mean logistic loss + ‖x‖²/(2·8124), including the intercept; x⁰ = 0.

The data ships with the package. docs/tasks.md states its origin and licence.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm import HiddenState, LocalTraining
from qafel.errors import ConfigError, DataError
from qafel.params import Layout, Vector
from qafel.rng import Stream
from qafel.tasks import convex
from qafel.tasks.convex.steps import logistic_steps, steps_of
from qafel.tasks.protocol import Goal

ROWS, FEATURES = 8124, 112
OPTIMUM = 0.014484174216922262
"""f*, from Newton's method in float64. A test confirms it."""


@final
@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Dense features, one row per sample, with labels."""

    features: NDArray[np.float32]
    labels: NDArray[np.float64]


def read_libsvm(path: Path, features: int | None = None) -> LabelledRows:
    """Read LIBSVM's text format: lines `label index:value …` with ascending indices from 1.

    features   the number of columns; by default the largest index
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: expected a LIBSVM text file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} as LIBSVM text: {error}") from None
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
            raise DataError(f"{path}, line {number}: expected ascending indices from 1, found {indices}")
        rows.append(pairs)
    if not rows:
        raise DataError(f"{path} is empty: expected lines 'label index:value …'")
    largest = max((pairs[-1][0] for pairs in rows if pairs), default=0)
    if features is not None and largest > features:
        raise DataError(f"{path} has feature {largest}, expected at most {features}")
    dense = np.zeros((len(rows), features or largest), np.float32)
    for row, pairs in zip(dense, rows, strict=True):
        for index, value in pairs:
            row[index - 1] = value
    return LabelledRows(dense, np.array(labels))


def write_libsvm(rows: LabelledRows) -> str:
    """Return `rows` in LIBSVM's text format, byte for byte as on LIBSVM's site."""
    lines = []
    for row, label in zip(rows.features, rows.labels, strict=True):
        fields = " ".join(f"{column + 1}:{row[column]:g}" for column in np.flatnonzero(row))
        lines.append(f"{label:g} {fields} ")
    return "\n".join(lines)


@cache
def load_mushrooms() -> LabelledRows:
    """Return LIBSVM's dataset, read-only: features 0 or 1, labels 1 or 2."""
    packed = np.load(io.BytesIO(files("qafel.tasks").joinpath("data/mushrooms.npz").read_bytes()))
    features = np.zeros((ROWS, FEATURES), np.float32)
    np.put_along_axis(features, packed["ones"].astype(np.int64), 1.0, axis=1)
    labels = packed["labels"].astype(np.float64)
    features.flags.writeable = labels.flags.writeable = False  # all callers share them
    return LabelledRows(features, labels)


@final
class Mushrooms:
    """Logistic regression on mushrooms, split among clients. The metric is f(x) − f*."""

    name = "mushrooms"
    metric_name = "f(x) − f*"
    metric_goal: Goal = "min"
    takes_correction = True

    def __init__(self, clients: int = 100) -> None:
        if not 1 <= clients <= ROWS:
            raise ConfigError(f"mushrooms takes 1 to {ROWS} clients, one row each at least; got {clients}")
        data = load_mushrooms()
        rows = np.hstack([data.features, np.ones((ROWS, 1), np.float32)])
        self.clients = clients
        self.layout = Layout.flat(FEATURES + 1)
        self._l2 = 1 / ROWS
        self._ones: NDArray[np.uint8] = np.nonzero(data.features)[1].reshape(ROWS, -1).astype(np.uint8)
        self._targets = (data.labels - 1).astype(np.float32)
        self._parts = [
            (part, np.ascontiguousarray(part.T), targets)
            for part, targets in zip(np.array_split(rows, clients), np.array_split(self._targets, clients), strict=True)
        ]

    def samples(self, client: int) -> int:
        return len(self._parts[client][2])

    def initial_model(self, stream: Stream) -> Vector:
        return np.zeros(self.layout.size, np.float32)

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        return logistic_steps(self._parts[client], start.vector, local, steps_of(local, self.name), self._l2)

    def loss(self, model: Vector) -> float:
        """Return f(x)."""
        return float(convex.kernels.mean_loss_of_ones(self._ones, self._targets, model, self._l2))

    def evaluate(self, model: Vector) -> dict[str, float]:
        return {"metric": self.loss(model) - OPTIMUM}
