"""QSGD: random rounding to a few levels of a scale, unbiased."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np

from qafel.errors import SpecError
from qafel.params import Vector
from qafel.quantizers.kernels.levels import L2, MAX_ABS, encode_spans
from qafel.quantizers.kernels.numeric import packed_bytes
from qafel.quantizers.payloads import apply_payload, bucket_count, check_size, encode_payload
from qafel.quantizers.protocol import QSGD, Payload, pack_codec
from qafel.rng import Stream

Norm = Literal["max", "l2"]

DEFAULT_BUCKET: Final = 512
MAX_BUCKET: Final = 2**24 - 1
MAX_LEVELS: Final = 127

_NORMS: Final[dict[Norm, int]] = {"max": MAX_ABS, "l2": L2}


@final
@dataclass(frozen=True, slots=True)
class Qsgd:
    """Round every coordinate at random to one of s levels of its bucket's scale, so that the mean is exact.

    Q(x)ᵢ = step · (⌊xᵢ/step⌋ + Bernoulli(frac(xᵢ/step))), step = ‖bucket‖ / s, the norm being max |xᵢ| or ℓ₂.
    Alistarh et al., 2017. With `bits` = 1 there is no zero level: ±scale, at random.
    """

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
        if self.bucket is not None and not 1 <= self.bucket <= MAX_BUCKET:
            raise SpecError(
                f"a bucket holds 1 to {MAX_BUCKET} coordinates, or none for the whole vector, found {self.bucket}"
            )

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
        text = (
            f"qsgd:{self.bits}"
            if self == Qsgd.of_bits(self.bits, self.norm, self.bucket)
            else f"qsgd:levels={self.levels}"
        )
        text += ",norm=l2" if self.norm == "l2" else ""
        if self.bucket != DEFAULT_BUCKET:
            text += f",bucket={'none' if self.bucket is None else self.bucket}"
        return text

    @property
    def codec(self) -> bytes:
        fields = bytes([self.bits, self.levels, _NORMS[self.norm]]) + (self.bucket or 0).to_bytes(3, "little")
        return pack_codec(QSGD, fields)

    @staticmethod
    def from_parameters(fields: bytes) -> Qsgd:
        """The quantizer that `codec` describes."""
        norm: Norm = "l2" if fields[2] == L2 else "max"
        return Qsgd(fields[0], fields[1], norm, int.from_bytes(fields[3:6], "little") or None)

    @property
    def unbiased(self) -> bool:
        return True

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        norm = _NORMS[self.norm]
        return encode_payload(encode_spans, vector, stream, self.bucket, self.levels, self.bits, norm, 1.0)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> bytes:
        """A payload that decodes to gain · Q(vector)."""
        norm = _NORMS[self.norm]
        return encode_payload(encode_spans, vector, stream, self.bucket, self.levels, self.bits, norm, gain)

    def decode(self, payload: Payload, size: int) -> Vector:
        target = np.empty(check_size(size), np.float32)
        apply_payload(target, payload, None, self.bucket, self.levels, self.bits)
        return target

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        apply_payload(target, payload, weight, self.bucket, self.levels, self.bits)

    def payload_bytes(self, size: int) -> int:
        """Every payload has this length: a float32 step per bucket, then the packed codes."""
        return self.head_bytes(size) + packed_bytes(size, self.bits)

    def head_bytes(self, size: int) -> int:
        return 4 * bucket_count(check_size(size), self.bucket)

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)

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

    def delta(self, size: int) -> float:
        return 1.0 - self.omega(size)

    def bits_per_coordinate(self, size: int) -> float:
        return 8.0 * self.payload_bytes(size) / size if size else 0.0
