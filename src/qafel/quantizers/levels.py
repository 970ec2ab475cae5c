"""A step per bucket and a code per coordinate: QSGD, dithered quantization and sign.

A payload:

    seed    8 bytes, dithered only
    steps   4 bytes per bucket, little-endian float32
    codes   packed, see kernels/__init__.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, final

import numpy as np

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Vector
from qafel.quantizers import family, kernels
from qafel.quantizers.family import BUCKET, WHOLE, FixedRate, Scalable, as_bytes, bad_scale, check_size, one_of
from qafel.quantizers.kernels import BAD_STEP, GROUP, L2, MAX_ABS, MEAN, OK, SEED_BYTES, packed_bytes
from qafel.quantizers.protocol import Payload
from qafel.rng import Stream

Norm = Literal["max", "l2"]

DEFAULT_BUCKET: Final = 512
MAX_BUCKET: Final = 2**24 - 1
MAX_LEVELS: Final = 127

_NORMS: Final[tuple[Norm, ...]] = ("max", "l2")  # in the order of MAX_ABS and L2
_SIGN_BIT: Final = 2**63
_SPAN: Final = 4096  # coordinates: 16 kB, so that the second pass over a span finds it in the first-level cache


def _check_bucket(bucket: int | None) -> None:
    """Refuse a bucket that a codec cannot express. With None the whole vector is one bucket."""
    if bucket is not None and not 1 <= bucket <= MAX_BUCKET:
        raise SpecError(f"bucket must be a whole number from 1 to {MAX_BUCKET}, or none, found {bucket}")


def _step_bytes(size: int, bucket: int | None) -> int:
    """The bytes of one float32 step per bucket of `size` coordinates."""
    return 4 * -(-check_size(size) // (bucket or max(size, 1)))


@lru_cache(1024)
def _spans_of(size: int, bucket: int | None, bits: int) -> tuple[int, int, int, int]:
    """Bucket length, span length, number of spans, bytes of steps and codes.

    A span shares neither a bucket nor a byte with its neighbours.
    """
    length = bucket or max(size, 1)
    unit = math.lcm(length, GROUP)
    span = unit * max(1, _SPAN // unit)
    return length, span, -(-size // span), _step_bytes(size, bucket) + packed_bytes(size, bits)


class Bucketed(FixedRate):
    """A step per bucket and a code per coordinate for the levels −levels … levels, after a seed if there is one."""

    __slots__ = ()

    SEED: ClassVar[int] = 0
    bucket: int | None
    if TYPE_CHECKING:  # fields, properties or constants

        @property
        def bits(self) -> int: ...
        @property
        def levels(self) -> float: ...

    def payload_bytes(self, size: int) -> int:
        return self.SEED + _spans_of(size, self.bucket, self.bits)[3]

    def head_bytes(self, size: int) -> int:
        return self.SEED + _step_bytes(size, self.bucket)

    def _encode(self, vector: Vector, words: tuple[int, int], norm: int, gain: float) -> Payload:
        """Quantize a vector into steps and codes, after the first word as a seed."""
        vector = family.as_vector(vector)
        length, span, spans, total = _spans_of(vector.size, self.bucket, self.bits)
        out = np.empty(self.SEED + total, np.uint8)
        if self.SEED:
            out[: self.SEED] = np.frombuffer(words[0].to_bytes(self.SEED, "little"), np.uint8)
        signed = ((words[0] ^ _SIGN_BIT) - _SIGN_BIT, (words[1] ^ _SIGN_BIT) - _SIGN_BIT)
        common = (vector, out, *signed, length, span, float(self.levels), self.bits, norm, gain, self.SEED)
        family.encode_spans(kernels.levels.encode_spans, vector, common, spans)
        return family.as_payload(out)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        length, span, spans, total = _spans_of(target.size, self.bucket, self.bits)
        data = as_bytes(payload, self.SEED + total)
        kernel, parameter = kernels.levels.apply_levels, self.levels
        if self.SEED:
            kernel, parameter = kernels.levels.apply_dithered, family.seed_word(data[: self.SEED].tobytes())
        common = (target, data, mode, weight, length, span, parameter, self.bits)
        status = family.apply_spans(kernel, target.size, common, spans)
        if status == BAD_STEP:
            raise bad_scale("steps")
        if status != OK:
            top = 2 * self.levels
            raise MalformedPayload(f"expected codes up to {top}, found a larger one: another quantizer made it")


@final
@dataclass(frozen=True, slots=True)
class Qsgd(Bucketed, Scalable):
    """Round every coordinate at random to one of s levels of its bucket's scale. The mean is exact.

    Q(x)ᵢ = step · (⌊xᵢ/step⌋ + Bernoulli(frac(xᵢ/step))), step = ‖bucket‖ / s, with max |xᵢ| or ℓ₂ as the norm.
    Alistarh et al., 2017. With `bits` = 1 there is no zero level: ±scale, at random.
    """

    NAME: ClassVar[str] = "qsgd"
    CODEC_ID: ClassVar[int] = 2
    ARGUMENTS: ClassVar[dict[str, Any]] = {"bits": WHOLE, "levels": WHOLE, "norm": one_of(*_NORMS), "bucket": BUCKET}

    bits: int = 4
    levels: int = 7
    norm: Norm = "max"
    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise SpecError(f"qsgd takes 1 to {MAX_LEVELS} levels, found {self.levels}")
        needed = (2 * self.levels).bit_length()
        if not (self.bits == self.levels == 1 or self.bits == needed):
            raise SpecError(f"qsgd with {self.levels} levels takes {needed} bits, found {self.bits}")
        if self.norm not in _NORMS:
            raise SpecError(f"qsgd takes norm=max or norm=l2, found {self.norm!r}")
        _check_bucket(self.bucket)

    @staticmethod
    def of_bits(bits: int, norm: Norm = "max", bucket: int | None = DEFAULT_BUCKET) -> Qsgd:
        """The most levels for `bits` per coordinate: s = 2^(b−1) − 1, and a sign."""
        if not 1 <= bits <= 8:
            raise SpecError(f"qsgd takes 1 to 8 bits a coordinate, found {bits}")
        return Qsgd(bits, max(1, 2 ** (bits - 1) - 1), norm, bucket)

    @staticmethod
    def of_levels(levels: int, norm: Norm = "max", bucket: int | None = DEFAULT_BUCKET) -> Qsgd:
        """`levels` magnitudes, plus a sign and zero: 2s + 1 values."""
        return Qsgd((2 * levels).bit_length(), levels, norm, bucket)

    @classmethod
    def from_spec(cls, bits: int | None = None, levels: int | None = None, **given: Any) -> Qsgd:
        if (bits is None) == (levels is None):
            raise SpecError("qsgd takes either bits or levels: write qsgd:4, or qsgd:levels=8")
        return Qsgd.of_bits(bits, **given) if bits is not None else Qsgd.of_levels(levels or 0, **given)

    @property
    def spec(self) -> str:
        most_levels = self == Qsgd.of_bits(self.bits, self.norm, self.bucket)
        amount = f"{self.bits}" if most_levels else f"levels={self.levels}"
        return ",".join([f"qsgd:{amount}", *self._changed("norm", "bucket")])

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        return self._encode(vector, stream.words, L2 if self.norm == "l2" else MAX_ABS, gain)

    def omega(self, size: int) -> float:
        """The exact worst case for max-abs; Lemma 3.1 of the QSGD paper for ℓ₂.

        Max-abs, n + 1 coordinates in a bucket: one carries the scale, n lie at a fraction f of a step.
        n·f(1−f)/(s² + n·f²) is largest at f = s(√(s²+n) − s)/n, with value (√(s²+n) − s)/(2s).
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


