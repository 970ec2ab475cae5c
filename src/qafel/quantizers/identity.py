"""No quantization: float32 as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from qafel.errors import MalformedPayload
from qafel.params import Layout, Vector
from qafel.quantizers import kernels
from qafel.quantizers.arguments import SpecArguments
from qafel.quantizers.payloads import as_bytes, as_finite_vector, as_target, as_vector, check_size
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.rng import Stream


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """Send the vector unchanged. Q(x) = x, δ = 1: FedBuff is QAFeL with this on both sides."""

    NAME: ClassVar[str] = "none"
    CODEC_ID: ClassVar[int] = 1
    spec: ClassVar[str] = "none"
    codec: ClassVar[bytes] = pack_codec(1)

    @classmethod
    def from_spec(cls, given: SpecArguments) -> Identity:
        return given.read().end(Identity())

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Identity:
        return Identity()

    def unbiased(self, size: int) -> bool:
        return True

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return as_finite_vector(vector).astype("<f4", copy=False).tobytes()

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        """A payload that decodes to gain · vector."""
        return self.encode(as_vector(vector) * np.float32(gain), stream)

    def decode(self, payload: Payload, size: int) -> Vector:
        values = as_bytes(payload, self.payload_bytes(size)).view("<f4").astype(np.float32)
        if not kernels.shared.is_finite(values):
            raise MalformedPayload("expected finite coordinates, found NaN or infinity: the sender's model diverged")
        return values

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        values = self.decode(payload, as_target(target).size)
        if weight != 1.0:
            values *= np.float32(weight)
        target += values

    def payload_bytes(self, size: int) -> int:
        return 4 * check_size(size)

    def head_bytes(self, size: int) -> int:
        return 0

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)

    def omega(self, size: int) -> float:
        return 0.0

    def delta(self, size: int) -> float:
        return 1.0
