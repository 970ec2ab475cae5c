"""Decoding of subtractive dither: the receiver repeats the sender's random numbers and takes them off again."""

from __future__ import annotations

import numpy as np
from numba import float32, int32, njit, uint32, uint64

from qafel.quantizers.kernels.decode import BAD_STEP, OK, apply_values, read_steps, steps_are_sound
from qafel.quantizers.kernels.numeric import INNER, KERNEL, WEYL, hash_pair, round_keys, weyl
from qafel.quantizers.kernels.packing import GROUP, unpack_group


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
