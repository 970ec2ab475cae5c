"""Scaled: any unbiased quantizer divided by 1 + ω becomes a contraction, fit for the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from qafel.errors import SpecError
from qafel.params import Vector
from qafel.quantizers.codec import SCALED, pack_codec
from qafel.quantizers.protocol import Payload, Scalable
from qafel.rng import Stream


@final
@dataclass(frozen=True, slots=True)
class Scaled:
    """Send Q(x) / (1 + ω): what unbiasedness is lost for, δ = 1/(1 + ω) > 0.

    E‖x − Q(x)/(1+ω)‖² ≤ (1 − 1/(1+ω))‖x‖². The division happens to the scales, which are sent anyway.
    """

    inner: Scalable

    def __post_init__(self) -> None:
        if not self.inner.unbiased:
            raise SpecError(f"scaled takes an unbiased quantizer, and {self.inner.spec!r} is biased: use it as it is")

    @property
    def spec(self) -> str:
        return f"scaled:{self.inner.spec}"

    @property
    def codec(self) -> bytes:
        return pack_codec(SCALED, b"", self.inner.codec)

    @property
    def unbiased(self) -> bool:
        return False

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return self.inner.encode_scaled(vector, stream, 1.0 / (1.0 + self.inner.omega(vector.size)))

    def decode(self, payload: Payload, size: int) -> Vector:
        return self.inner.decode(payload, size)

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        self.inner.add_decoded_(target, payload, weight)

    def payload_bytes(self, size: int) -> int:
        return self.inner.payload_bytes(size)

    def head_bytes(self, size: int) -> int:
        return self.inner.head_bytes(size)

    def max_payload_bytes(self, size: int) -> int:
        return self.inner.max_payload_bytes(size)

    def omega(self, size: int) -> float:
        return 1.0 - self.delta(size)

    def delta(self, size: int) -> float:
        return 1.0 / (1.0 + self.inner.omega(size))

    def bits_per_coordinate(self, size: int) -> float:
        return self.inner.bits_per_coordinate(size)
