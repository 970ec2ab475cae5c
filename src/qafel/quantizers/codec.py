"""The sixteen bytes that name a quantizer in a message.

offset  0  1       2 … 7        8     9       10 … 15
        id flags   parameters   id    flags   parameters
        the codec               the codec inside it, or zeros
"""

from __future__ import annotations

import struct
from typing import Final

from qafel.quantizers.protocol import CODEC_BYTES

NONE: Final = 1
QSGD: Final = 2
TOP_K: Final = 3
RAND_K: Final = 4
AFFINE: Final = 5
SIGN: Final = 6
DITHERED: Final = 7
ROTATED: Final = 8
SCALED: Final = 9

ZSTD_FLAG: Final = 1


def pack_codec(codec_id: int, parameters: bytes = b"", inner: bytes = b"") -> bytes:
    """One codec's sixteen bytes, with another's first eight inside."""
    return struct.pack("<BB6s8s", codec_id, 0, parameters, inner[:8])


def split_codec(codec: bytes) -> tuple[int, int, bytes, bytes]:
    """Identifier, flags, parameters, and the inner codec as sixteen bytes of its own (empty if there is none)."""
    codec_id, flags, parameters, inner = struct.unpack("<BB6s8s", codec)
    return codec_id, flags, parameters, inner.ljust(CODEC_BYTES, b"\0") if any(inner) else b""


def with_flag(codec: bytes, flag: int) -> bytes:
    return codec[:1] + bytes([codec[1] | flag]) + codec[2:]


def without_flag(codec: bytes, flag: int) -> bytes:
    return codec[:1] + bytes([codec[1] & ~flag & 0xFF]) + codec[2:]
