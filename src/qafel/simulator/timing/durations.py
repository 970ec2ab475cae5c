"""Laws of training durations in virtual time, and factors per client."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError, require, require_numbers
from qafel.rng import Stream

BLOCK = 4096
NOT_BOUND = "a law gets its seed and the number of clients from the run: use it in a Timing, or set both"


@final
class Draws:
    """Numbered random draws. Draw i is available in any order; only the current block is kept.

    So a resumed run needs only a number.
    """

    __slots__ = ("_block", "_number", "_purpose", "_sample", "_seed")

    def __init__(
        self, seed: int | None, purpose: str, sample: Callable[[np.random.Generator], NDArray[np.float64]]
    ) -> None:
        self._seed = seed
        self._purpose = purpose
        self._sample = sample
        self._number = -1
        self._block: list[float] = []

    def __getitem__(self, number: int) -> float:
        block, within = divmod(number, BLOCK)
        if block != self._number:
            if self._seed is None:
                raise ConfigError(NOT_BOUND)
            self._block = self._sample(Stream.named(self._seed, self._purpose, number=block).generator()).tolist()
            self._number = block
        return self._block[within]


def normal_draws(seed: int | None, purpose: str) -> Draws:
    return Draws(seed, purpose, lambda generator: generator.normal(size=BLOCK))


def uniform_draws(seed: int | None, purpose: str) -> Draws:
    """Numbers in [0, 1)."""
    return Draws(seed, purpose, lambda generator: generator.random(BLOCK))


class Durations(Protocol):
    """A law of training times. Draws are numbered, so a resumed run continues with the same ones."""

    def draw(self, client: int, number: int) -> float:
        """The duration of start `number` of the run, which is this client's."""
        ...


class Law:
    """The base of shipped laws: dataclasses whose seed and number of clients default to the run's."""

    def for_run(self, seed: int, clients: int) -> Self:
        """The law for a run with this seed and number of clients."""
        law: Any = self
        given = {"seed": seed, "clients": clients}
        found: Self = replace(law, **{name: it for name, it in given.items() if getattr(law, name, it) is None})
        return found


@dataclass(eq=False, kw_only=True)
class _RandomLaw(Law):
    scale: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.scale > 0, "the scale of durations is positive", self.scale)
        self._draws = normal_draws(self.seed, "duration")


@final
@dataclass(eq=False, kw_only=True)
class HalfNormal(_RandomLaw):
    """scale·|N(0, 1)|, as in the paper's experiments. By default, the seed is the run's."""

    def draw(self, client: int, number: int) -> float:
        return self.scale * abs(self._draws[number])


@final
@dataclass(eq=False, kw_only=True)
class LogNormal(_RandomLaw):
    """scale·e^(spread·N(0, 1)): heavy-tailed, as measured on fleets of phones. The seed as for `HalfNormal`."""

    spread: float = 0.5

    def draw(self, client: int, number: int) -> float:
        return self.scale * math.exp(self.spread * self._draws[number])


@final
@dataclass(eq=False, kw_only=True)
class Uniform(_RandomLaw):
    """Between scale·(1 − spread) and scale·(1 + spread). The seed as for `HalfNormal`."""

    spread: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.spread <= 1, "the spread of uniform durations lies in [0, 1]", self.spread)
        self._draws = uniform_draws(self.seed, "duration")

    def draw(self, client: int, number: int) -> float:
        return self.scale * (1 + self.spread * (2 * self._draws[number] - 1))


@final
@dataclass(eq=False)
class Constant:
    """Always the same."""

    scale: float = 1.0

    def draw(self, client: int, number: int) -> float:
        return self.scale


def client_factors(
    seed: int, purpose: str, clients: int, spread: float, given: list[float] | None
) -> list[float] | None:
    """A factor e^(spread·N(0, 1)) per client, which depends on the seed only, times the `given` ones.

    None if all factors are one.
    """
    if not spread:
        return given
    drawn = [math.exp(spread * value) for value in Stream.named(seed, purpose).generator().normal(size=clients)]
    return drawn if given is None else [one * other for one, other in zip(drawn, given, strict=True)]


def steps_within(steps: int, duration: float, time: float) -> tuple[int, float]:
    """How many of its equally long `steps` a client completes in `time`, and how long they take.

    All steps take `duration`. This is FedProx's partial work.
    """
    if time < 0:
        return 0, 0.0
    if duration <= time:
        return steps, duration
    done = int(steps * time / duration) + 1  # the loop corrects rounding
    while done and duration * (done / steps) > time:
        done -= 1
    return done, duration * (done / steps)
