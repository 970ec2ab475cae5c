"""The server's buffer: one running sum of up to K weighted updates, O(d) however many clients there are."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import numpy as np

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
