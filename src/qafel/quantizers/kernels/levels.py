"""QSGD's kernels: one step per bucket, an integer code per coordinate, value = step · level(code).

Four coordinates of a packing group, one from each quarter, share one hash, 16 bits each. With v = x/step in fixed
point with 16 fractional bits (15 at 8 bits) and u a uniform integer of as many, code = ⌊(v + u) / 2¹⁶⌋ rounds up with
probability frac(v): unbiased to 2⁻¹⁷ of a step.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, njit, uint8, uint32, uint64

from qafel.quantizers.kernels.numeric import (
    GROUP,
    INFINITY_BITS,
    INNER,
    KERNEL,
    WEYL,
    hash_pair,
    magnitude_bits,
    pack_group,
    round_keys,
    weyl,
)

MAX_ABS, L2 = 0, 1


_MAGIC = np.float32(2.0**23)  # adding it rounds to an integer, kept in the low 23 bits


_SHRINK = np.float32(1.0 - 2.0**-22)  # keeps the largest coordinate inside the top level whatever rounding did


_NORMAL = np.float32(2.0**-126)


_SUBNORMAL = np.float32(2.0**-149)


_LARGEST = np.float32(np.finfo(np.float32).max)


_TINY, _LIFT = np.float32(2.0**-80), np.float32(2.0**80)


_HUGE = np.float32(2.0**120)  # above, a step may have been clipped and a code may need clamping


@njit(**INNER)
def _norm(x, at, count):  # type: ignore[no-untyped-def]
    """‖x‖₂ of x[at : at + count], squares summed in float64, where nothing over- or underflows."""
    a, b, c, d = float64(0), float64(0), float64(0), float64(0)
    for j in range(0, count - 3, 4):
        i = at + uint64(j)
        a += float64(x[i]) * float64(x[i])
        b += float64(x[i + uint64(1)]) * float64(x[i + uint64(1)])
        c += float64(x[i + uint64(2)]) * float64(x[i + uint64(2)])
        d += float64(x[i + uint64(3)]) * float64(x[i + uint64(3)])
    for j in range(count - count % 4, count):
        a += float64(x[at + uint64(j)]) * float64(x[at + uint64(j)])
    return np.sqrt((a + b) + (c + d))


@njit(**INNER)
def _measure_buckets(x, bucket, levels, norm, steps, begin, end):  # type: ignore[no-untyped-def]
    """One step per bucket of x[begin:end]; False if a coordinate is NaN or infinite."""
    largest = float64(_LARGEST) * (1 - 2.0**-23) / np.ceil(levels)  # the top level must decode to a finite value
    patterns = x.view(np.int32)
    step_bits = steps.view(np.int32)
    for b in range(begin // bucket, (end + bucket - 1) // bucket):
        at, count = uint64(b * bucket), min(end - b * bucket, bucket)
        step_bits[b] = magnitude_bits(patterns, at, count)
        if step_bits[b] >= INFINITY_BITS:
            return False
        scale = float64(steps[b])
        if norm == L2:
            scale = max(_norm(x, at, count), scale)
        step = float32(min(scale / levels, largest))
        if scale > 0 and step < _NORMAL:
            step += _SUBNORMAL  # a subnormal quotient rounded down would push the largest value out of range
        steps[b] = step
    return True


@njit(**INNER)
def _fixed(x, scale, magic):  # type: ignore[no-untyped-def]
    """The bits of x·scale + magic with magic in [2²³, 2²⁴): 0x4B000000 plus the sum, rounded to an integer."""
    return np.float32(x * scale + magic).view(np.uint32)


@njit(**INNER)
def _round_run(x, at, count, step, one, magic, top, fraction, counter, keys, part, codes, to):  # type: ignore[no-untyped-def]
    """Codes for coordinates of one bucket and one quarter of a group, from 0 to `top`."""
    lift = _LIFT if step < _TINY else float32(1)  # keeps 1/step finite where the step is tiny
    scale = one / (step * lift) if step > 0 else float32(0)
    second = uint32(0xFFFFFFFF) if part & 1 else uint32(0)
    shift = uint32(8 * (part & 2)) & uint32(31)
    drop, point = uint32(16 - fraction) & uint32(31), int32(fraction) & int32(31)
    place = weyl(counter, keys)
    for j in range(count):
        g, h = hash_pair(place, keys)
        u = uint32(uint32(uint32(uint32(uint32(g & ~second) | uint32(h & second)) >> shift) & uint32(0xFFFF)) >> drop)
        v = uint32(_fixed(x[at + uint64(j)] * lift, scale, magic) - uint32(0x4B000000))
        code = int32(int32(uint32(v + u)) >> point)
        codes[to + uint64(j)] = uint8(min(max(code, int32(0)), top))
        place = uint32(place + WEYL)


@njit(**INNER)
def _round_group(x, bucket, steps, one, magic, top, fraction, start, count, keys, codes):  # type: ignore[no-untyped-def]
    """Codes of one group, quarter by quarter, whatever the bucket."""
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
            at, to = uint64(start + r), uint64(r)
            _round_run(x, at, stop - r, steps[b], one, magic, top, fraction, counter, keys, part, codes, to)
            r = stop


@njit(**INNER)
def _round_nibbles(x, at, scales, magic, counter, keys, out, to):  # type: ignore[no-untyped-def]
    """`_round_group` and packing in one, for 512 coordinates at 4 bits: the case that must be as fast as memory."""
    scale0, scale1, scale2, scale3 = scales
    place = weyl(counter, keys)
    for j in range(128):
        i, o = at + uint64(j), to + uint64(j)
        g, h = hash_pair(place, keys)
        v = uint32(_fixed(x[i], scale0, magic) + uint32(g & uint32(0xFFFF)))
        w = uint32(_fixed(x[i + uint64(256)], scale2, magic) + uint32(g >> uint32(16)))
        out[o] = uint8(uint32(uint32(v >> uint32(16)) | uint32(uint32(w >> uint32(12)) & uint32(0xF0))))
        v = uint32(_fixed(x[i + uint64(128)], scale1, magic) + uint32(h & uint32(0xFFFF)))
        w = uint32(_fixed(x[i + uint64(384)], scale3, magic) + uint32(h >> uint32(16)))
        out[o + uint64(128)] = uint8(uint32(uint32(v >> uint32(16)) | uint32(uint32(w >> uint32(12)) & uint32(0xF0))))
        place = uint32(place + WEYL)


@njit(**KERNEL)
def encode_spans(x, out, word0, word1, bucket, span, levels, bits, norm, gain, skip, first, last):  # type: ignore[no-untyped-def]
    """Quantize the spans first … last−1 into out[skip:]; False if a coordinate is NaN or infinite.

    `span` is a multiple of `bucket` and of GROUP, or the whole vector, so no two spans share a step or a byte.
    `levels` is how many steps the scale is: a whole number with codes centred on a level, or a half with codes
    centred between two. One bit and one level is stochastic sign: the two codes stand for −step and +step.
    """
    size = x.size
    head = skip + 4 * ((size + bucket - 1) // bucket)
    steps = out[skip:head].view(np.float32)
    keys = round_keys(word0, word1)
    codes = np.empty(GROUP, np.uint8)
    fraction = 15 if bits == 8 else 16  # so that the largest code still fits 23 bits
    level = float32(1 << fraction)
    sign_only = bits == 1 and levels == 1.0
    one = level * _SHRINK * (float32(0.5) if sign_only else float32(1))
    magic = _MAGIC + level * (float32(0.5) if sign_only else float32(levels))
    top = int32(1 if sign_only else int(2 * levels))
    fast = bits == 4 and bucket % 128 == 0
    for number in range(first, last):
        begin, end = number * span, min(size, (number + 1) * span)
        if not _measure_buckets(x, bucket, levels, norm, steps, begin, end):
            return False
        for start in range(begin, end, GROUP):
            count = min(end - start, GROUP)
            to = uint64(head + start // GROUP * (GROUP * bits // 8))
            if fast and count == GROUP:
                s0 = steps[start // bucket]
                s1, s2, s3 = s0, s0, s0
                if bucket % GROUP != 0:  # a division costs as much as a dozen coordinates
                    s1, s2 = steps[(start + 128) // bucket], steps[(start + 256) // bucket]
                    s3 = steps[(start + 384) // bucket]
                if min(s0, s1, s2, s3) >= _TINY and max(s0, s1, s2, s3) <= _HUGE:
                    scales = (one / s0, one / s1, one / s2, one / s3)
                    _round_nibbles(x, uint64(start), scales, magic, uint32(start), keys, out, to)
                    continue
            _round_group(x, bucket, steps, one, magic, top, fraction, start, count, keys, codes)
            pack_group(codes, count, bits, out, to)
        if gain != 1.0:
            for b in range(begin // bucket, (end + bucket - 1) // bucket):
                steps[b] *= float32(gain)
    return True


# Sign with a scale: the bucket's mean magnitude, and one bit a coordinate.


@njit(**INNER)
def _mean_magnitude(x, at, count):  # type: ignore[no-untyped-def]
    """‖x‖₁/n of x[at : at + count], in float64 with four fixed accumulators."""
    a, b, c, d = float64(0), float64(0), float64(0), float64(0)
    for j in range(0, count - 3, 4):
        i = at + uint64(j)
        a += abs(float64(x[i]))
        b += abs(float64(x[i + uint64(1)]))
        c += abs(float64(x[i + uint64(2)]))
        d += abs(float64(x[i + uint64(3)]))
    for j in range(count - count % 4, count):
        a += abs(float64(x[at + uint64(j)]))
    return ((a + b) + (c + d)) / count


@njit(**KERNEL)
def encode_signs(x, out, word0, word1, bucket, span, levels, bits, norm, gain, skip, first, last):  # type: ignore[no-untyped-def]
    """As `levels.encode_spans`, with nothing random: code 1 where x ≥ 0."""
    size = x.size
    head = skip + 4 * ((size + bucket - 1) // bucket)
    steps = out[skip:head].view(np.float32)
    patterns = x.view(np.int32)
    codes = np.empty(GROUP, np.uint8)
    for number in range(first, last):
        begin, end = number * span, min(size, (number + 1) * span)
        for b in range(begin // bucket, (end + bucket - 1) // bucket):
            at, count = uint64(b * bucket), min(end - b * bucket, bucket)
            if magnitude_bits(patterns, at, count) >= INFINITY_BITS:
                return False
            steps[b] = float32(_mean_magnitude(x, at, count) * gain)
        for start in range(begin, end, GROUP):
            count = min(end - start, GROUP)
            for j in range(count):
                codes[uint64(j)] = uint8(x[uint64(start) + uint64(j)] >= float32(0))
            pack_group(codes, count, 1, out, uint64(head + start // GROUP * (GROUP // 8)))
    return True
