"""From uploads to a step: which were counted before, how much a late one weighs, the sum of up to K, the step itself.

All of it is O(d), however many clients there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError, DuplicateUpload, require_numbers
from qafel.params import Vector
from qafel.quantizers.protocol import Payload, Quantizer

Aggregation: TypeAlias = Literal["mean", "sum", "weighted-mean"]
NOTHING: Vector = np.empty(0, np.float32)
WINDOW = 64
"""How many of a client's uploads may be on their way out of order."""
_ALL_SEEN = (1 << WINDOW) - 1


@final
class ReplayWindows:
    """Which uploads were counted before: a sliding window per client, as in IPsec's anti-replay (RFC 4303, 3.4.3).

    Two integers per client: the highest sequence taken, and a bit for each of the 64 up to it. Uploads of one
    client may arrive out of order within the window; older ones count as seen.
    """

    __slots__ = ("windows",)

    def __init__(self) -> None:
        self.windows: dict[int, tuple[int, int]] = {}

    def check(self, sender: int, sequence: int) -> tuple[int, int]:
        """The sender's window once this upload is taken; raises if it was taken before, or is too old to tell."""
        highest, seen = self.windows.get(sender, (-1, 0))
        age = highest - sequence
        if age >= WINDOW:
            raise DuplicateUpload(
                f"upload {sequence} of client {sender} is {age} behind its latest, {highest}: not taken"
            )
        if age >= 0 and seen >> age & 1:
            raise DuplicateUpload(f"upload {sequence} of client {sender} was taken before")
        if age >= 0:
            return highest, seen | 1 << age
        return sequence, (seen << min(-age, WINDOW) | 1) & _ALL_SEEN

    def take(self, sender: int, sequence: int) -> None:
        self.windows[sender] = self.check(sender, sequence)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The windows as three columns, for a checkpoint."""
        return {
            "seen_sender": np.fromiter(self.windows, np.uint64, len(self.windows)),
            "seen_highest": np.fromiter((highest for highest, _ in self.windows.values()), np.int64),
            "seen_mask": np.fromiter((mask for _, mask in self.windows.values()), np.uint64),
        }

    def from_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        columns = (arrays[name].tolist() for name in ("seen_sender", "seen_highest", "seen_mask"))
        self.windows = {sender: (highest, mask) for sender, highest, mask in zip(*columns, strict=True)}


@final
class Buffer:
    """Σ wₖΔₖ and what is needed to turn it into Δ̄. Algorithm 1, lines 6 to 8.

    For an own aggregation it keeps the updates themselves, O(Kd), instead of their sum.
    """

    __slots__ = ("client_weight_sum", "count", "kept", "total", "weight_sum")

    def __init__(self, dimension: int, *, keeps: bool = False) -> None:
        self.total: Vector = np.zeros(dimension, np.float32)
        self.kept: list[tuple[Vector, float]] | None = [] if keeps else None
        self.empty_()

    def empty_(self) -> None:
        self.total[:] = 0
        if self.kept:
            self.kept.clear()
        self.count = 0
        self.weight_sum = 0.0
        self.client_weight_sum = 0.0

    def add_(
        self,
        payload: Payload,
        quantizer: Quantizer,
        client_weight: float,
        staleness_weight: float,
        factor: float = 1.0,
    ) -> None:
        """Add one decoded update, times both weights and a `factor`. A payload that does not decode changes nothing.

        Where updates are kept, the factor scales the update itself: an own aggregation may not look at weights.
        """
        weight = client_weight * staleness_weight
        if self.kept is None:
            weight *= factor
            quantizer.add_decoded_(self.total, payload, weight)
        else:
            update = quantizer.decode(payload, self.total.size)
            self.kept.append((update if factor == 1 else np.float32(factor) * update, weight))
        self.count += 1
        self.weight_sum += weight
        self.client_weight_sum += client_weight

    def rows(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """The kept updates as a matrix, and their weights."""
        kept = self.kept or []
        matrix = np.array([update for update, _ in kept], np.float32).reshape(len(kept), self.total.size)
        return matrix, np.array([weight for _, weight in kept], np.float64)

    def divisor(self, aggregation: object) -> float:
        """What the sum is divided by: K for the mean, 1 for the sum, Σ of client weights for the weighted mean."""
        match aggregation:
            case "mean":
                return float(self.count)
            case "weighted-mean":
                return self.client_weight_sum
            case _:
                return 1.0


@final
@dataclass(frozen=True, slots=True)
class PolynomialStaleness:
    """1 up to the cut-off b, then 1/(1 + τ − b)ᵃ.

    a = 0 weighs all alike; a = 1/2, b = 0 is the paper's 1/√(1+τ); FedAsync's polynomial law has any a.
    """

    exponent: float = 0.0
    cutoff: int = 0

    def __post_init__(self) -> None:
        require_numbers(self)
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

    __slots__ = ("_kernel", "lr", "momentum", "velocity")

    def __init__(self, lr: float, momentum: float, dimension: int) -> None:
        from qafel.algorithm.step import step  # noqa: PLC0415  (Numba loads when there is a server)

        self._kernel = step
        self.lr = np.float32(lr)
        self.momentum = np.float32(momentum)
        self.velocity: Vector | None = np.zeros(dimension, np.float32) if momentum else None

    def apply(self, model: Vector, total: Vector, divisor: float, mixed: float, memory: Vector | None) -> Vector:
        """The next server model, as a new vector, from Δ̄ = total / divisor.

        Where clients upload models y, `mixed` is the sum of their weights: Δₖ = x − yₖ, so Σ wₖΔₖ = (Σ wₖ)x − Σ wₖyₖ.
        Where they upload what is relative to their memories, `memory` is h̄, and Δ̄ = h̄ + (1/K)Σ Q_c(Δₖ − hₖ).
        """
        memory = NOTHING if memory is None else memory
        velocity = NOTHING if self.velocity is None else self.velocity
        following = np.empty(model.size, np.float32)
        weights = np.float32(mixed), np.float32(divisor)
        self._kernel(following, model, total, *weights, memory, velocity, self.momentum, self.lr)
        return following
