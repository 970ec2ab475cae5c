"""What a quantizer is: the one protocol that every codec of this package, and a user's own, fulfils.

A quantizer owns both ends. `encode` turns a vector into bytes, `decode` turns them back, and Q(x) = decode(encode(x)).
Whatever decodes is plain IEEE arithmetic in a fixed order (never fast-math), because server and clients on
different machines must add bit-identical numbers to their hidden states.

Sixteen bytes name a quantizer in a message:

    offset  0  1       2 … 7        8     9       10 … 15
            id flags   parameters   id    flags   parameters
            the codec               the codec inside it, or zeros
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from qafel.params import Layout, Vector
from qafel.rng import Stream

if TYPE_CHECKING:
    from qafel.quantizers.arguments import SpecArguments

Payload: TypeAlias = bytes | memoryview
"""What a quantizer writes and reads: bytes, or a view of a buffer of bytes."""

CODEC_BYTES: Final = 16
"""The length of what names a quantizer in a message."""
OWN: Final = 11
"""The number of every custom codec; 8 is free."""
ZSTD_FLAG: Final = 1
_CODEC: Final = struct.Struct("<BB6s8s")


class Codec(Protocol):
    """The two methods that an own quantizer needs; `own.as_quantizer` derives the rest of a `Quantizer` from them."""

    def encode(self, vector: Vector, stream: Stream) -> Payload:
        """Quantize a flat, finite float32 vector, with randomness from the stream alone."""
        ...

    def decode(self, payload: Any, size: int) -> Vector:
        """The `size` coordinates that the payload, as bytes, stands for; any exception says that there are none."""
        ...


class Quantizer(Protocol):
    """Vector to bytes and back, with its theory.

    Section II-A of the paper: E‖x − Q(x)‖² ≤ (1 − δ)‖x‖², δ in (0, 1]. `size` is the vector's number of coordinates.
    """

    def __hash__(self) -> int:
        """Quantizers are values: equal ones have equal hashes."""
        ...

    @property
    def spec(self) -> str:
        """The canonical text that `parse` turns into an equal quantizer, such as "qsgd:4"."""
        ...

    @property
    def codec(self) -> bytes:
        """Sixteen bytes that name the codec and its parameters in a message; equal exactly when payloads fit."""
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
        """The vector that the payload stands for. A payload that is not one of `size` coordinates, or that would decode
        to NaN or infinity, raises `MalformedPayload`, and nothing larger than `size` floats is allocated.
        """
        ...

    def add_decoded_(self, target: Vector, payload: Payload, weight: float = 1.0) -> None:
        """Add in place: target ← target + weight · decode(payload), in one pass. On an error, target is unchanged."""
        ...

    def max_payload_bytes(self, size: int) -> int:
        """No payload for `size` coordinates is longer than this."""
        ...

    def omega(self, size: int) -> float:
        """Worst-case relative variance: E‖Q(x) − x‖² ≤ ω‖x‖². Infinity where there is no bound."""
        ...

    def delta(self, size: int) -> float:
        """The compression parameter δ in the worst case; zero or negative: no contraction, unfit for the server."""
        ...


class Family(Protocol):
    """The class of a family of quantizers: its name, the number of its codec, and how both become a quantizer."""

    NAME: ClassVar[str]
    CODEC_ID: ClassVar[int]

    @classmethod
    def from_spec(cls, given: SpecArguments) -> Quantizer:
        """From the arguments of a text spec."""
        ...

    @classmethod
    def from_fields(cls, fields: bytes, inner: Quantizer | None, layout: Layout | None) -> Quantizer:
        """From the parameters in a codec, and the quantizer inside it."""
        ...


class FixedLength(Quantizer, Protocol):
    """A quantizer whose payload length depends on the size alone: what `+zstd` and `values=` can wrap."""

    def payload_bytes(self, size: int) -> int:
        """The length of every payload for `size` coordinates."""
        ...

    def head_bytes(self, size: int) -> int:
        """How many leading bytes are scales and seeds, which no lossless code shortens."""
        ...


class Scalable(FixedLength, Protocol):
    """An unbiased quantizer that can shrink what it sends at no cost: what `scaled:` can wrap."""

    def encode_scaled(self, vector: Vector, stream: Stream, gain: float) -> Payload:
        """A payload that decodes to gain · Q(vector)."""
        ...


def pack_codec(codec_id: int, parameters: bytes = b"", inner: bytes = b"") -> bytes:
    """The sixteen bytes of a codec with up to six bytes of parameters, and the first eight of the one inside it."""
    return _CODEC.pack(codec_id, 0, parameters, inner[:8])


def split_codec(codec: bytes) -> tuple[int, int, bytes, bytes]:
    """Identifier, flags, parameters, and the inner codec as sixteen bytes of its own (empty if there is none)."""
    codec_id, flags, parameters, inner = _CODEC.unpack(codec)
    return codec_id, flags, parameters, inner.ljust(CODEC_BYTES, b"\0") if any(inner) else b""


def is_measured(quantizer: Quantizer) -> bool:
    """Whether ω, δ and bias are measured on data, as an own quantizer's are, and not known for every vector."""
    return bool(getattr(quantizer, "is_measured", False))


def with_flags(codec: bytes, flags: int) -> bytes:
    """The same codec with these flags instead of its own."""
    return codec[:1] + bytes([flags]) + codec[2:]
