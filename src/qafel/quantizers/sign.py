"""Sign with a scale: one bit a coordinate, biased, a contraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from qafel.params import Layout, Vector
from qafel.quantizers import kernels, payloads
from qafel.quantizers.arguments import SpecArguments
from qafel.quantizers.payloads import DEFAULT_BUCKET, FixedRate
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.rng import Stream


@final
@dataclass(frozen=True, slots=True)
class Sign(FixedRate):
    """Send signs and the mean magnitude of each bucket.

    Q(x) = (‖x‖₁/n) · sign(x) in a bucket of n: ‖x − Q(x)‖² = ‖x‖² − ‖x‖₁²/n ≤ (1 − 1/n)‖x‖². Karimireddy et al., 2019.
    """

    NAME: ClassVar[str] = "sign"
    CODEC_ID: ClassVar[int] = 6

    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        payloads.check_bucket(self.bucket)

    @property
    def spec(self) -> str:
        return "sign" + payloads.bucket_text(self.bucket, ":")

    @property
    def codec(self) -> bytes:
        return pack_codec(self.CODEC_ID, (self.bucket or 0).to_bytes(3, "little"))

    @classmethod
    def from_spec(cls, given: SpecArguments) -> Sign:
        return given.read().end(Sign(given.bucket()))

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Sign:
        return Sign(int.from_bytes(fields[:3], "little") or None)

    def unbiased(self, size: int) -> bool:
        return self.omega(size) == 0

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return payloads.encode(kernels.levels.encode_signs, vector, stream.words, self.bucket, 1, 1, 0, 1.0)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        payloads.apply(target, payload, mode, weight, self.bucket, 1, 1)

    def payload_bytes(self, size: int) -> int:
        return payloads.spans_of(size, self.bucket, 1)[3]

    def head_bytes(self, size: int) -> int:
        return payloads.step_bytes(size, self.bucket)

    def omega(self, size: int) -> float:
        return 1.0 - self.delta(size)

    def delta(self, size: int) -> float:
        """The least over all vectors: one coordinate that is not zero among the n of its bucket."""
        return 1.0 / max(1, min(size, self.bucket or size))
