"""Codes of 1 to 8 bits to bytes and back, planar.

A group of up to 512 codes is packed plane by plane: a b-bit code is cut into pieces of 8, 4, 2 and 1 bits (b's binary
digits), and each piece goes to its own plane. In a plane of w-bit pieces, byte j holds the codes j, j + m, j + 2m, …
with m the plane's length in bytes. Neighbouring bytes come from neighbouring codes, so both directions vectorise.
"""

from __future__ import annotations

from numba import njit, uint8

from qafel.quantizers.kernels.numeric import KERNEL

GROUP = 512


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of `size` packed codes."""
    full, rest = divmod(size, GROUP)
    return full * (GROUP * bits // 8) + sum(-(-rest * width // 8) for width in (8, 4, 2, 1) if bits & width)


@njit(**KERNEL)
def _pack_plane(codes, low, width, out):  # type: ignore[no-untyped-def]
    count, per_byte = codes.size, 8 // width
    stride = (count + per_byte - 1) // per_byte
    mask = uint8((1 << width) - 1)
    low = uint8(low & uint8(7))
    plane = out[:stride]
    for j in range(stride):
        plane[j] = uint8(0)
    for turn in range(per_byte):
        shift = uint8(turn * width) & uint8(7)  # the mask tells LLVM that an 8-bit shift will do
        piece = codes[min(count, turn * stride) : min(count, (turn + 1) * stride)]
        for j in range(piece.size):
            plane[j] |= uint8(uint8(uint8(piece[j] >> low) & mask) << shift)
    return stride


@njit(**KERNEL)
def _unpack_plane(packed, low, width, codes):  # type: ignore[no-untyped-def]
    count, per_byte = codes.size, 8 // width
    stride = (count + per_byte - 1) // per_byte
    mask = uint8((1 << width) - 1)
    low = uint8(low & uint8(7))
    plane = packed[:stride]
    for turn in range(per_byte):
        shift = uint8(turn * width) & uint8(7)  # the mask tells LLVM that an 8-bit shift will do
        piece = codes[min(count, turn * stride) : min(count, (turn + 1) * stride)]
        for j in range(piece.size):
            piece[j] |= uint8(uint8(uint8(plane[j] >> shift) & mask) << low)
    return stride


@njit(**KERNEL)
def pack_group(codes, bits, out):  # type: ignore[no-untyped-def]
    """Pack one group of codes at the start of `out`; the number of bytes written."""
    written, low = 0, 0
    for power in range(4):
        width = 1 << power
        if bits & width:
            written += _pack_plane(codes, uint8(low), width, out[written:])
            low += width
    return written


@njit(**KERNEL)
def unpack_group(packed, bits, codes):  # type: ignore[no-untyped-def]
    """The inverse of `pack_group`; the number of bytes read."""
    for j in range(codes.size):
        codes[j] = uint8(0)
    read, low = 0, 0
    for power in range(4):
        width = 1 << power
        if bits & width:
            read += _unpack_plane(packed[read:], uint8(low), width, codes)
            low += width
    return read
