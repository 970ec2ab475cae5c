"""Common functions of the kernels: a keyed counter hash, a maximum over absolute values, packing, adding.

The package's docstring describes random numbers and packing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import float32, int32, njit, uint8, uint16, uint32, uint64

from qafel.compiled import INNER, KERNEL, forget_stale_kernels
from qafel.quantizers.kernels import ASSIGN, INFINITY_BITS, LARGEST, MAGNITUDE_BITS, WEYL

_ROUND_1 = np.uint32(0x7FEB352D)
_ROUND_2 = np.uint32(0x846CA68B)
_ROUND_3 = np.uint32(0x31848BAB)


forget_stale_kernels(Path(__file__).parent)


@njit(**INNER)
def mix64(word):  # type: ignore[no-untyped-def]
    """Mix 64 bits (the finaliser of SplitMix64)."""
    z = uint64(word + uint64(0x9E3779B97F4A7C15))
    z = uint64((z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9))
    z = uint64((z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB))
    return uint64(z ^ (z >> uint64(31)))


@njit(**INNER)
def round_keys(word0, word1):  # type: ignore[no-untyped-def]
    """Four 32-bit keys, one per stage of the hash, from all 128 bits of the stream's key."""
    first = mix64(uint64(word0) ^ mix64(uint64(word1)))
    second = mix64(uint64(word1) ^ first)
    return uint32(first), uint32(first >> uint64(32)), uint32(second), uint32(second >> uint64(32))


@njit(**INNER)
def weyl(counter, keys):  # type: ignore[no-untyped-def]
    """The input of the hash for a counter. The next counter's input is WEYL larger."""
    return uint32(uint32(uint32(counter) * WEYL) + keys[0])


@njit(**INNER)
def hash_pair(place, keys):  # type: ignore[no-untyped-def]
    """Two words of 32 random bits for a counter: two keyed rounds of xor-shift and multiply.

    One round alone repeats whole blocks for related seeds. The words share the first round, and have different second
    rounds. One call gives four uniform 16-bit numbers, one per coordinate.
    """
    h = uint32(place ^ uint32(place >> uint32(16)))
    h = uint32(uint32(h * _ROUND_1) + keys[1])
    h = uint32(h ^ uint32(h >> uint32(15)))
    first = uint32(uint32(h * _ROUND_2) + keys[2])
    second = uint32(uint32(h * _ROUND_3) + keys[3])
    return uint32(first ^ uint32(first >> uint32(16))), uint32(second ^ uint32(second >> uint32(16)))


@njit(**INNER)
def magnitude_bits(bits, at, count):  # type: ignore[no-untyped-def]
    """The largest |xᵢ| of x[at : at + count] as a bit pattern, from the int32 view of x.

    Non-negative floats have the order of their bit patterns, and integer maxima vectorise. NaN and infinity give
    INFINITY_BITS or more, so one comparison detects both.
    """
    largest = int32(0)
    for j in range(count):
        magnitude = int32(bits[at + uint64(j)] & MAGNITUDE_BITS)
        largest = magnitude if magnitude > largest else largest  # max() does not vectorise here
    return largest


@njit(**KERNEL)
def is_finite(x):  # type: ignore[no-untyped-def]
    """Whether no coordinate is NaN or infinite."""
    return magnitude_bits(x.view(np.int32), uint64(0), x.size) < INFINITY_BITS


@njit(**INNER)
def _moved(byte, down, mask, up):  # type: ignore[no-untyped-def]
    """Some bits of a byte, shifted down and up by multiplications, which vectorise better than shifts."""
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
    """Pack the first `count` codes, one group, into out[at:]. Returns the number of bytes written."""
    written, low = 0, 0
    for power in range(4):
        width = 1 << power
        if bits & width:
            written += _pack_plane(codes, count, low, width, out, at + uint64(written))
            low += width
    return written


@njit(**INNER)
def unpack_group(packed, at, bits, codes, count):  # type: ignore[no-untyped-def]
    """The inverse of `pack_group`. Returns the number of bytes read."""
    read, low = 0, 0
    for power in range(4):
        width = 1 << power
        if bits & width:
            read += _unpack_plane(packed, at + uint64(read), low, width, codes, count)
            low += width
    return read


@njit(**INNER)
def read_steps(payload, at, steps):  # type: ignore[no-untyped-def]
    """Little-endian float32 from bytes at any alignment."""
    words = steps.view(np.uint32)
    for b in range(steps.size):
        i = at + 4 * b
        word = uint32(payload[i]) | uint32(uint32(payload[i + 1]) << uint32(8))
        word |= uint32(uint32(payload[i + 2]) << uint32(16)) | uint32(uint32(payload[i + 3]) << uint32(24))
        words[b] = uint32(word)


@njit(**INNER)
def apply_values(target, at, values, count, mode, weight):  # type: ignore[no-untyped-def]
    """Assign or add values[:count], clipped to the finite range, to target[at:]."""
    for j in range(count):
        value = values[uint64(j)]
        value = value if value < LARGEST else LARGEST
        values[uint64(j)] = value if value > -LARGEST else -LARGEST
    if mode == ASSIGN:
        for j in range(count):
            target[at + uint64(j)] = values[uint64(j)]
    else:
        for j in range(count):
            target[at + uint64(j)] += weight * values[uint64(j)]


@njit(**INNER)
def steps_are_sound(steps, reach):  # type: ignore[no-untyped-def]
    """Whether every step is non-negative and step · reach finite. False for NaN."""
    sound = True
    for b in range(steps.size):
        sound &= (steps[b] >= float32(0)) & (steps[b] * reach < float32(np.inf))
    return sound
