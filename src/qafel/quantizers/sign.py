"""Sign with a scale: one bit a coordinate, biased, a contraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.errors import SpecError
from qafel.params import Vector
from qafel.quantizers.kernels.levels import encode_signs
from qafel.quantizers.kernels.numeric import packed_bytes
from qafel.quantizers.payloads import apply_payload, bucket_count, check_size, encode_payload
from qafel.quantizers.protocol import SIGN, Payload, pack_codec
from qafel.quantizers.qsgd import DEFAULT_BUCKET, MAX_BUCKET
from qafel.rng import Stream


@final
@dataclass(frozen=True, slots=True)
class Sign:
    """Send signs and the mean magnitude of each bucket.

    Q(x) = (‖x‖₁/n) · sign(x) in a bucket of n: ‖x − Q(x)‖² = ‖x‖² − ‖x‖₁²/n ≤ (1 − 1/n)‖x‖². Karimireddy et al., 2019.
    """

    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        if self.bucket is not None and not 1 <= self.bucket <= MAX_BUCKET:
            raise SpecError(f"a bucket holds 1 to {MAX_BUCKET} coordinates, or none for all, found {self.bucket}")

    @property
    def spec(self) -> str:
        if self.bucket == DEFAULT_BUCKET:
            return "sign"
        return f"sign:bucket={'none' if self.bucket is None else self.bucket}"

    @property
    def codec(self) -> bytes:
        return pack_codec(SIGN, (self.bucket or 0).to_bytes(3, "little"))

    @staticmethod
    def from_parameters(fields: bytes) -> Sign:
        return Sign(int.from_bytes(fields[:3], "little") or None)

    @property
    def unbiased(self) -> bool:
        return False

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return encode_payload(encode_signs, vector, stream, self.bucket, 1, 1, 0, 1.0)

    def decode(self, payload: Payload, size: int) -> Vector:
        target = np.empty(check_size(size), np.float32)
        apply_payload(target, payload, None, self.bucket, 1, 1)
        return target

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        apply_payload(target, payload, weight, self.bucket, 1, 1)

    def payload_bytes(self, size: int) -> int:
        return self.head_bytes(size) + packed_bytes(size, 1)

    def head_bytes(self, size: int) -> int:
        return 4 * bucket_count(check_size(size), self.bucket)

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)

    def omega(self, size: int) -> float:
        return 1.0 - self.delta(size)

    def delta(self, size: int) -> float:
        """The least over all vectors: one coordinate that is not zero among the n of its bucket."""
        return 1.0 / max(1, min(size, self.bucket or size))

    def bits_per_coordinate(self, size: int) -> float:
        return 8.0 * self.payload_bytes(size) / size if size else 0.0
