"""Decoding of levels: value = step · level, plain IEEE arithmetic in a fixed order, equal on every machine.

The payload is checked whole before the target is touched, so an error leaves it as it was.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int8, int32, njit, uint8, uint32, uint64

from qafel.quantizers.kernels.numeric import (
    GROUP,
    INNER,
    KERNEL,
    WEYL,
    hash_pair,
    pack_group,
    round_keys,
    unpack_group,
    weyl,
)

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


# Decoding of subtractive dither: the receiver repeats the sender's random numbers and takes them off again.


@njit(**INNER)
def _level(code, u, one, middle, wide, unit):  # type: ignore[no-untyped-def]
    """What a code stands for in steps, once the dither u is taken off.

    code·2ᶠ + (2ᶠ−1)/2 − u is the sender's fixed-point number in the mean; twice that is an integer below 2²⁴, so the
    one rounding in decoding is that of the product with the step.
    """
    u = int32(u & uint32(0xFFFF))
    twice_u = int32(u + u) if wide else int32(u & int32(0xFFFE))  # twice the top 16 or 15 bits
    return float32(int32(int32(int32(code) * one) + int32(middle - twice_u))) * unit


@njit(**INNER)
def _undither(codes, begin, end, step, twice_centre, fraction, counter, keys, part, values):  # type: ignore[no-untyped-def]
    """Values of codes[begin:end], which lie in one bucket and one quarter of a group."""
    second = uint32(0xFFFFFFFF) if part & 1 else uint32(0)
    shift = uint32(8 * (part & 2)) & uint32(31)
    one, wide, unit = int32(2 << fraction), fraction == 16, float32(1.0 / (2 << fraction))
    middle = int32((1 << fraction) - 1 - twice_centre)
    place = weyl(counter, keys)
    for j in range(end - begin):
        i = uint64(begin) + uint64(j)
        g, h = hash_pair(place, keys)
        u = uint32(uint32(uint32(g & ~second) | uint32(h & second)) >> shift)
        values[i] = step * _level(codes[i], u, one, middle, wide, unit)
        place = uint32(place + WEYL)


@njit(**INNER)
def _undither_group(codes, steps, twice_centre, fraction, counter, keys, values):  # type: ignore[no-untyped-def]
    """`_undither` for a full group whose quarters each lie in one bucket: four values from one hash."""
    one, wide, unit = int32(2 << fraction), fraction == 16, float32(1.0 / (2 << fraction))
    middle = int32((1 << fraction) - 1 - twice_centre)
    step0, step1, step2, step3 = steps
    place = weyl(counter, keys)
    for j in range(128):
        i = uint64(j)
        g, h = hash_pair(place, keys)
        values[i] = step0 * _level(codes[i], g, one, middle, wide, unit)
        values[i + uint64(128)] = step1 * _level(codes[i + uint64(128)], h, one, middle, wide, unit)
        g, h = uint32(g >> uint32(16)), uint32(h >> uint32(16))
        values[i + uint64(256)] = step2 * _level(codes[i + uint64(256)], g, one, middle, wide, unit)
        values[i + uint64(384)] = step3 * _level(codes[i + uint64(384)], h, one, middle, wide, unit)
        place = uint32(place + WEYL)


@njit(**INNER)
def _undither_parts(codes, bucket, steps, twice_centre, fraction, start, count, keys, values):  # type: ignore[no-untyped-def]
    """`_undither` quarter by quarter and bucket by bucket, whatever the bucket."""
    half = (count + 1) // 2
    quarter = (half + 1) // 2
    for part in range(4):
        begin = (part & 1) * quarter + (part >> 1) * half
        end = min(count, begin + (half - quarter if part & 1 else quarter))
        r = begin
        while r < end:
            b = (start + r) // bucket
            stop = min(end, (b + 1) * bucket - start)
            counter = uint32(start + r - begin)
            _undither(codes, r, stop, steps[b], twice_centre, fraction, counter, keys, part, values)
            r = stop


@njit(**KERNEL)
def apply_dithered(target, payload, mode, factor, word0, bucket, span, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if asked, then assign or add the spans first … last−1 of it to the target."""
    size, weight = target.size, float32(factor)
    steps = np.empty((size + bucket - 1) // bucket, np.float32)
    read_steps(payload, 8, steps)
    if check and not steps_are_sound(steps, float32(1)):
        return BAD_STEP
    head = 8 + 4 * steps.size
    keys = round_keys(word0, 0)
    fraction = 15 if bits == 8 else 16
    twice_centre = ((1 << bits) - 1) << fraction
    codes, values = np.empty(GROUP, np.uint8), np.empty(GROUP, np.float32)
    for start in range(first * span, min(size, last * span), GROUP):
        count = min(size - start, GROUP)
        unpack_group(payload, uint64(head + start // GROUP * (GROUP * bits // 8)), bits, codes, count)
        if count == GROUP and bucket % 128 == 0:
            low = (steps[start // bucket], steps[(start + 128) // bucket])
            high = (steps[(start + 256) // bucket], steps[(start + 384) // bucket])
            _undither_group(codes, low + high, twice_centre, fraction, uint32(start), keys, values)
        else:
            _undither_parts(codes, bucket, steps, twice_centre, fraction, start, count, keys, values)
        apply_values(target, uint64(start), values, count, mode, weight)
    return OK


# Min-max affine quantization of one tensor: value = minimum + step · code, in float64, rounded once.


@njit(**KERNEL)
def encode_tensor(x, start, count, bits, out, at, head):  # type: ignore[no-untyped-def]
    """Pack the codes of x[start : start + count] into out[at:]; head becomes minimum and step: zeros, if count is."""
    if count == 0:
        head[0] = head[1] = 0.0
        return
    low, high = x[start], x[start]
    for j in range(count):
        value = x[uint64(start) + uint64(j)]
        low = value if value < low else low
        high = value if value > high else high
    top = (1 << bits) - 1
    head[0] = low
    head[1] = float32(min((float64(high) - float64(low)) / top, float64(_LARGEST)))
    inverse = 1.0 / float64(head[1]) if head[1] > 0 else 0.0
    codes = np.empty(GROUP, np.uint8)
    for begin in range(0, count, GROUP):
        length = min(GROUP, count - begin)
        base = uint64(start + begin)
        for j in range(length):
            code = (float64(x[base + uint64(j)]) - float64(low)) * inverse + 0.5
            codes[uint64(j)] = uint8(min(code, float64(top)))
        at += pack_group(codes, length, bits, out, uint64(at))


@njit(**KERNEL)
def apply_tensor(target, start, count, payload, at, bits, low, step, mode, factor):  # type: ignore[no-untyped-def]
    """Assign or add the tensor packed in payload[at:] to target[start : start + count]."""
    codes, values = np.empty(GROUP, np.uint8), np.empty(GROUP, np.float32)
    for begin in range(0, count, GROUP):
        length = min(GROUP, count - begin)
        at += unpack_group(payload, uint64(at), bits, codes, length)
        for j in range(length):
            values[uint64(j)] = float32(float64(low) + float64(step) * float64(codes[uint64(j)]))
        apply_values(target, uint64(start + begin), values, length, mode, float32(factor))
