"""Subtractive dither: uniform noise that both ends know, added before rounding and taken off after. Unbiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Vector
from qafel.quantizers import payloads as parallel
from qafel.quantizers.kernels.decode import ADD, ASSIGN, OK, apply_dithered
from qafel.quantizers.kernels.levels import MAX_ABS, encode_spans
from qafel.quantizers.kernels.numeric import packed_bytes
from qafel.quantizers.payloads import (
    as_bytes,
    as_target,
    bucket_count,
    check_size,
    encode_payload,
    plan,
    seed_of,
    signed,
)
from qafel.quantizers.protocol import DITHERED, Payload, pack_codec
from qafel.quantizers.qsgd import DEFAULT_BUCKET, MAX_BUCKET
from qafel.rng import Stream

_SEED_BYTES = 8


@final
@dataclass(frozen=True, slots=True)
class Dithered:
    """Round x/step + u with u uniform, and let the receiver, who knows u from the message's seed, subtract it.

    Q(x) = step · (round(x/step + u) − u). The error is uniform on ±step/2 and independent of x: half of QSGD's variance
    for the same step, and all 2ᵇ codes are used: step = 2·max|x| / (2ᵇ − 1). Roberts, 1962; Schuchman, 1964.
    """

    bits: int = 4
    bucket: int | None = DEFAULT_BUCKET

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise SpecError(f"dithered takes 1 to 8 bits a coordinate, found {self.bits}")
        if self.bucket is not None and not 1 <= self.bucket <= MAX_BUCKET:
            raise SpecError(f"a bucket holds 1 to {MAX_BUCKET} coordinates, or none for all, found {self.bucket}")

    @property
    def spec(self) -> str:
        bucket = "none" if self.bucket is None else self.bucket
        return f"dithered:{self.bits}" + ("" if bucket == DEFAULT_BUCKET else f",bucket={bucket}")

    @property
    def codec(self) -> bytes:
        return pack_codec(DITHERED, bytes([self.bits]) + (self.bucket or 0).to_bytes(3, "little"))

    @staticmethod
    def from_parameters(fields: bytes) -> Dithered:
        return Dithered(fields[0], int.from_bytes(fields[1:4], "little") or None)

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def levels(self) -> float:
        """Steps from zero to the largest magnitude: 7.5 at 4 bits."""
        return 0.5 * (2.0**self.bits - 1.0)

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return self.encode_scaled(vector, stream, 1.0)

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> bytes:
        """A payload that decodes to gain · Q(vector)."""
        seed = seed_of(stream)
        seeded = Stream((int.from_bytes(seed, "little"), 0))
        return encode_payload(encode_spans, vector, seeded, self.bucket, self.levels, self.bits, MAX_ABS, gain, seed)

    def decode(self, payload: Payload, size: int) -> Vector:
        target = np.empty(check_size(size), np.float32)
        self._apply(target, payload, ASSIGN, 1.0)
        return target

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        self._apply(as_target(target), payload, ADD, float(weight))

    def payload_bytes(self, size: int) -> int:
        return self.head_bytes(size) + packed_bytes(size, self.bits)

    def head_bytes(self, size: int) -> int:
        return _SEED_BYTES + 4 * bucket_count(check_size(size), self.bucket)

    def max_payload_bytes(self, size: int) -> int:
        return self.payload_bytes(size)

    def omega(self, size: int) -> float:
        """The exact worst case: step²/12 for each of the n in a bucket, whose norm is at least levels · step."""
        n = min(size, self.bucket or size)
        return n / (12 * self.levels**2)

    def delta(self, size: int) -> float:
        return 1.0 - self.omega(size)

    def bits_per_coordinate(self, size: int) -> float:
        return 8.0 * self.payload_bytes(size) / size if size else 0.0

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        length, span, spans, total = plan(target.size, self.bucket, self.bits)
        data = as_bytes(payload, _SEED_BYTES + total)
        seed = signed(int.from_bytes(data[:_SEED_BYTES].tobytes(), "little"))
        common = (target, data, mode, weight, seed, length, span, self.bits)
        serial = parallel.is_serial(target.size)
        if apply_dithered(*common, True, 0, spans if serial else 0) != OK:
            raise MalformedPayload(
                "expected finite, non-negative steps, found another: the payload is damaged or forged"
            )
        if not serial:
            parallel.over_spans(lambda first, last: apply_dithered(*common, False, first, last), spans)
