"""Subtractive dither: uniform noise that both ends know, added before rounding and taken off after. Unbiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from qafel.errors import SpecError
from qafel.params import Layout, Vector
from qafel.quantizers import kernels, payloads
from qafel.quantizers.arguments import SpecArguments
from qafel.quantizers.kernels import MAX_ABS, OK, SEED_BYTES
from qafel.quantizers.payloads import DEFAULT_BUCKET, Unbiased
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.rng import Stream


@final
@dataclass(frozen=True, slots=True)
class Dithered(Unbiased):
    """Round x/step + u with u uniform, and let the receiver, who knows u from the message's seed, subtract it.

    Q(x) = step · (round(x/step + u) − u). The error is uniform on ±step/2 and independent of x: half of QSGD's variance
    for the same step, and all 2ᵇ codes are used: step = 2·max|x| / (2ᵇ − 1). Roberts, 1962; Schuchman, 1964.
    """

    NAME: ClassVar[str] = "dithered"
    CODEC_ID: ClassVar[int] = 7

    bits: int = 4
    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise SpecError(f"dithered takes 1 to 8 bits a coordinate, found {self.bits}")
        payloads.check_bucket(self.bucket)

    @property
    def spec(self) -> str:
        return f"dithered:{self.bits}{payloads.bucket_text(self.bucket)}"

    @property
    def codec(self) -> bytes:
        return pack_codec(self.CODEC_ID, bytes([self.bits]) + (self.bucket or 0).to_bytes(3, "little"))

    @classmethod
    def from_spec(cls, given: SpecArguments) -> Dithered:
        return given.read().end(Dithered(given.needed("bits"), given.bucket()))

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Dithered:
        return Dithered(fields[0], int.from_bytes(fields[1:4], "little") or None)

    @property
    def levels(self) -> float:
        """Steps from zero to the largest magnitude: 7.5 at 4 bits."""
        return 0.5 * (2.0**self.bits - 1.0)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        seed = payloads.seed_of(stream)
        words, encode = (int.from_bytes(seed, "little"), 0), kernels.levels.encode_spans
        return payloads.encode(encode, vector, words, self.bucket, self.levels, self.bits, MAX_ABS, gain, seed)

    def payload_bytes(self, size: int) -> int:
        return SEED_BYTES + payloads.spans_of(size, self.bucket, self.bits)[3]

    def head_bytes(self, size: int) -> int:
        return SEED_BYTES + payloads.step_bytes(size, self.bucket)

    def omega(self, size: int) -> float:
        """The exact worst case: step²/12 for each of the n in a bucket, whose norm is at least levels · step."""
        n = min(size, self.bucket or size)
        return n / (12 * self.levels**2)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        length, span, spans, total = payloads.spans_of(target.size, self.bucket, self.bits)
        data = payloads.as_bytes(payload, SEED_BYTES + total)
        word = payloads.seed_word(data[:SEED_BYTES].tobytes())
        common = (target, data, mode, weight, word, length, span, self.bits)
        if payloads.apply_spanwise(kernels.levels.apply_dithered, target.size, common, spans) != OK:
            raise payloads.bad_scale("steps")
