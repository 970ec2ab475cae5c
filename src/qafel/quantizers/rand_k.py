"""Rand-k: a random subset of the coordinates, scaled up so that the mean is exact. Only the seed says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from qafel.params import Vector
from qafel.quantizers.kernels.numeric import is_finite
from qafel.quantizers.kernels.sparse import scatter_add, select_random
from qafel.quantizers.payloads import as_bytes, as_target, as_vector, check_size, non_finite, seed_of, signed
from qafel.quantizers.protocol import RAND_K, FixedLength, Payload, pack_codec
from qafel.quantizers.top_k import PLAIN, check_share, kept, share_fields, share_text, shortest
from qafel.rng import Stream

_SEED_BYTES: Final = 8
_LARGEST: Final = np.float32(np.finfo(np.float32).max)


@final
@dataclass(frozen=True, slots=True)
class RandK:
    """Keep k coordinates chosen uniformly at random, times d/k; the others become zero.

    E Q(x) = x and E‖Q(x) − x‖² = (d/k − 1)‖x‖² exactly. The receiver draws the same indices from the message's seed, so
    none are sent. Values go as float32 or through `values`, another quantizer over the k of them.
    """

    share: float | int
    values: FixedLength = PLAIN

    def __post_init__(self) -> None:
        check_share("rand_k", self.share)
        if isinstance(self.share, float):
            object.__setattr__(self, "share", shortest(self.share))

    @property
    def spec(self) -> str:
        return f"rand_k:{share_text(self.share)}" + ("" if self.values == PLAIN else f",values={self.values.spec}")

    @property
    def codec(self) -> bytes:
        return pack_codec(RAND_K, share_fields(self.share), b"" if self.values == PLAIN else self.values.codec)

    @property
    def unbiased(self) -> bool:
        return self.values.unbiased

    def count(self, size: int) -> int:
        return kept(self.share, size)

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return self.encode_scaled(vector, stream, 1.0)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> bytes:
        """A payload that decodes to gain · Q(vector)."""
        vector = as_vector(vector)
        if not is_finite(vector):
            raise non_finite(vector)
        seed = seed_of(stream)
        chosen = vector[self._indices(seed, vector.size)].astype(np.float64)
        chosen *= gain * vector.size / max(1, chosen.size)
        # d/k times a value near the end of the float32 range has no float32: it is cut, not made infinite
        values = np.clip(chosen, -_LARGEST, _LARGEST).astype(np.float32)
        return seed + self.values.encode(values, stream)

    def decode(self, payload: Payload, size: int) -> Vector:
        indices, values = self._read(payload, check_size(size))
        vector = np.zeros(size, np.float32)
        vector[indices] = values
        return vector

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        """Add at the chosen coordinates only; the others are not touched, so a −0.0 there stays −0.0."""
        indices, values = self._read(payload, as_target(target).size)
        scatter_add(target, indices, values, float(weight))

    def payload_bytes(self, size: int) -> int:
        return _SEED_BYTES + self.values.payload_bytes(self.count(check_size(size)))

    def head_bytes(self, size: int) -> int:
        return _SEED_BYTES + self.values.head_bytes(self.count(check_size(size)))

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)

    def omega(self, size: int) -> float:
        """Exactly d/k − 1 with plain values; (1 + ω of the values)·d/k − 1 with quantized ones."""
        if not size:
            return 0.0
        count = self.count(size)
        return (1.0 + self.values.omega(count)) * size / count - 1.0

    def delta(self, size: int) -> float:
        return 1.0 - self.omega(size)

    def bits_per_coordinate(self, size: int) -> float:
        return 8.0 * self.payload_bytes(size) / size if size else 0.0

    def _indices(self, seed: bytes, size: int) -> NDArray[np.uint32]:
        chosen = np.empty(self.count(size), np.uint32)
        select_random(signed(int.from_bytes(seed, "little")), size, chosen)
        return chosen

    def _read(self, payload: Payload, size: int) -> tuple[NDArray[np.uint32], Vector]:
        as_bytes(payload, self.payload_bytes(size))
        view = memoryview(payload)
        values = self.values.decode(view[_SEED_BYTES:], self.count(size))
        return self._indices(bytes(view[:_SEED_BYTES]), size), values
