"""A user's own parts of the server: a staleness law, an aggregation, a step. Plain objects with one method each.

    staleness(τ) → weight                  any callable
    aggregate(updates, weights) → Δ̄        K decoded updates as the rows of a matrix, and their weights
    step(model, update) → model            x and Δ̄ to the next x; learning rate and momentum are its own matter

Each server works with its own copy, so that no run hands its state on to another. A part with state has `state()`,
which returns a dict of arrays, and `restore(state)`: they go into checkpoints. A part that changes without them is
found out, and a checkpoint is refused.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError
from qafel.params import Vector, require_vector
from qafel.parts import Kind, blaming
from qafel.text import path_of

QUANTIZER = Kind("quantizer", ("encode", "decode"))
STALENESS = Kind("staleness law", ("__call__",))
AGGREGATION = Kind("aggregation", ("aggregate",))
SERVER_STEP = Kind("server step", ("step",))
OWN_KINDS = {
    "client_quantizer": QUANTIZER,
    "server_quantizer": QUANTIZER,
    "snapshot_quantizer": QUANTIZER,
    "staleness": STALENESS,
    "aggregation": AGGREGATION,
    "server_step": SERVER_STEP,
}
"""The settings of a method that may name a user's own part, and what it must be."""

StalenessLaw: TypeAlias = Callable[[int], float]
"""How much a late update weighs: from staleness τ = t − v to a factor."""


class Aggregator(Protocol):
    """Turns the buffer into Δ̄. Algorithm 1, line 8."""

    def aggregate(self, updates: NDArray[np.float32], weights: NDArray[np.float64]) -> Vector:
        """Δ̄ from a row per update, and each one's weight: the client's times that of its staleness."""
        ...


class Step(Protocol):
    """Moves the server model by Δ̄. Algorithm 1, line 9."""

    def step(self, model: Vector, update: Vector) -> Vector:
        """The next server model."""
        ...


def checked(law: StalenessLaw) -> StalenessLaw:
    """The law, with a sentence where it returns no weight."""

    def weigh(staleness: int) -> float:
        with blaming(law):
            weight: Any = law(staleness)
        try:
            sound = math.isfinite(weight) and weight >= 0
        except TypeError:
            sound = False
        if not sound:
            raise ConfigError(
                f"a staleness law returns a finite weight of zero or more, {path_of(law)}({staleness}) is {weight!r}"
            )
        return float(weight)

    return weigh


@final
class OwnPart:
    """One server's copy of a user's part: calls it, checks what it returns, saves its state."""

    __slots__ = ("_fresh", "_method", "_part", "_said")

    def __init__(self, part: object, method: str) -> None:
        """A copy of the `part`, whose one `method` will be called."""
        self._method, self._said = method, f"{path_of(part)}.{method}"
        if isinstance(part, type) or not callable(getattr(part, method, None)):
            raise ConfigError(f"expected an object with a method {method}, found {part!r}")
        try:
            self._part: Any = copy.deepcopy(part)
        except Exception as error:
            raise ConfigError(f"{path_of(part)} cannot be copied, and each server needs its own: {error}") from error
        self._fresh = self._pickled()

    def __call__(self, size: int, *arguments: NDArray[Any]) -> Vector:
        """What the method makes of the arguments, which it may change: a float vector of `size`, else a sentence."""
        with blaming(self._said):
            found = getattr(self._part, self._method)(*arguments)
        return require_vector(found, size, self._said).copy()

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps of the part; `ConfigError` if it changes and does not say how to keep that."""
        if not self._keeps:
            if self._fresh is None or self._pickled() != self._fresh:
                raise ConfigError(
                    f"{path_of(self._part)} changes as it works, and has no state() and restore(state): no checkpoint "
                    "can be made; add both, or run without a run directory"
                )
            return {}
        with blaming(self._part, "state"):
            found = self._part.state()
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise ConfigError(f"{path_of(self._part)}.state() returned no dict of arrays by name")
        arrays = {key: np.array(value) for key, value in found.items()}
        if bad := [key for key, array in arrays.items() if array.dtype.kind not in "biuf"]:
            raise ConfigError(f"{path_of(self._part)}.state() holds {bad[0]!r}, which is not an array of numbers")
        return arrays

    def try_out(self, size: int, *arguments: NDArray[Any]) -> None:
        """Raise `ConfigError` if the part cannot be saved once it has worked; made-up arguments prove nothing else."""
        with suppress(Exception):
            self(size, *arguments)
        self.state()

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        if self._keeps:
            with blaming(self._part, "restore"):
                self._part.restore(state)

    @property
    def _keeps(self) -> bool:
        return all(callable(getattr(self._part, name, None)) for name in ("state", "restore"))

    def _pickled(self) -> bytes | None:
        try:
            return pickle.dumps(self._part)
        except Exception:
            return None


def own_parts(aggregation: object, step: object) -> tuple[OwnPart | None, OwnPart | None]:
    """A server's copies of its own aggregation and its own step; None where it has the built-in one."""
    aggregates = None if isinstance(aggregation, str) else OwnPart(aggregation, "aggregate")
    return aggregates, None if step is None else OwnPart(step, "step")
