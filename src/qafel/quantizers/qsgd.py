"""QSGD: random rounding to a few levels of a scale, unbiased."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, cast, final

from qafel.errors import SpecError
from qafel.params import Layout, Vector
from qafel.quantizers import kernels, payloads
from qafel.quantizers.arguments import SpecArguments
from qafel.quantizers.kernels import L2, MAX_ABS
from qafel.quantizers.payloads import DEFAULT_BUCKET, Unbiased
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.rng import Stream

Norm = Literal["max", "l2"]

MAX_LEVELS: Final = 127

_NORMS: Final[dict[Norm, int]] = {"max": MAX_ABS, "l2": L2}


@final
@dataclass(frozen=True, slots=True)
class Qsgd(Unbiased):
    """Round every coordinate at random to one of s levels of its bucket's scale, so that the mean is exact.

    Q(x)ᵢ = step · (⌊xᵢ/step⌋ + Bernoulli(frac(xᵢ/step))), step = ‖bucket‖ / s, the norm being max |xᵢ| or ℓ₂.
    Alistarh et al., 2017. With `bits` = 1 there is no zero level: ±scale, at random.
    """

    NAME: ClassVar[str] = "qsgd"
    CODEC_ID: ClassVar[int] = 2

    bits: int = 4
    levels: int = 7
    norm: Norm = "max"
    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise SpecError(f"qsgd takes 1 to {MAX_LEVELS} levels, found {self.levels}")
        if not (self.bits == self.levels == 1 or self.bits == (2 * self.levels).bit_length()):
            raise SpecError(
                f"qsgd with {self.levels} levels takes {(2 * self.levels).bit_length()} bits, not {self.bits}"
            )
        if self.norm not in _NORMS:
            raise SpecError(f"qsgd knows the norms max and l2, found {self.norm!r}")
        payloads.check_bucket(self.bucket)

    @staticmethod
    def of_bits(bits: int, norm: Norm = "max", bucket: int | None = DEFAULT_BUCKET) -> Qsgd:
        """The most levels that `bits` a coordinate carry: s = 2^(b−1) − 1, and a sign."""
        if not 1 <= bits <= 8:
            raise SpecError(f"qsgd takes 1 to 8 bits a coordinate, found {bits}")
        return Qsgd(bits, max(1, 2 ** (bits - 1) - 1), norm, bucket)

    @staticmethod
    def of_levels(levels: int, norm: Norm = "max", bucket: int | None = DEFAULT_BUCKET) -> Qsgd:
        """So many levels for the magnitude, plus a sign and zero: 2s + 1 values."""
        return Qsgd((2 * levels).bit_length(), levels, norm, bucket)

    @property
    def spec(self) -> str:
        most_levels = self == Qsgd.of_bits(self.bits, self.norm, self.bucket)
        amount = f"{self.bits}" if most_levels else f"levels={self.levels}"
        return f"qsgd:{amount}{',norm=l2' if self.norm == 'l2' else ''}{payloads.bucket_text(self.bucket)}"

    @property
    def codec(self) -> bytes:
        return pack_codec(
            self.CODEC_ID, bytes([self.bits, self.levels, _NORMS[self.norm]]) + (self.bucket or 0).to_bytes(3, "little")
        )

    @classmethod
    def from_spec(cls, given: SpecArguments) -> Qsgd:
        bits, levels = given.read().number("bits", int, first=True), given.number("levels", int)
        norm, bucket = cast(Norm, given.text("norm", "max")), given.bucket()
        if bits is not None and levels is None:
            return given.end(Qsgd.of_bits(bits, norm, bucket))
        if levels is None or bits is not None:
            raise SpecError("qsgd takes either bits or levels: qsgd:4, or qsgd:levels=8")
        return given.end(Qsgd.of_levels(levels, norm, bucket))

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Qsgd:
        norm: Norm = "l2" if fields[2] == L2 else "max"
        return Qsgd(fields[0], fields[1], norm, int.from_bytes(fields[3:6], "little") or None)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        norm, encode = _NORMS[self.norm], kernels.levels.encode_spans
        return payloads.encode(encode, vector, stream.words, self.bucket, self.levels, self.bits, norm, gain)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        payloads.apply(target, payload, mode, weight, self.bucket, self.levels, self.bits)

    def payload_bytes(self, size: int) -> int:
        """Every payload has this length: a float32 step per bucket, then the packed codes."""
        return payloads.spans_of(size, self.bucket, self.bits)[3]

    def head_bytes(self, size: int) -> int:
        return payloads.step_bytes(size, self.bucket)

    def omega(self, size: int) -> float:
        """The exact worst case for max-abs; Lemma 3.1 of the QSGD paper for ℓ₂.

        Max-abs, n + 1 coordinates in a bucket: one carries the scale, n lie at a fraction f of a step, and
        n·f(1−f)/(s² + n·f²) is largest at f = s(√(s²+n) − s)/n, where it is (√(s²+n) − s)/(2s).
        """
        n = min(size, self.bucket or size)
        if n <= 1:
            return 0.0
        if self.bits == 1:
            return float(n - 1)
        s = self.levels
        if self.norm == "max":
            return (math.sqrt(s * s + n - 1) - s) / (2 * s)
        return min(n / s**2, math.sqrt(n) / s)
