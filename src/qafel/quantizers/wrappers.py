"""Wrappers of another quantizer.

`+zstd` compresses its payload, `scaled:` makes it a contraction for the server, `layers:` keeps tensors apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import MalformedPayload, SpecError
from qafel.params import Layout, Vector
from qafel.quantizers import kernels
from qafel.quantizers.family import Family, FixedRate, Scalable, as_finite_vector, check_size, fingerprint, layout_of
from qafel.quantizers.kernels import ADD
from qafel.quantizers.protocol import ZSTD_FLAG, Payload, Quantizer, pack_codec, with_flags
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sparse import PLAIN, RandK
from qafel.quantizers.trellis import Trellis
from qafel.rng import Stream

_LEVEL = 1
_PIECE: Final = 416  # bits of the inner payload for each piece, which takes one byte more
_MANY = 1 << 20  # coordinates; too many for any quantizer to be exact by chance


@final
@dataclass(frozen=True, slots=True)
class Zstd:
    """Send the scales unchanged and the codes as one zstandard frame, if that is shorter than the plain payload.

    The length tells the receiver: only a shorter payload holds a frame. Two 4-bit codes share a byte, so zstandard's
    Huffman code over bytes comes close to the entropy of the levels.
    """

    inner: FixedRate

    def for_layout(self, layout: Layout) -> Zstd:
        return Zstd(self.inner.for_layout(layout)) if hasattr(self.inner, "for_layout") else self

    @property
    def spec(self) -> str:
        return f"{self.inner.spec}+zstd"

    @property
    def codec(self) -> bytes:
        return with_flags(self.inner.codec, ZSTD_FLAG)

    def unbiased(self, size: int) -> bool:
        return self.inner.unbiased(size)

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        import zstandard  # noqa: PLC0415 — load it only when needed

        plain = self.inner.encode(vector, stream)
        head = self.inner.head_bytes(vector.size)
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=False, write_checksum=False)
        frame = compressor.compress(memoryview(plain)[head:])
        return b"".join((plain[:head], frame)) if head + len(frame) < len(plain) else plain

    def decode(self, payload: Payload, size: int) -> Vector:
        return self.inner.decode(self._plain(payload, size), size)

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        self.inner.add_decoded_(target, self._plain(payload, target.size), weight)

    def max_payload_bytes(self, size: int) -> int:
        return self.inner.payload_bytes(size)

    def omega(self, size: int) -> float:
        return self.inner.omega(size)

    def delta(self, size: int) -> float:
        return self.inner.delta(size)

    def _plain(self, payload: Payload, size: int) -> Payload:
        """The inner payload. Allocates no more than its exact length, whatever the frame claims."""
        expected, head = self.inner.payload_bytes(size), self.inner.head_bytes(size)
        if len(payload) == expected:
            return payload
        if not head < len(payload) < expected:
            raise MalformedPayload(
                f"expected {head + 1} to {expected} bytes for a size of {size}, found {len(payload)}"
            )
        view = memoryview(payload)
        return b"".join((view[:head], _decompressed(view[head:], expected - head)))


def _decompressed(frame: memoryview, expected: int) -> bytes:
    import zstandard  # noqa: PLC0415 — load it only when needed

    try:
        parameters = zstandard.get_frame_parameters(frame)
        if parameters.content_size not in {expected, zstandard.CONTENTSIZE_UNKNOWN} or parameters.dict_id:
            raise MalformedPayload(
                f"expected a frame of {expected} bytes, found one that claims {parameters.content_size}"
            )
        plain = zstandard.ZstdDecompressor().decompress(frame, max_output_size=expected, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedPayload(f"expected a zstandard frame of {expected} bytes: {error}") from error
    if len(plain) != expected:
        raise MalformedPayload(f"expected a frame of {expected} bytes, found {len(plain)}")
    return plain


@final
@dataclass(frozen=True, slots=True)
class Scaled(FixedRate):
    """Send Q(x) / (1 + ω) of an unbiased Q: biased, but a contraction with δ = 1/(1 + ω) > 0.

    E‖x − Q(x)/(1+ω)‖² ≤ (1 − 1/(1+ω))‖x‖². Only the scales are divided, so the payload stays as long.
    """

    NAME: ClassVar[str] = "scaled"
    CODEC_ID: ClassVar[int] = 9
    ARGUMENTS: ClassVar[dict[str, Any]] = {"inner": Quantizer}

    inner: Scalable

    def __post_init__(self) -> None:
        spec = self.inner.spec
        if not isinstance(self.inner, Scalable):
            remedy = ": use trellis with scale=least" if spec.startswith("trellis") else ""
            raise SpecError(f"scaled takes qsgd, rand_k, dithered or rotated, all unbiased, found {spec!r}{remedy}")
        if isinstance(self.inner, RandK) and self.inner.values != PLAIN:
            raise SpecError(f"scaled cannot wrap {spec!r}: a codec names one quantizer inside another")
        if not self.inner.unbiased(_MANY):
            raise SpecError(f"scaled takes an unbiased quantizer, found {spec!r}: use it without scaled")

    @classmethod
    def from_fields(cls, fields: bytes, inner: Any, layout: Layout | None) -> Scaled:
        return Scaled(inner)

    @property
    def spec(self) -> str:
        return f"scaled:{self.inner.spec}"

    @property
    def codec(self) -> bytes:
        return pack_codec(self.CODEC_ID, b"", self.inner.codec)

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        return self.inner.encode_scaled(vector, stream, 1.0 / (1.0 + self.inner.omega(vector.size)))

    def decode(self, payload: Payload, size: int) -> Vector:
        return self.inner.decode(payload, size)

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        self.inner._apply(target, payload, mode, weight)

    def payload_bytes(self, size: int) -> int:
        return self.inner.payload_bytes(size)

    def head_bytes(self, size: int) -> int:
        return self.inner.head_bytes(size)

    def omega(self, size: int) -> float:
        return 1.0 - self.delta(size)

    def delta(self, size: int) -> float:
        return 1.0 / (1.0 + self.inner.omega(size))


@lru_cache(64)
def _pieces(layout: Layout | None, size: int, most: int) -> NDArray[np.int64]:
    """Begin, length and length of at most `most` pieces of a vector, as equal as possible.

    No piece crosses the edge of a tensor, unless there are more than `most` tensors.
    """
    counts = [size] if layout is None else [math.prod(shape) for _, shape in layout.tensors]
    if sum(counts) != check_size(size):
        raise ValueError(f"layers expects the {sum(counts)} parameters of its layout, found {size}")
    if len(counts) > most:
        counts = [size]
    length = 1 + size // most
    while sum(max(1, count // length) for count in counts) > most:
        length += 1 + length // 8
    parts = [max(1, count // length) for count in counts]
    lengths = [count * (i + 1) // n - count * i // n for count, n in zip(counts, parts, strict=True) for i in range(n)]
    found = np.array([length for length in lengths if length], np.int64)
    return np.stack([np.cumsum(found) - found, found, found], axis=1)


@final
@dataclass(frozen=True, slots=True)
class Layers(Family):
    """Sort the pieces of all tensors by their magnitude, and quantize the sorted vector.

    `rotated` and `trellis` mix windows of 4096 coordinates, so in each of them the largest tensor decides the error of
    all. After sorting, a window holds coordinates of similar magnitude. Sorting changes no norm, so ω, δ and bias are
    those of the inner quantizer. Costs at most 2 % more bytes: one for each piece.
    """

    NAME: ClassVar[str] = "layers"
    CODEC_ID: ClassVar[int] = 13
    ARGUMENTS: ClassVar[dict[str, Any]] = {"inner": Quantizer}

    inner: Rotated | Trellis
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Rotated | Trellis):
            raise SpecError(f"layers takes rotated or trellis, such as trellis:2, found {self.inner.spec!r}")

    @classmethod
    def from_fields(cls, fields: bytes, inner: Any, layout: Layout | None) -> Layers:
        return Layers(inner, layout_of(fields[:4], layout))

    def for_layout(self, layout: Layout) -> Layers:
        return Layers(self.inner, layout)

    @property
    def spec(self) -> str:
        return f"layers:{self.inner.spec}"

    @property
    def codec(self) -> bytes:
        return pack_codec(self.CODEC_ID, fingerprint(self.layout), self.inner.codec)

    def _rows(self, size: int) -> NDArray[np.int64]:
        bits = self.inner.rate if isinstance(self.inner, Trellis) else self.inner.bits
        return _pieces(self.layout, size, max(1, int(bits * size / _PIECE)))

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        vector = as_finite_vector(vector)
        rows = self._rows(vector.size)
        sigmas = np.empty(len(rows))
        kernels.windows.deviations(vector, rows, sigmas)
        with np.errstate(over="ignore"):
            quarters = sigmas.astype(np.float32).view(np.int32) >> 21  # of an octave, from the bits
        ranks = np.maximum(255 - quarters.max(initial=0) + quarters, 0).astype(np.uint8)
        return bytes(ranks) + bytes(self.inner.encode(_sorted(vector, rows, ranks), stream))

    def _apply(self, target: Vector, payload: Payload, mode: int, weight: float) -> None:
        rows, view = self._rows(target.size), memoryview(payload)
        if len(view) < len(rows):
            raise MalformedPayload(f"expected a byte for each of {len(rows)} pieces, found {len(view)} bytes")
        ranks = np.frombuffer(view[: len(rows)], np.uint8)
        part = _sorted(target, rows, ranks) if mode == ADD else np.empty_like(target)
        self.inner._apply(part, view[len(rows) :], mode, weight)
        at = 0
        for begin, length, _ in rows[np.argsort(ranks, kind="stable")].tolist():
            target[begin : begin + length] = part[at : at + length]
            at += length

    def max_payload_bytes(self, size: int) -> int:
        return len(self._rows(size)) + self.inner.max_payload_bytes(size)

    def unbiased(self, size: int) -> bool:
        return self.inner.unbiased(size)

    def omega(self, size: int) -> float:
        return self.inner.omega(size)


def _sorted(vector: Vector, rows: NDArray[np.int64], ranks: NDArray[np.uint8]) -> Vector:
    """The pieces in the order of their ranks, the smallest magnitudes first.

    The last window of `trellis` overlaps its neighbour. So it must not hold the smallest.
    """
    spans = rows[np.argsort(ranks, kind="stable")].tolist()
    return np.concatenate([vector[:0], *(vector[begin : begin + length] for begin, length, _ in spans)])
