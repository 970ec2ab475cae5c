"""From uploads to a step: how much a late update weighs, the sum of up to K of them, and what the server does with it.

All of it is O(d), however many clients there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np

from qafel.errors import ConfigError
from qafel.params import Vector
from qafel.quantizers.protocol import Payload, Quantizer

Aggregation: TypeAlias = Literal["mean", "sum", "weighted-mean"]


@final
class Buffer:
    """Σ wₖΔₖ and what is needed to turn it into Δ̄. Algorithm 1, lines 6 to 8."""

    __slots__ = ("client_weight_sum", "count", "total", "weight_sum")

    def __init__(self, dimension: int) -> None:
        self.total: Vector = np.zeros(dimension, np.float32)
        self.empty_()

    def empty_(self) -> None:
        self.total[:] = 0
        self.count = 0
        self.weight_sum = 0.0
        self.client_weight_sum = 0.0

    def add_(self, payload: Payload, quantizer: Quantizer, client_weight: float, staleness_weight: float) -> None:
        """Add one decoded update, times both weights. A payload that does not decode changes nothing."""
        weight = client_weight * staleness_weight
        quantizer.add_decoded_(self.total, payload, weight)
        self.count += 1
        self.weight_sum += weight
        self.client_weight_sum += client_weight

    def divisor(self, aggregation: Aggregation) -> float:
        """What the sum is divided by: K for the mean, 1 for the sum, Σ of client weights for the weighted mean."""
        match aggregation:
            case "mean":
                return float(self.count)
            case "weighted-mean":
                return self.client_weight_sum
            case "sum":
                return 1.0


StalenessLaw: TypeAlias = Callable[[int], float]
"""How much a late update weighs: from staleness τ = t − v to a factor."""


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


@final
class ServerStep:
    """The server's step with momentum: v ← βv + Δ̄, x ← x − η_g v. Equation (2)."""

    __slots__ = ("lr", "momentum", "velocity")

    def __init__(self, lr: float, momentum: float, dimension: int) -> None:
        self.lr = np.float32(lr)
        self.momentum = np.float32(momentum)
        self.velocity: Vector | None = np.zeros(dimension, np.float32) if momentum else None

    def apply(self, model: Vector, update: Vector) -> Vector:
        """The next server model, as a new vector."""
        if self.velocity is not None:
            self.velocity *= self.momentum
            self.velocity += update
            update = self.velocity
        return model - self.lr * update
