"""How long clients train, in virtual time: laws, and what modifies them."""

from __future__ import annotations

import math
from typing import Protocol, final

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.simulator.timing import draws


class Durations(Protocol):
    """A law of training times. Draws are numbered, so that a resumed run goes on with the same ones."""

    def draw(self, number: int) -> float:
        """The duration of the run's `number`-th start."""
        ...


@final
class HalfNormal:
    """scale·|N(0, 1)|, as in the paper's experiments."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        self._scale = scale
        self._draws = draws.normal(seed, "duration")

    def draw(self, number: int) -> float:
        return self._scale * abs(self._draws[number])


@final
class LogNormal:
    """scale·e^(spread·N(0, 1)): heavy-tailed, as measured on fleets of phones."""

    def __init__(self, seed: int, scale: float = 1.0, spread: float = 0.5) -> None:
        self._scale, self._spread = scale, spread
        self._draws = draws.normal(seed, "duration")

    def draw(self, number: int) -> float:
        return self._scale * math.exp(self._spread * self._draws[number])


@final
class Uniform:
    """Between scale·(1 − spread) and scale·(1 + spread)."""

    def __init__(self, seed: int, scale: float = 1.0, spread: float = 0.5) -> None:
        if not 0 <= spread <= 1:
            raise ConfigError(f"the spread of uniform durations lies in [0, 1], got {spread}")
        self._scale, self._spread = scale, spread
        self._draws = draws.uniform(seed, "duration")

    def draw(self, number: int) -> float:
        return self._scale * (1 + self._spread * (2 * self._draws[number] - 1))


@final
class Constant:
    """Always the same."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def draw(self, number: int) -> float:
        return self._scale


def client_factors(seed: int, purpose: str, clients: int, spread: float) -> list[float] | None:
    """A factor e^(spread·N(0, 1)) for each client, always the same for the seed; None where all are one."""
    if not spread:
        return None
    generator = Stream.named(seed, purpose).generator()
    return [math.exp(spread * value) for value in generator.normal(size=clients)]
