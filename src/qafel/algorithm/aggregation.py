"""From uploads to a step: which were counted before, how much a late one weighs, the sum of up to K, the step itself.

All of it is O(d), however many clients there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm.state import Arrays, Expected
from qafel.errors import ConfigError, DuplicateUpload, require_numbers
from qafel.params import Vector
from qafel.quantizers import kernels
from qafel.quantizers.protocol import Payload, Quantizer

Aggregation: TypeAlias = Literal["mean", "sum", "weighted-mean", "median", "trimmed-mean"]
ROBUST: Final = ("median", "trimmed-mean")
"""Aggregations over the means of buckets: a few clients that lie move them little, however far they go."""
MOST_BUCKETS: Final = 10
"""By default; fewer where the buffer is smaller."""
NOTHING: Vector = np.empty(0, np.float32)
WINDOW = 64
"""How many of a client's uploads may be on their way out of order."""
_ALL_SEEN = (1 << WINDOW) - 1
_LAST_SEQUENCE = (1 << 32) - 1


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

    @staticmethod
    def layout() -> dict[str, Expected]:
        """What `to_arrays` makes."""
        return {
            "seen_sender": Expected(np.uint64, ("senders",), distinct=True),
            "seen_highest": Expected(np.int64, ("senders",), 0, _LAST_SEQUENCE),
            "seen_mask": Expected(np.uint64, ("senders",)),
        }

    def from_arrays(self, arrays: Arrays) -> None:
        columns = (arrays[name].tolist() for name in self.layout())
        self.windows = {sender: (highest, mask) for sender, highest, mask in zip(*columns, strict=True)}


