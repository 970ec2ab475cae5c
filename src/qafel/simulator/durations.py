"""How long clients train, in virtual time."""

from __future__ import annotations

from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from qafel.rng import Stream

BLOCK = 4096


class Durations(Protocol):
    """A law of training times. Draws are numbered, so that a resumed run goes on with the same ones."""

    def draw(self, number: int) -> float:
        """The duration of the run's `number`-th start."""
        ...


@final
class HalfNormal:
    """|N(0, scale²)|, as in the paper's experiments."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        self.seed = seed
        self.scale = scale
        self._block: NDArray[np.float64] = np.empty(0)
        self._number = -1

    def draw(self, number: int) -> float:
        if number // BLOCK != self._number:
            self._number = number // BLOCK
            generator = Stream.named(self.seed, "duration", number=self._number).generator()
            self._block = np.abs(generator.normal(scale=self.scale, size=BLOCK))
        return float(self._block[number % BLOCK])
