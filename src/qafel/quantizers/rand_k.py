"""Rand-k: a random subset of the coordinates, scaled up so that the mean is exact. Only the seed says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from qafel.params import Vector
from qafel.quantizers import kernels
from qafel.quantizers.kernels import SEED_BYTES
from qafel.quantizers.payloads import as_bytes, as_finite_vector, check_size, seed_of, seed_word
from qafel.quantizers.protocol import RAND_K, Payload
from qafel.quantizers.top_k import Indices, Sparse
from qafel.rng import Stream

_LARGEST: Final = np.float32(np.finfo(np.float32).max)


@final
@dataclass(frozen=True, slots=True)
class RandK(Sparse):
    """Keep k coordinates chosen uniformly at random, times d/k; the others become zero.

    E Q(x) = x and E‖Q(x) − x‖² = (d/k − 1)‖x‖² exactly. The receiver draws the same indices from the message's seed, so
    none are sent.
    """

    NAME = "rand_k"
    CODEC_ID = RAND_K

    def unbiased(self, size: int) -> bool:
        return self.values.unbiased(self.count(size))

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return self.encode_scaled(vector, stream, 1.0)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        """A payload that decodes to gain · Q(vector)."""
        vector = as_finite_vector(vector)
        seed = seed_of(stream)
        chosen = vector[self._indices(seed, vector.size)].astype(np.float64)
        chosen *= gain * vector.size / max(1, chosen.size)
        # d/k times a value near the end of the float32 range has no float32: it is cut, not made infinite
        values = np.clip(chosen, -_LARGEST, _LARGEST).astype(np.float32)
        return seed + self.values.encode(values, stream)

    def payload_bytes(self, size: int) -> int:
        return SEED_BYTES + self.values.payload_bytes(self.count(check_size(size)))

    def head_bytes(self, size: int) -> int:
        return SEED_BYTES + self.values.head_bytes(self.count(check_size(size)))

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

    def _indices(self, seed: bytes, size: int) -> Indices:
        chosen = np.empty(self.count(size), np.uint32)
        kernels.sparse.select_random(seed_word(seed), size, chosen)
        return chosen

    def _read(self, payload: Payload, size: int) -> tuple[Indices, Vector]:
        data = as_bytes(payload, self.payload_bytes(size))
        values = self.values.decode(data[SEED_BYTES:].data, self.count(size))
        return self._indices(data[:SEED_BYTES].tobytes(), size), values