@final
@dataclass(frozen=True, slots=True)
class Dithered(Bucketed, Scalable):
    """Round x/step + u with u uniform. The receiver derives u from the message's seed and subtracts it.

    Q(x) = step · (round(x/step + u) − u). The error is uniform on ±step/2 and independent of x. That is half of QSGD's
    variance for the same step, and all 2ᵇ codes are in use: step = 2·max|x| / (2ᵇ − 1). Roberts, 1962; Schuchman, 1964.
    """

    NAME: ClassVar[str] = "dithered"
    CODEC_ID: ClassVar[int] = 7
    SEED: ClassVar[int] = SEED_BYTES
    ARGUMENTS: ClassVar[dict[str, Any]] = {"bits": WHOLE, "bucket": BUCKET}

    bits: int
    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise SpecError(f"dithered takes 1 to 8 bits a coordinate, found {self.bits}")
        _check_bucket(self.bucket)

    @property
    def levels(self) -> float:
        """Steps from zero to the largest magnitude: 7.5 at 4 bits."""
        return 0.5 * (2.0**self.bits - 1.0)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        return self._encode(vector, (int.from_bytes(family.seed_of(stream), "little"), 0), MAX_ABS, gain)

    def omega(self, size: int) -> float:
        """The exact worst case: step²/12 for each of the n in a bucket, and a norm of at least levels · step."""
        return min(size, self.bucket or size) / (12 * self.levels**2)


@final
@dataclass(frozen=True, slots=True)
class Sign(Bucketed):
    """Send signs and the mean magnitude of each bucket: one bit per coordinate, biased, a contraction.

    Q(x) = (‖x‖₁/n) · sign(x) in a bucket of n: ‖x − Q(x)‖² = ‖x‖² − ‖x‖₁²/n ≤ (1 − 1/n)‖x‖². Karimireddy et al., 2019.
    """

    NAME: ClassVar[str] = "sign"
    CODEC_ID: ClassVar[int] = 6
    bits: ClassVar[Any] = 1
    levels: ClassVar[Any] = 1
    ARGUMENTS: ClassVar[dict[str, Any]] = {"bucket": BUCKET}

    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        _check_bucket(self.bucket)

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return self._encode(vector, stream.words, MEAN, 1.0)

    def omega(self, size: int) -> float:
        return 1.0 - self.delta(size)

    def delta(self, size: int) -> float:
        """The worst case: one non-zero coordinate among the n of its bucket."""
        return 1.0 / max(1, min(size, self.bucket or size))
