"""How much a late update weighs: a law from staleness τ = t − v to a factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from qafel.errors import ConfigError

StalenessLaw: TypeAlias = Callable[[int], float]


@final
@dataclass(frozen=True, slots=True)
class PolynomialStaleness:
    """1 up to the cut-off b, then 1/(1 + τ − b)ᵃ.

    a = 0 weighs all alike; a = 1/2, b = 0 is the paper's 1/√(1+τ); FedAsync's polynomial law has any a.
    """

    exponent: float = 0.0
    cutoff: int = 0

    def __post_init__(self) -> None:
        if self.exponent < 0:
            raise ConfigError(f"the staleness exponent is zero or more, got {self.exponent}")
        if self.cutoff < 0:
            raise ConfigError(f"the staleness cut-off is zero or more, got {self.cutoff}")

    def __call__(self, staleness: int) -> float:
        if not self.exponent:
            return 1.0
        return float((1 + max(0, staleness - self.cutoff)) ** -self.exponent)
