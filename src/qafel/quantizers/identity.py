"""No quantization: float32 coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from qafel.errors import MalformedPayload
from qafel.params import Layout, Vector
from qafel.quantizers import kernels
from qafel.quantizers.family import Scalable, as_bytes, as_finite_vector, as_vector, check_size
from qafel.quantizers.kernels import ADD, ASSIGN
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.rng import Stream


@final
@dataclass(frozen=True, slots=True)
class Identity(Scalable):
    """Send the vector unchanged. Q(x) = x, δ = 1. FedBuff is QAFeL with this quantizer on both sides."""

    NAME: ClassVar[str] = "none"
    CODEC_ID: ClassVar[int] = 1

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Identity:
        return Identity()

    @property
    def spec(self) -> str:
        return "none"

    @property
    def codec(self) -> bytes:
        return pack_codec(self.CODEC_ID)

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return as_finite_vector(vector).astype("<f4", copy=False).tobytes()

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        return self.encode(as_vector(vector) * np.float32(gain), stream)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        data, values = as_bytes(payload, self.payload_bytes(target.size)).view("<f4"), target
        if mode == ASSIGN:
            target[:] = data
        else:
            values = data.astype(np.float32)
        if not kernels.shared.is_finite(values):
            raise MalformedPayload("expected finite coordinates, found NaN or infinity: the sender's model diverged")
        if weight != 1.0:
            values *= np.float32(weight)
        if mode == ADD:
            target += values

    def payload_bytes(self, size: int) -> int:
        return 4 * check_size(size)

    def head_bytes(self, size: int) -> int:
        return 0

    def omega(self, size: int) -> float:
        return 0.0
