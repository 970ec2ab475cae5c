"""Numbered random draws: draw i of a stream, in any order, without keeping any but the current block."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray

from qafel.rng import Stream

BLOCK = 4096


@final
class Draws:
    """An endless sequence of numbers under one name. A resumed run needs only their number."""

    __slots__ = ("_block", "_number", "_purpose", "_sample", "_seed")

    def __init__(self, seed: int, purpose: str, sample: Callable[[np.random.Generator], NDArray[np.float64]]) -> None:
        self._seed = seed
        self._purpose = purpose
        self._sample = sample
        self._number = -1
        self._block: list[float] = []

    def __getitem__(self, number: int) -> float:
        block, within = divmod(number, BLOCK)
        if block != self._number:
            self._block = self._sample(Stream.named(self._seed, self._purpose, number=block).generator()).tolist()
            self._number = block
        return self._block[within]


def normal(seed: int, purpose: str) -> Draws:
    return Draws(seed, purpose, lambda generator: generator.normal(size=BLOCK))


def uniform(seed: int, purpose: str) -> Draws:
    """Numbers in [0, 1)."""
    return Draws(seed, purpose, lambda generator: generator.random(BLOCK))
