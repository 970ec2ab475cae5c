"""Accumulators: from uploads to Δ̄. Algorithm 1, lines 6 to 8.

BufferedMean: Σ wₖΔₖ of K updates, divided by K, by 1, or by the clients' weights.

Buckets: robust. The median or the trimmed mean of the means of a few buckets.

Kept: keeps the K updates. The base of custom accumulators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm.parts import Accumulator, Batch, Direction, Next, Upload
from qafel.algorithm.state import State
from qafel.errors import DataError, require
from qafel.params import Vector, require_vector
from qafel.quantizers.protocol import Quantizer
from qafel.text import path_of

if TYPE_CHECKING:
    from qafel.algorithm.algorithm import Algorithm

Divisor: TypeAlias = Literal["mean", "sum", "weighted-mean"]
Robust: TypeAlias = Literal["median", "trimmed-mean"]
_MOST = float(np.finfo(np.float32).max)
_MOST_BUCKETS = 10
"""By default; fewer where the buffer is smaller."""
_UPLOAD_WEIGHTS = "uploads:weights"
"""A name in a state that no attribute of a subclass can have."""


class Buffered(Accumulator):
    """Counts uploads up to K, the algorithm's buffer size: the base of accumulators whose step is due by count."""

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        self.size, self.buffer_size, self.sends_model = size, algorithm.buffer_size, algorithm.client_rule.sends_model
        self.empty_()

    def empty_(self) -> None:
        self.count = 0
        self.max_staleness = 0
        self.weight_sum = 0.0
        self.client_weight_sum = 0.0

    @property
    def due(self) -> bool:
        return self.count >= self.buffer_size

    def restore_(self, state: State) -> None:
        sums = state["weight_sum"], state["client_weight_sum"]
        if (
            not 0 <= state["count"] < self.buffer_size
            or state["max_staleness"] < 0
            or not 0 <= min(sums) <= max(sums) < _MOST
        ):
            raise DataError(f"a buffer holds {state['count']} of {self.buffer_size} updates with weights {sums}")
        super().restore_(state)

    def count_(self, upload: Upload, weight: float) -> Next:
        """Count an upload that was added with this weight."""
        self.count += 1
        self.max_staleness = max(self.max_staleness, upload.staleness)
        self.weight_sum += weight
        self.client_weight_sum += upload.weight
        return Next.NEWEST


class BufferedMean(Buffered):
    """Σ wₖΔₖ over a divisor: K for the mean, 1 for the sum, the clients' weights for the weighted mean."""

    def __init__(self, divisor: Divisor = "mean") -> None:
        require(divisor in get_args(Divisor), f"a divisor is one of {', '.join(get_args(Divisor))}", divisor)
        self.divisor = divisor
        self.divides_by_weights = divisor == "weighted-mean"

    def empty_(self) -> None:
        super().empty_()
        self.total: Vector = np.zeros(self.size, np.float32)

    def add_(self, upload: Upload, quantizer: Quantizer) -> Next:
        weight = upload.weight * upload.staleness_weight * upload.factor
        upload.add_to_(self.total, quantizer, weight)
        return self.count_(upload, weight)

    def close_(self) -> Batch:
        divisor = {"mean": float(self.count), "sum": 1.0, "weighted-mean": self.client_weight_sum}[self.divisor]
        mixed = self.weight_sum if self.sends_model else 0.0
        batch = Batch(self.count, self.max_staleness, {"total": self.total, "divisor": divisor, "mixed": mixed})
        self.empty_()
        return batch

    def direction(self, batch: Batch, model: Vector) -> Direction:
        content = batch.content
        return Direction(
            content["total"], content["divisor"], content["mixed"], None, batch.uploads, batch.max_staleness
        )


