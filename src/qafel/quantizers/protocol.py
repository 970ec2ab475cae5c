"""The protocol of a quantizer, and the sixteen bytes that name one in a message.

A quantizer owns both ends: `encode` turns a vector into bytes, `decode` turns them back, and Q(x) = decode(encode(x)).
Decoding is IEEE arithmetic in a fixed order, never fast-math: server and clients on different machines must add
bit-identical numbers to their hidden states.

Layout of the sixteen bytes:

    offset  0  1       2 … 7        8     9       10 … 15
            id flags   parameters   id    flags   parameters
            the codec               the codec inside it, or zeros
"""

from __future__ import annotations

import struct
from typing import Any, Final, Protocol, TypeAlias

from qafel.params import Vector
from qafel.rng import Stream

Payload: TypeAlias = bytes | memoryview
"""The output of `encode`: bytes, or a view of a buffer of bytes."""

CODEC_BYTES: Final = 16
"""The length of a quantizer's name in a message."""
CUSTOM: Final = 11
"""The number of every custom codec. Number 8 is not in use."""
ZSTD_FLAG: Final = 1
_CODEC: Final = struct.Struct("<BB6s8s")


class Codec(Protocol):
    """The two methods that a custom quantizer needs. `as_quantizer` derives the rest of a `Quantizer` from them."""

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        """Quantize a flat, finite float32 vector. Draw all randomness from the stream."""
        ...

    def decode(self, payload: Any, size: int) -> Vector:
        """Return the `size` coordinates that the payload (bytes) encodes. Raise any exception for a bad payload."""
        ...


class Quantizer(Protocol):
    """Vector to bytes and back, with its theory. Quantizers are values: equal ones have equal hashes.

    Section II-A of the paper: E‖x − Q(x)‖² ≤ (1 − δ)‖x‖², δ in (0, 1]. `size` is the vector's number of coordinates.
    """

    def __hash__(self) -> int: ...

    @property
    def spec(self) -> str:
        """The canonical text that `parse` turns into an equal quantizer, such as "qsgd:4"."""
        ...

    @property
    def codec(self) -> bytes:
        """Sixteen bytes that name the codec and its parameters. Equal bytes mean compatible payloads."""
        ...

    def unbiased(self, size: int) -> bool:
        """Whether E[Q(x)] = x for every x of `size` coordinates, to a relative squared bias below 10⁻⁴."""
        ...

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        """Quantize a flat float32 vector, with randomness from the stream alone.

        NaN or infinity in the vector raises `NonFiniteVector`. A large payload may be a read-only view.
        """
        ...

    def decode(self, payload: Payload, size: int) -> Vector:
        """Return the vector that the payload encodes.

        Raises `MalformedPayload` for a payload of another size, or one that contains NaN or infinity. Allocates no
        more than `size` floats.
        """
        ...

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        """Add in place: target ← target + weight · decode(payload), in one pass. An error leaves target unchanged."""
        ...

    def max_payload_bytes(self, size: int) -> int:
        """The longest possible payload for `size` coordinates."""
        ...

    def omega(self, size: int) -> float:
        """Worst-case relative variance: E‖Q(x) − x‖² ≤ ω‖x‖². Infinity if there is no bound."""
        ...

    def delta(self, size: int) -> float:
        """The worst-case compression parameter δ. If δ ≤ 0, Q does not contract and is unfit for the server."""
        ...


def pack_codec(codec_id: int, parameters: bytes = b"", inner: bytes = b"") -> bytes:
    """The sixteen bytes of a codec with up to six bytes of parameters, and the first eight of its inner codec."""
    return _CODEC.pack(codec_id, 0, parameters, inner[:8])


def split_codec(codec: bytes) -> tuple[int, int, bytes, bytes]:
    """Identifier, flags, parameters, and the inner codec as sixteen bytes (empty if there is none)."""
    codec_id, flags, parameters, inner = _CODEC.unpack(codec)
    return codec_id, flags, parameters, inner.ljust(CODEC_BYTES, b"\0") if any(inner) else b""


def with_flags(codec: bytes, flags: int) -> bytes:
    """The codec with these flags."""
    return codec[:1] + bytes([flags]) + codec[2:]


def is_measured(quantizer: Quantizer) -> bool:
    """Whether ω, δ and bias are measured on data, as for most custom quantizers, and not proven for every vector."""
    return bool(getattr(quantizer, "is_measured", False))
