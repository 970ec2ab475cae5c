"""Codes of 1 to 8 bits to bytes and back, planar.

A group of up to 512 codes is packed plane by plane: a b-bit code is cut into pieces of 8, 4, 2 and 1 bits (b's binary
digits), and each piece goes to its own plane. In a plane of w-bit pieces, byte j holds the codes j, j + m, j + 2m, …
with m the plane's length in bytes. Neighbouring bytes come from neighbouring codes, so both directions vectorise.

Indices are unsigned (`at + uint64(j)`): Numba need not look for negative ones, which would stop vectorisation, and
slices, which count references atomically, are not needed.
"""

from __future__ import annotations

from numba import njit, uint8, uint16, uint64

from qafel.quantizers.kernels.numeric import INNER

GROUP = 512


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of `size` packed codes."""
    full, rest = divmod(size, GROUP)
    return full * (GROUP * bits // 8) + sum(-(-rest * width // 8) for width in (8, 4, 2, 1) if bits & width)


@njit(**INNER)
def _moved(byte, down, mask, up):  # type: ignore[no-untyped-def]
    """Some bits of a byte, shifted down and up again by multiplications, which vectorise where shifts do not."""
    return uint8(uint16(uint16(uint16(uint16(byte) * down) >> uint16(8)) & mask) * up)


@njit(**INNER)
def _pack_plane(codes, count, low, width, out, at):  # type: ignore[no-untyped-def]
    per_byte = 8 // width
    stride = (count + per_byte - 1) // per_byte
    down, mask = uint16(256 >> low), uint16((1 << width) - 1)
    for j in range(stride):
        out[at + uint64(j)] = _moved(codes[uint64(j)], down, mask, uint16(1))
    for turn in range(1, per_byte):
        base, up = uint64(turn * stride), uint16(1 << (turn * width))
        for j in range(max(0, min(stride, count - turn * stride))):
            out[at + uint64(j)] |= _moved(codes[base + uint64(j)], down, mask, up)
    return stride


@njit(**INNER)
def _unpack_plane(packed, at, low, width, codes, count):  # type: ignore[no-untyped-def]
    per_byte = 8 // width
    stride = (count + per_byte - 1) // per_byte
    mask, up = uint16((1 << width) - 1), uint16(1 << low)
    for turn in range(per_byte):
        base, down = uint64(turn * stride), uint16(256 >> (turn * width))
        length = max(0, min(stride, count - turn * stride))
        if low == 0:
            for j in range(length):
                codes[base + uint64(j)] = _moved(packed[at + uint64(j)], down, mask, up)
        else:
            for j in range(length):
                codes[base + uint64(j)] |= _moved(packed[at + uint64(j)], down, mask, up)
    return stride


@njit(**INNER)
def pack_group(codes, count, bits, out, at):  # type: ignore[no-untyped-def]
    """Pack the first `count` codes, one group, into out[at:]; the number of bytes written."""
    written, low = 0, 0
    for power in range(4):
        width = 1 << power
        if bits & width:
            written += _pack_plane(codes, count, low, width, out, at + uint64(written))
            low += width
    return written


@njit(**INNER)
def unpack_group(packed, at, bits, codes, count):  # type: ignore[no-untyped-def]
    """The inverse of `pack_group`; the number of bytes read."""
    read, low = 0, 0
    for power in range(4):
        width = 1 << power
        if bits & width:
            read += _unpack_plane(packed, at + uint64(read), low, width, codes, count)
            low += width
    return read
