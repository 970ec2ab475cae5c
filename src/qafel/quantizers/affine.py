"""Float32 coordinates as they are (none), and min-max per weight tensor (affine).

Both are deterministic. The paper's neural-network runs use affine.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeAlias, final

import numpy as np

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Layout, Vector
from qafel.quantizers import kernels
from qafel.quantizers.family import (
    WHOLE,
    Bytes,
    FixedRate,
    Scalable,
    as_bytes,
    as_finite_vector,
    as_payload,
    as_vector,
    check_size,
    fingerprint,
    layout_of,
)
from qafel.quantizers.kernels import ASSIGN, packed_bytes
from qafel.quantizers.protocol import Payload, Quantizer, pack_codec
from qafel.rng import Stream

_HEAD: Final = struct.Struct("<ffI")  # minimum, step, number of weights: the 12 bytes of the paper's size model

_Piece: TypeAlias = tuple[int, int, int, bool]
"""Start, count and first byte of a tensor, and whether it is sent as float32."""


@lru_cache(64)
def pieces_of(layout: Layout | None, bits: int, size: int) -> tuple[tuple[_Piece, ...], int]:
    """The place of every tensor, and the bytes of all."""
    if layout is not None and layout.size != check_size(size):
        raise ValueError(f"affine expects the {layout.size} parameters of its layout, found {size}")
    pieces, start, at = [], 0, 0
    for shape in [(size, 1)] if layout is None else [shape for _, shape in layout.tensors]:
        count, plain = math.prod(shape), len(shape) < 2
        pieces.append((start, count, at, plain))
        start, at = start + count, at + (4 * count if plain else _HEAD.size + packed_bytes(count, bits))
    return tuple(pieces), at


def _floats(data: Bytes) -> Vector:
    """The float32 coordinates in these bytes, after a check that they are finite."""
    values = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    if not kernels.shared.is_finite(values):
        raise MalformedPayload("expected finite parameters, found NaN or infinity: the sender's model diverged")
    return values


def _apply_floats(target: Vector, values: Vector, mode: int, weight: float) -> None:
    if mode == ASSIGN:
        target[...] = values
    else:
        target += values if weight == 1.0 else np.float32(weight) * values


@final
@dataclass(frozen=True, slots=True)
class Identity(Scalable):
    """Send the vector unchanged. Q(x) = x, δ = 1. FedBuff is QAFeL with this quantizer on both sides."""

    NAME: ClassVar[str] = "none"
    CODEC_ID: ClassVar[int] = 1

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return as_finite_vector(vector).astype("<f4", copy=False).tobytes()

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        return self.encode(as_vector(vector) * np.float32(gain), stream)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        _apply_floats(target, _floats(as_bytes(payload, self.payload_bytes(target.size))), mode, weight)

    def payload_bytes(self, size: int) -> int:
        return 4 * check_size(size)

    def head_bytes(self, size: int) -> int:
        return 0

    def omega(self, size: int) -> float:
        return 0.0


@final
@dataclass(frozen=True, slots=True)
class Affine(FixedRate):
    """Round every weight to the nearest of 2ᵇ levels between its tensor's minimum and maximum.

    Q(x) = min + step · round((x − min)/step), step = (max − min)/(2ᵇ − 1). Tensors of one dimension are sent
    as float32. Without a layout the vector is one weight tensor.
    Bytes: weights·b/8 + 4·(one-dimensional) + 12·(weight tensors).
    """

    NAME: ClassVar[str] = "affine"
    CODEC_ID: ClassVar[int] = 5
    ARGUMENTS: ClassVar[dict[str, Any]] = {"bits": WHOLE}

    bits: int
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise SpecError(f"affine takes 1 to 8 bits a coordinate, found {self.bits}")

    @property
    def codec(self) -> bytes:
        return pack_codec(self.CODEC_ID, bytes([self.bits]) + fingerprint(self.layout))

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Affine:
        return Affine(fields[0], layout_of(fields[1:5], layout))

    def for_layout(self, layout: Layout) -> Affine:
        return Affine(self.bits, layout)

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        vector = as_finite_vector(vector)
        out = np.zeros(self.payload_bytes(vector.size), np.uint8)
        head = np.empty(2, np.float32)
        for start, count, at, plain in pieces_of(self.layout, self.bits, vector.size)[0]:
            if plain:
                out[at : at + 4 * count] = np.frombuffer(
                    vector[start : start + count].astype("<f4").tobytes(), np.uint8
                )
                continue
            kernels.levels.encode_tensor(vector, start, count, self.bits, out, at + _HEAD.size, head)
            out[at : at + _HEAD.size] = np.frombuffer(_HEAD.pack(head[0], head[1], count), np.uint8)
        return as_payload(out)

    def payload_bytes(self, size: int) -> int:
        return pieces_of(self.layout, self.bits, size)[1]

    def head_bytes(self, size: int) -> int:
        return 0

    def omega(self, size: int) -> float:
        """The worst tensor: two of n weights at ±m are exact, the others half a step off. ω = (n − 2)/(2(2ᵇ − 1)²)."""
        largest = max(
            (count for _, count, _, plain in pieces_of(self.layout, self.bits, size)[0] if not plain), default=0
        )
        top = float(2**self.bits - 1)
        return max(0, largest - 2) / (2 * top * top)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        where, length = pieces_of(self.layout, self.bits, target.size)
        data = as_bytes(payload, length)
        pieces = [(*piece, self._checked(data, *piece)) for piece in where]
        apply_tensor = kernels.levels.apply_tensor
        for start, count, at, plain, (low, step) in pieces:
            if not plain:
                apply_tensor(target, start, count, data, at + _HEAD.size, self.bits, low, step, mode, weight)
                continue
            _apply_floats(target[start : start + count], _floats(data[at : at + 4 * count]), mode, weight)

    def _checked(self, data: Bytes, start: int, count: int, at: int, plain: bool) -> tuple[float, float]:
        """Minimum and step of a tensor, after a check that it decodes to finite numbers."""
        if plain:
            _floats(data[at : at + 4 * count])
            return 0.0, 0.0
        low, step, stated = _HEAD.unpack(data[at : at + _HEAD.size].tobytes())
        if not (math.isfinite(low) and math.isfinite(step) and step >= 0 and stated == count):
            raise MalformedPayload(
                f"expected a tensor of {count} weights with a finite minimum and step, "
                f"found {stated} weights, minimum {low}, step {step}"
            )
        return low, step
