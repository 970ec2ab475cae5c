"""The frame around everything that crosses: uploads, broadcasts, whole models, snapshots.

One fixed header of 64 bytes, little-endian, then the quantizer's payload:

    offset  bytes  field
         0      2  magic "QF"
         2      1  format version, now 1
         3      1  kind
         4     16  codec: the quantizer and its parameters
        20      4  dimension of the model
        24      4  payload length in bytes
        28      8  version of the hidden state it is based on (a snapshot: the version it holds)
        36      8  sender: the client's number; 0 for the server
        44      4  sequence: counts the sender's uploads, so that duplicates show
        48      4  weight of the update, float32
        52      8  digest of the hidden state that results; 0 in an upload
        60      4  checksum: XXH3 of the payload, seeded with the XXH3 of the header, low half

The payload is never copied, and no header decides how much memory is allocated. A receiver states the dimension and
quantizer that it expects. Any other message is refused before its payload is read.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, final

import xxhash

from qafel.errors import (
    ChecksumMismatch,
    ConfigError,
    MalformedPayload,
    OversizedMessage,
    TruncatedMessage,
    UnknownFormat,
    WrongCodec,
    WrongDimension,
    WrongKind,
)
from qafel.quantizers.protocol import CODEC_BYTES, CUSTOM, Payload, Quantizer

MAGIC = b"QF"
FORMAT = 1
HEADER_BYTES = 64
MAX_DIMENSION = 2**32 - 1
_HEADER = struct.Struct("<2sBB16sIIQQIfQ")
_CHECKSUM = struct.Struct("<I")


class Kind(IntEnum):
    """What a message is."""

    UPLOAD = 1
    """A client's update, Q_c(y₀ − y_P), or its whole model if the algorithm mixes models."""
    BROADCAST = 2
    """The server's q: every receiver adds it to its hidden state."""
    MODEL = 3
    """The whole quantized model, Q_s(x): every receiver replaces its copy (direct quantization)."""
    SNAPSHOT = 4
    """The whole hidden state for a client that is too far behind: uncompressed, or Q_snap(x̂) to start from."""
    START = 5
    """Q(x̂ − y), which moves one client's start point y. The field `sender` is the digest of y."""


_KINDS = {int(kind): kind for kind in Kind}


@final
class Message(NamedTuple):
    """A frame's fields. `to_bytes` and `from_bytes` are inverse."""

    kind: Kind
    codec: bytes
    dimension: int
    version: int
    payload: Payload
    sender: int = 0
    sequence: int = 0
    weight: float = 1.0
    digest: int = 0

    def to_bytes(self) -> bytes:
        kind, codec, dimension, version, payload, *others = self
        if not 0 <= dimension <= MAX_DIMENSION:
            raise ConfigError(f"a message holds at most {MAX_DIMENSION} parameters, the model has {dimension}")
        if len(codec) != CODEC_BYTES:
            raise ConfigError(f"a codec is named by {CODEC_BYTES} bytes, got {len(codec)}")
        header = _HEADER.pack(MAGIC, FORMAT, kind, codec, dimension, len(payload), version, *others)
        return b"".join((header, _CHECKSUM.pack(_checksum(header, payload)), payload))

    @staticmethod
    def from_bytes(data: Payload) -> Message:
        """Read a frame: format, length and checksum hold, or it raises. Whether it fits this receiver, `check` says."""
        if len(data) < HEADER_BYTES:
            raise TruncatedMessage(f"a message has at least {HEADER_BYTES} bytes, this one {len(data)}")
        view = memoryview(data)
        magic, form, kind, codec, dimension, length, version, sender, sequence, weight, digest = _HEADER.unpack_from(
            view
        )
        if magic != MAGIC:
            raise UnknownFormat(f"a message starts with {MAGIC!r}, this one with {magic!r}")
        if form != FORMAT:
            raise UnknownFormat(
                f"this receiver reads format {FORMAT}, the message has format {form}: upgrade the older end"
            )
        if len(data) < HEADER_BYTES + length:
            raise TruncatedMessage(f"the header promises {length} payload bytes, {len(data) - HEADER_BYTES} came")
        if len(data) > HEADER_BYTES + length:
            raise OversizedMessage(f"the header promises {length} payload bytes, {len(data) - HEADER_BYTES} came")
        payload = view[HEADER_BYTES:]
        (found,) = _CHECKSUM.unpack_from(view, _HEADER.size)
        if found != (expected := _checksum(view[: _HEADER.size], payload)):
            raise ChecksumMismatch(f"the checksum says {found:08x}, the bytes {expected:08x}: damaged on the way")
        if kind not in _KINDS:
            raise UnknownFormat(f"unknown kind of message {kind}; known are {', '.join(k.name.lower() for k in Kind)}")
        if not 0 < weight < math.inf:
            raise MalformedPayload(f"the weight of an update is finite and positive, this one is {weight}")
        return Message(_KINDS[kind], codec, dimension, version, payload, sender, sequence, weight, digest)

    def check(self, kind: Kind, dimension: int, quantizer: Quantizer) -> None:
        """Raise unless this is the kind, dimension and codec that the receiver expects."""
        if self.kind is not kind:
            raise WrongKind(f"expected {kind.name.lower()}, found {self.kind.name.lower()}")
        if self.dimension != dimension:
            raise WrongDimension(f"the receiver's model has {dimension} parameters, the message {self.dimension}")
        codec, most = expectations(quantizer, dimension)
        if self.codec != codec:
            other = "another custom quantizer" if self.codec[0] == CUSTOM else "another quantizer"
            raise WrongCodec(f"the receiver reads {quantizer.spec} ({codec.hex()}), found {other} ({self.codec.hex()})")
        if len(self.payload) > most:
            raise OversizedMessage(
                f"{quantizer.spec} needs at most {most} bytes here, the payload has {len(self.payload)}"
            )


@lru_cache(maxsize=64)
def expectations(quantizer: Quantizer, dimension: int) -> tuple[bytes, int]:
    """The quantizer's codec and its largest payload, worked out once: every message is held against them."""
    return quantizer.codec, quantizer.max_payload_bytes(dimension)


def version_of(frame: Payload) -> int:
    """The version that a frame's header says, unchecked."""
    return int.from_bytes(frame[28:36], "little")


def checksum_of(frame: Payload) -> int:
    """The checksum that a frame's header says, unchecked: it tells one upload from another."""
    return int.from_bytes(frame[60:64], "little")


def _checksum(header: Payload, payload: Payload) -> int:
    return xxhash.xxh3_64_intdigest(payload, xxhash.xxh3_64_intdigest(header)) & 0xFFFFFFFF
