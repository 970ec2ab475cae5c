"""Decoding of levels: value = step · level, plain IEEE arithmetic in a fixed order, equal on every machine.

The payload is checked whole before the target is touched, so an error leaves it as it was.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int8, njit, uint8, uint32, uint64

from qafel.quantizers.kernels.numeric import INNER, KERNEL
from qafel.quantizers.kernels.packing import GROUP, unpack_group

ASSIGN, ADD = 0, 1
OK, BAD_STEP, BAD_CODE = 0, 1, 2

_LARGEST = np.float32(np.finfo(np.float32).max)


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
    """Assign or add values[:count], cut to the finite range, to target[at:]."""
    for j in range(count):
        value = values[uint64(j)]
        value = value if value < _LARGEST else _LARGEST
        values[uint64(j)] = value if value > -_LARGEST else -_LARGEST
    if mode == ASSIGN:
        for j in range(count):
            target[at + uint64(j)] = values[uint64(j)]
    else:
        for j in range(count):
            target[at + uint64(j)] += weight * values[uint64(j)]


@njit(**INNER)
def steps_are_sound(steps, reach):  # type: ignore[no-untyped-def]
    """Every step is non-negative and step · reach finite; false for NaN."""
    sound = True
    for b in range(steps.size):
        sound &= (steps[b] >= float32(0)) & (steps[b] * reach < float32(np.inf))
    return sound


@njit(**INNER)
def _no_nibble_is_15(packed, head):  # type: ignore[no-untyped-def]
    high, low = uint8(0), uint8(0)
    for j in range(packed.size - head):
        a = packed[uint64(head) + uint64(j)]
        b = uint8(a << uint8(4))
        high = a if a > high else high
        low = b if b > low else low
    return high < uint8(240) and low < uint8(240)


@njit(**INNER)
def codes_are_sound(packed, head, size, bits, top):  # type: ignore[no-untyped-def]
    """Every code in packed[head:] is at most `top`."""
    if top == (1 << bits) - 1:
        return True
    if bits == 4 and top == 14:
        return _no_nibble_is_15(packed, head)
    codes = np.empty(GROUP, np.uint8)
    for start in range(0, size, GROUP):
        count = min(GROUP, size - start)
        unpack_group(packed, uint64(head + start // GROUP * (GROUP * bits // 8)), bits, codes, count)
        largest = uint8(0)
        for j in range(count):
            code = codes[uint64(j)]
            largest = code if code > largest else largest
        if largest > top:
            return False
    return True


@njit(**INNER)
def _unpack_nibbles(packed, at, centre, levels, count):  # type: ignore[no-untyped-def]
    """Signed levels of one group at 4 bits: code − centre."""
    half = (count + 1) // 2
    for j in range(half):
        levels[uint64(j)] = int8(uint8(uint8(packed[at + uint64(j)] & uint8(15)) - centre))
    for j in range(count - half):
        levels[uint64(half + j)] = int8(uint8(uint8(packed[at + uint64(j)] >> uint8(4)) - centre))


@njit(**INNER)
def _unpack_levels(packed, at, bits, centre, codes, levels, count):  # type: ignore[no-untyped-def]
    """Signed levels of one group: code − centre, or ±1 when there is one bit."""
    unpack_group(packed, at, bits, codes, count)
    factor = uint8(2 if bits == 1 else 1)
    for j in range(count):
        levels[uint64(j)] = int8(uint8(uint8(codes[uint64(j)] * factor) - centre))


@njit(**INNER)
def _assign(target, at, count, levels, of, step):  # type: ignore[no-untyped-def]
    for j in range(count):
        target[at + uint64(j)] = step * float32(levels[of + uint64(j)])


@njit(**INNER)
def _add(target, at, count, levels, of, step):  # type: ignore[no-untyped-def]
    for j in range(count):
        target[at + uint64(j)] += step * float32(levels[of + uint64(j)])


@njit(**INNER)
def _add_weighted(target, at, count, levels, of, step, weight):  # type: ignore[no-untyped-def]
    for j in range(count):
        target[at + uint64(j)] += weight * (step * float32(levels[of + uint64(j)]))


@njit(**INNER)
def _add_nibbles(packed, at, centre, low, high, target, to, step):  # type: ignore[no-untyped-def]
    """`_unpack_nibbles` and `_add` in one, for 512 coordinates of one bucket: the case that must be as fast as memory.

    The loops have a length that the compiler knows, and each runs along one array.
    """
    for j in range(256):
        low[uint64(j)] = int8(uint8(uint8(packed[at + uint64(j)] & uint8(15)) - centre))
    for j in range(256):
        high[uint64(j)] = int8(uint8(uint8(packed[at + uint64(j)] >> uint8(4)) - centre))
    for j in range(256):
        target[to + uint64(j)] += step * float32(low[uint64(j)])
    for j in range(256):
        target[to + uint64(256) + uint64(j)] += step * float32(high[uint64(j)])


@njit(**KERNEL)
def apply_levels(target, payload, mode, factor, bucket, span, levels, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if asked, then assign or add the spans first … last−1 of it to the target."""
    size, weight = target.size, float32(factor)
    steps = np.empty((size + bucket - 1) // bucket, np.float32)
    read_steps(payload, 0, steps)
    head = 4 * steps.size
    if check:
        if not steps_are_sound(steps, float32(levels)):
            return BAD_STEP
        if not codes_are_sound(payload, head, size, bits, 1 if bits == 1 else 2 * levels):
            return BAD_CODE
    codes, signed = np.empty(GROUP, np.uint8), np.empty(GROUP, np.int8)
    low, high = np.empty(256, np.int8), np.empty(256, np.int8)
    fast = bits == 4 and bucket % GROUP == 0 and mode == ADD and weight == float32(1)
    b = first * span // bucket
    edge = (b + 1) * bucket
    for start in range(first * span, min(size, last * span), GROUP):
        count = min(size - start, GROUP)
        packed_at = uint64(head + start // GROUP * (GROUP * bits // 8))
        if fast and count == GROUP:
            _add_nibbles(payload, packed_at, uint8(levels), low, high, target, uint64(start), steps[b])
            if start + GROUP == edge:
                b, edge = b + 1, edge + bucket
            continue
        if bits == 4:
            _unpack_nibbles(payload, packed_at, uint8(levels), signed, count)
        else:
            _unpack_levels(payload, packed_at, bits, uint8(levels), codes, signed, count)
        r = 0
        while r < count:
            stop = min(count, edge - start)
            at, of = uint64(start + r), uint64(r)
            if mode == ASSIGN:
                _assign(target, at, stop - r, signed, of, steps[b])
            elif weight == float32(1):
                _add(target, at, stop - r, signed, of, steps[b])
            else:
                _add_weighted(target, at, stop - r, signed, of, steps[b], weight)
            r = stop
            if start + stop == edge:
                b, edge = b + 1, edge + bucket
    return OK