@final
class Buckets(Buffered):
    """A robust Δ̄ from the means of m buckets: O(md).

    All updates of a client go to one bucket; a new client goes to an emptiest one. So f malicious clients spoil at most
    f of the m means. The coordinate-wise median tolerates fewer than half spoilt means. The trimmed mean drops a
    quarter at each end, and tolerates a quarter. Both are biased if clients differ.
    Chen, Su & Xu 2017; Yin et al. 2018.
    """

    def __init__(self, kind: Robust = "median", buckets: int | None = None) -> None:
        """`buckets`: their number. None: ten, or one per update of a smaller buffer."""
        require(kind in get_args(Robust), f"a robust accumulator is one of {', '.join(get_args(Robust))}", kind)
        whole = isinstance(buckets, int) and not isinstance(buckets, bool) and buckets >= 1
        require(buckets is None or whole, "the number of buckets is 1 or more", buckets)
        self.kind, self.buckets = kind, buckets

    def problem(self, algorithm: Algorithm) -> str | None:
        most = algorithm.buffer_size
        fits = (self.buckets or 1) <= most
        return None if fits else f"there are 1 to {most} buckets, the buffer's size; got {self.buckets}"

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        self._used = self.buckets or min(_MOST_BUCKETS, algorithm.buffer_size)
        super().begin_(algorithm, size, clients)

    def empty_(self) -> None:
        super().empty_()
        self.totals: NDArray[np.float32] = np.zeros((self._used, self.size), np.float32)
        self.counts = np.zeros(self._used, np.int64)
        self.weight_sums = np.zeros(self._used, np.float64)
        self.places: dict[int, tuple[int, int]] = {}
        """Of each client in the buffer: its bucket, and how many updates it has there."""

    def add_(self, upload: Upload, quantizer: Quantizer) -> Next:
        weight = upload.weight * upload.staleness_weight * upload.factor
        place, updates = self.places.get(upload.client) or (int(self.counts.argmin()), 0)
        upload.add_to_(self.totals[place], quantizer, weight)
        self.places[upload.client] = place, updates + 1
        self.counts[place] += 1
        self.weight_sums[place] += weight
        return self.count_(upload, weight)

    def close_(self) -> Batch:
        content = {"totals": self.totals, "counts": self.counts, "weight_sums": self.weight_sums}
        batch = Batch(self.count, self.max_staleness, content)
        self.empty_()
        return batch

    def direction(self, batch: Batch, model: Vector) -> Direction:
        """Where clients send models, a bucket's sum is (Σ wₖ)x − Σ wₖyₖ."""
        totals, counts, weight_sums = (batch.content[name] for name in ("totals", "counts", "weight_sums"))
        used = counts > 0
        means = totals[used]
        if self.sends_model:
            means = weight_sums[used].astype(np.float32)[:, None] * model - means
        means = np.sort(means / counts[used].astype(np.float32)[:, None], axis=0)
        cut = (len(means) - 1) // 2 if self.kind == "median" else len(means) // 4
        kept = means[cut : len(means) - cut]
        total: Vector = kept[0].copy()
        for row in kept[1:]:  # in a fixed order, so that a replay gives the same bits on every machine
            total += row
        total /= np.float32(len(kept))
        return Direction(total, uploads=batch.uploads, max_staleness=batch.max_staleness)

    def state(self) -> State:
        places = [(client, *place) for client, place in self.places.items()]
        return {**super().state(), "places": np.array(places, np.int64).reshape(-1, 3)}

    def restore_(self, state: State) -> None:
        table, counts = state["places"], state["counts"]
        places = {client: (place, updates) for client, place, updates in table.tolist()}
        sound = len(places) == len(table) and ((table[:, 1:] >= 0).all() and (table[:, 1] < counts.size).all())
        if not sound or (np.bincount(table[:, 1], table[:, 2], counts.size) != counts).any():
            raise DataError("the buckets do not fit together")
        if counts.sum() != state["count"] or (state["weight_sums"] < 0).any():
            raise DataError("the buckets do not hold the updates of the buffer")
        super().restore_({**state, "places": places})


class Kept(Buffered):
    """Keeps the K updates, O(Kd). A custom accumulator subclasses it and defines `combine`.

    class Median(Kept):
        def combine(self, uploads, updates, weights):
            return np.median(updates, axis=0)
    """

    divides_by_weights = True  # it may

    def combine(
        self, uploads: list[Upload], updates: NDArray[np.float32], weights: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Δ̄ from the uploads, their updates as the rows of a matrix, and their weights, staleness included."""
        raise NotImplementedError

    def empty_(self) -> None:
        super().empty_()
        self.updates: list[Vector] = []
        self.uploads: list[Upload] = []

    def add_(self, upload: Upload, quantizer: Quantizer) -> Next:
        """A factor scales the update itself: `combine` may not look at weights."""
        update = upload.vector(quantizer)
        self.updates.append(update if upload.factor == 1 else np.float32(upload.factor) * update)
        self.uploads.append(upload._replace(payload=b"", decoded=None))
        return self.count_(upload, upload.weight * upload.staleness_weight)

    def close_(self) -> Batch:
        content = {"uploads": self.uploads, "updates": self._matrix(), "weights": self._weights()}
        batch = Batch(self.count, self.max_staleness, content)
        self.empty_()
        return batch

    def direction(self, batch: Batch, model: Vector) -> Direction:
        content, said = batch.content, f"{path_of(self)}.combine"
        updates = model - content["updates"] if self.sends_model else content["updates"]
        found = self.combine(content["uploads"], updates, content["weights"])
        update = require_vector(found, model.size, said).copy()
        return Direction(update, uploads=batch.uploads, max_staleness=batch.max_staleness)

    def _matrix(self) -> NDArray[np.float32]:
        return np.array(self.updates, np.float32).reshape(len(self.updates), self.size)

    def _weights(self) -> NDArray[np.float64]:
        return np.array([upload.weight * upload.staleness_weight for upload in self.uploads], np.float64)

    def state(self) -> State:
        numbers = np.array([upload[:4] for upload in self.uploads], np.int64).reshape(-1, 4)
        weights = np.array([upload[4:7] for upload in self.uploads], np.float64).reshape(-1, 3)
        return {**super().state(), "updates": self._matrix(), "uploads": numbers, _UPLOAD_WEIGHTS: weights}

    def restore_(self, state: Any) -> None:
        own = ("updates", "uploads", _UPLOAD_WEIGHTS)
        updates, numbers, weights = (state[name].tolist() if name != "updates" else list(state[name]) for name in own)
        if not len(updates) == len(numbers) == len(weights) == state["count"]:
            raise DataError("the updates of a buffer do not fit together")
        super().restore_({name: value for name, value in state.items() if name not in own})
        self.updates = updates
        self.uploads = [
            Upload._make((*one, *other, b"", None, self.size)) for one, other in zip(numbers, weights, strict=True)
        ]