@final
class Buffer:
    """Σ wₖΔₖ and what is needed to turn it into Δ̄. Algorithm 1, lines 6 to 8.

    For an own aggregation it keeps the updates themselves, O(Kd), instead of their sum. A robust one has `Buckets`.
    """

    __slots__ = ("buckets", "client_weight_sum", "count", "kept", "total", "weight_sum")

    def __init__(self, dimension: int, *, keeps: bool = False, buckets: int = 0) -> None:
        self.total: Vector = np.zeros(dimension, np.float32)
        self.kept: list[tuple[Vector, float]] | None = [] if keeps else None
        self.buckets = Buckets(buckets, dimension) if buckets else None
        self.empty_()

    def empty_(self) -> None:
        self.total[:] = 0
        if self.kept:
            self.kept.clear()
        if self.buckets is not None:
            self.buckets.empty_()
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
        sender: int = 0,
        decoded: Vector | None = None,
    ) -> None:
        """Add one decoded update, times both weights and a `factor`. A payload that does not decode changes nothing.

        Where updates are kept, the factor scales the update itself: an own aggregation may not look at weights.
        `decoded` is the payload's vector if the caller needed it before: the result has the same bits.
        """
        weight = client_weight * staleness_weight
        if self.buckets is not None:
            weight *= factor
            self.buckets.add_(payload, quantizer, weight, sender, decoded)
        elif self.kept is None:
            weight *= factor
            _add_(self.total, payload, quantizer, weight, decoded)
        else:
            update = quantizer.decode(payload, self.total.size) if decoded is None else decoded
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
class Buckets:
    """The sums of m parts of a buffer, and from their means a Δ̄ that no few clients decide: O(md).

    All updates of one client go to one bucket, and each new client to one of the emptiest, so that f clients that lie
    spoil at most f of the m means. The median of m means, coordinate by coordinate, lies among the honest ones as long
    as fewer than half are spoilt; the trimmed mean, which leaves out a quarter at each end, as long as a quarter at
    most is. Where clients differ, either is biased: that is the price. Chen, Su & Xu 2017; Yin et al. 2018.
    """

    __slots__ = ("counts", "places", "totals", "weight_sums")

    def __init__(self, buckets: int, dimension: int) -> None:
        self.totals: NDArray[np.float32] = np.zeros((buckets, dimension), np.float32)
        self.empty_()

    def empty_(self) -> None:
        self.totals[:] = 0
        self.counts = [0] * len(self.totals)
        self.weight_sums = [0.0] * len(self.totals)
        self.places: dict[int, int] = {}
        """The bucket of each client that is in the buffer."""

    def add_(
        self, payload: Payload, quantizer: Quantizer, weight: float, sender: int, decoded: Vector | None = None
    ) -> None:
        """Add one decoded update, times its weight. A payload that does not decode changes nothing."""
        place = self.places.get(sender)
        if place is None:
            place = self.counts.index(min(self.counts))
        _add_(self.totals[place], payload, quantizer, weight, decoded)
        self.places[sender] = place
        self.counts[place] += 1
        self.weight_sums[place] += weight

    def combined(self, aggregation: object, model: Vector | None) -> Vector:
        """Δ̄. Where clients upload models, `model` is x: a bucket's sum is then (Σ wₖ)x − Σ wₖyₖ."""
        used = [place for place, count in enumerate(self.counts) if count]
        means = self.totals[used]
        if model is not None:
            means = np.array([self.weight_sums[place] for place in used], np.float32)[:, None] * model - means
        means = np.sort(means / np.array([self.counts[place] for place in used], np.float32)[:, None], axis=0)
        cut = (len(used) - 1) // 2 if aggregation == "median" else len(used) // 4
        kept = means[cut : len(used) - cut]
        total: Vector = kept[0].copy()
        for row in kept[1:]:  # in a fixed order, so that a replay gives the same bits on every machine
            total += row
        total /= np.float32(len(kept))
        return total

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint."""
        return {
            "bucket_totals": self.totals.copy(),
            "bucket_counts": np.array(self.counts, np.int64),
            "bucket_weight_sums": np.array(self.weight_sums, np.float64),
            "bucket_clients": np.fromiter(self.places, np.uint64, len(self.places)),
            "bucket_places": np.fromiter(self.places.values(), np.int64, len(self.places)),
        }

    def layout(self) -> dict[str, Expected]:
        """What `to_arrays` makes."""
        buckets = len(self.totals)
        return {
            "bucket_totals": Expected(np.float32, self.totals.shape),
            "bucket_counts": Expected(np.int64, (buckets,), 0),
            "bucket_weight_sums": Expected(np.float64, (buckets,), 0),
            "bucket_clients": Expected(np.uint64, ("placed",), distinct=True),
            "bucket_places": Expected(np.int64, ("placed",), 0, buckets - 1),
        }

    def from_arrays(self, arrays: Arrays) -> None:
        self.totals[:] = arrays["bucket_totals"]
        self.counts = arrays["bucket_counts"].tolist()
        self.weight_sums = arrays["bucket_weight_sums"].tolist()
        self.places = dict(zip(arrays["bucket_clients"].tolist(), arrays["bucket_places"].tolist(), strict=True))


def _add_(total: Vector, payload: Payload, quantizer: Quantizer, weight: float, decoded: Vector | None) -> None:
    """Add weight · update: in one pass over the payload, or from the vector that it was decoded to."""
    if decoded is None:
        quantizer.add_decoded_(total, payload, weight)
    else:
        total += decoded if weight == 1 else np.float32(weight) * decoded


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
        self._kernel = step_kernel()
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


@cache
def step_kernel() -> Any:
    """The arithmetic of the step: compiled, which loads Numba, so when there is a server; or in NumPy."""
    if not kernels.are_compiled():
        return step_in_numpy
    from numba import njit  # noqa: PLC0415

    from qafel.compiled import KERNEL  # noqa: PLC0415

    return njit(**KERNEL)(_one_pass)


def _one_pass(following, model, total, mixed, divisor, memory, velocity, momentum, lr):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One pass, because NumPy's many small operations would cost a step more than ten small updates' decoding."""
    for j in range(model.size):
        update = (mixed * model[j] - total[j] if mixed else total[j]) / divisor
        if memory.size:
            update += memory[j]
        if velocity.size:
            update += velocity[j] * momentum
            velocity[j] = update
        following[j] = model[j] - lr * update


def step_in_numpy(
    following: Vector, model: Vector, total: Vector, mixed: Any, divisor: Any, memory: Vector, velocity: Vector,
    momentum: Any, lr: Any,
) -> None:  # fmt: skip
    """`_one_pass`, to the bit, without Numba."""
    with np.errstate(all="ignore"):  # whoever asked looks whether all is finite
        update = (mixed * model - total if mixed else total) / divisor
        if memory.size:
            update += memory
        if velocity.size:
            update += velocity * momentum
            velocity[:] = update
        following[:] = model - lr * update
