"""Kernels of QSGD, sign, dithered and affine: a step per bucket or tensor, and an integer code per coordinate.

Encoding. Four coordinates of a packing group, one from each quarter, share one hash, 16 bits each. Let v = x/step in
fixed point with 16 fractional bits (15 at 8 bits), and u a uniform integer of as many bits. Then code = ⌊(v + u) / 2¹⁶⌋
rounds up with probability frac(v): unbiased to 2⁻¹⁷ of a step.

Decoding. value = step · level, in IEEE arithmetic and a fixed order, equal on every machine. The whole payload is
checked first, so an error leaves the target unchanged.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int8, int32, njit, uint8, uint32, uint64

from qafel.compiled import INNER, KERNEL
from qafel.quantizers.kernels import ASSIGN, BAD_CODE, BAD_STEP, GROUP, INFINITY_BITS, L2, LARGEST, MEAN, OK, WEYL
from qafel.quantizers.kernels.shared import (
    apply_values,
    hash_pair,
    magnitude_bits,
    pack_group,
    read_steps,
    round_keys,
    steps_are_sound,
    unpack_group,
    weyl,
)

_MAGIC = np.float32(2.0**23)  # adding it rounds to an integer, kept in the low 23 bits
_SHRINK = np.float32(1.0 - 2.0**-22)  # keeps the largest coordinate inside the top level after rounding
_NORMAL = np.float32(2.0**-126)
_SUBNORMAL = np.float32(2.0**-149)
_TINY, _LIFT = np.float32(2.0**-80), np.float32(2.0**80)
_HUGE = np.float32(2.0**120)  # larger steps may be clipped, and their codes need clamping


@njit(**INNER)
def _term(value, square):  # type: ignore[no-untyped-def]
    wide = float64(value)
    return wide * wide if square else abs(wide)


@njit(**INNER)
def _sum(x, at, count, square):  # type: ignore[no-untyped-def]
    """Σ|xᵢ|, or Σxᵢ², of x[at : at + count], in four fixed parts. In float64 it cannot over- or underflow."""
    a, b, c, d = float64(0), float64(0), float64(0), float64(0)
    for j in range(0, count - 3, 4):
        i = at + uint64(j)
        a += _term(x[i], square)
        b += _term(x[i + uint64(1)], square)
        c += _term(x[i + uint64(2)], square)
        d += _term(x[i + uint64(3)], square)
    for j in range(count - count % 4, count):
        a += _term(x[at + uint64(j)], square)
    return (a + b) + (c + d)


@njit(**INNER)
def _measure_buckets(x, bucket, levels, norm, steps, begin, end):  # type: ignore[no-untyped-def]
    """Compute one step per bucket of x[begin:end]. Returns False for NaN or infinity."""
    largest = float64(LARGEST) * (1 - 2.0**-23) / np.ceil(levels)  # the top level must decode to a finite value
    patterns = x.view(np.int32)
    step_bits = steps.view(np.int32)
    for b in range(begin // bucket, (end + bucket - 1) // bucket):
        at, count = uint64(b * bucket), min(end - b * bucket, bucket)
        step_bits[b] = magnitude_bits(patterns, at, count)
        if step_bits[b] >= INFINITY_BITS:
            return False
        if norm == MEAN:
            steps[b] = float32(_sum(x, at, count, False) / count)
            continue
        scale = float64(steps[b])
        if norm == L2:
            scale = max(np.sqrt(_sum(x, at, count, True)), scale)
        step = float32(min(scale / levels, largest))
        if scale > 0 and step < _NORMAL:
            step += _SUBNORMAL  # a subnormal quotient that rounds down would move the largest value out of range
        steps[b] = step
    return True


@njit(**INNER)
def _fixed(x, scale, magic):  # type: ignore[no-untyped-def]
    """The bits of x·scale + magic with magic in [2²³, 2²⁴): 0x4B000000 plus the sum, rounded to an integer."""
    return np.float32(x * scale + magic).view(np.uint32)


@njit(**INNER)
def _draw(start, count, keys, u):  # type: ignore[no-untyped-def]
    """The 16 random bits of each coordinate of a group. One coordinate of each quarter shares a hash."""
    place = weyl(uint32(start), keys)
    if count == GROUP:  # the compiler knows all distances
        for j in range(128):
            g, h = hash_pair(place, keys)
            u[uint64(j)], u[uint64(j) + uint64(128)] = g, h
            u[uint64(j) + uint64(256)], u[uint64(j) + uint64(384)] = g >> uint32(16), h >> uint32(16)
            place = uint32(place + WEYL)
        return
    half = (count + 1) // 2
    quarter = (half + 1) // 2
    for j in range(quarter):
        g, h = hash_pair(place, keys)
        u[j], u[half + j] = g, g >> uint32(16)
        if quarter + j < half:
            u[quarter + j], u[half + quarter + j] = h, h >> uint32(16)
        place = uint32(place + WEYL)


@njit(**INNER)
def _run(start, r, count, bucket):  # type: ignore[no-untyped-def]
    """The bucket of coordinate `start` + r, and the end of its run in the group."""
    b = (start + r) // bucket
    return b, min(count, (b + 1) * bucket - start)


@njit(**INNER)
def _round_group(x, bucket, steps, one, magic, top, fraction, start, count, u, codes):  # type: ignore[no-untyped-def]
    """Codes of one group, from 0 to `top`, bucket by bucket."""
    drop, point = uint32(16 - fraction) & uint32(31), int32(fraction) & int32(31)
    r = 0
    while r < count:
        b, stop = _run(start, r, count, bucket)
        step = steps[b]
        lift = _LIFT if step < _TINY else float32(1)  # keeps 1/step finite where the step is tiny
        scale = one / (step * lift) if step > 0 else float32(0)
        for j in range(stop - r):
            i = uint64(r) + uint64(j)
            v = uint32(_fixed(x[uint64(start) + i] * lift, scale, magic) - uint32(0x4B000000))
            code = int32(int32(uint32(v + uint32(uint32(u[i]) >> drop))) >> point)
            codes[i] = uint8(min(max(code, int32(0)), top))
        r = stop


@njit(**INNER)
def _round_nibbles(x, at, scales, magic, counter, keys, out, to):  # type: ignore[no-untyped-def]
    """`_round_group` and packing in one pass, for 512 coordinates at 4 bits: as fast as memory."""
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
    """Quantize the spans first … last−1 into out[skip:]. Returns False for NaN or infinity.

    `span` is a multiple of `bucket` and of GROUP, or the whole vector, so no two spans share a step or a byte.
    `levels` is the number of steps in the scale. If it is a whole number, codes are centred on a level. If it is a
    half, codes are centred between two levels. One bit and one level is stochastic sign: −step or +step. With the norm
    MEAN the step is a bucket's mean magnitude, and the code says whether x ≥ 0.
    """
    size = x.size
    head = skip + 4 * ((size + bucket - 1) // bucket)
    steps = out[skip:head].view(np.float32)
    keys = round_keys(word0, word1)
    codes, u = np.empty(GROUP, np.uint8), np.empty(GROUP + 1, np.uint16)
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
            if norm == MEAN:
                for j in range(count):
                    codes[uint64(j)] = uint8(x[uint64(start) + uint64(j)] >= float32(0))
            else:
                _draw(start, count, keys, u)
                _round_group(x, bucket, steps, one, magic, top, fraction, start, count, u, codes)
            pack_group(codes, count, bits, out, to)
        if gain != 1.0:
            for b in range(begin // bucket, (end + bucket - 1) // bucket):
                steps[b] *= float32(gain)
    return True


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
    """Signed levels of one group: code − centre, or ±1 with one bit."""
    unpack_group(packed, at, bits, codes, count)
    factor = uint8(2 if bits == 1 else 1)
    for j in range(count):
        levels[uint64(j)] = int8(uint8(uint8(codes[uint64(j)] * factor) - centre))


@njit(**INNER)
def _assign(target, at, count, levels, of, step):  # type: ignore[no-untyped-def]
    for j in range(count):
        target[at + uint64(j)] = step * float32(levels[of + uint64(j)])


@njit(**INNER)
def _add(target, at, count, levels, of, step, weight):  # type: ignore[no-untyped-def]
    for j in range(count):
        target[at + uint64(j)] += weight * (step * float32(levels[of + uint64(j)]))


@njit(**KERNEL)
def apply_levels(target, payload, mode, factor, bucket, span, levels, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if `check` is set, then assign or add its spans first … last−1 to the target."""
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
    b = first * span // bucket
    edge = (b + 1) * bucket
    for start in range(first * span, min(size, last * span), GROUP):
        count = min(size - start, GROUP)
        packed_at = uint64(head + start // GROUP * (GROUP * bits // 8))
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
            else:
                _add(target, at, stop - r, signed, of, steps[b], weight)
            r = stop
            if start + stop == edge:
                b, edge = b + 1, edge + bucket
    return OK


@njit(**INNER)
def _level(code, u, one, middle, wide, unit):  # type: ignore[no-untyped-def]
    """The value of a code in steps, without the sender's dither u. The receiver draws u again.

    The sender's fixed-point number is code·2ᶠ + (2ᶠ−1)/2 − u in the mean. Twice that is an integer below 2²⁴, so
    decoding rounds once: in the product with the step.
    """
    u = int32(u)
    twice_u = int32(u + u) if wide else int32(u & int32(0xFFFE))  # twice the top 16 or 15 bits
    return float32(int32(int32(int32(code) * one) + int32(middle - twice_u))) * unit


@njit(**INNER)
def _undither(codes, u, bucket, steps, twice_centre, fraction, start, count, values):  # type: ignore[no-untyped-def]
    """Values of one group, bucket by bucket."""
    one, wide, unit = int32(2 << fraction), fraction == 16, float32(1.0 / (2 << fraction))
    middle = int32((1 << fraction) - 1 - twice_centre)
    r = 0
    while r < count:
        b, stop = _run(start, r, count, bucket)
        step = steps[b]
        for j in range(stop - r):
            i = uint64(r) + uint64(j)
            values[i] = step * _level(codes[i], u[i], one, middle, wide, unit)
        r = stop


@njit(**INNER)
def _undither_group(codes, steps, twice_centre, fraction, counter, keys, values):  # type: ignore[no-untyped-def]
    """`_draw` and `_undither` in one pass, for a full group with each quarter in one bucket."""
    one, wide, unit = int32(2 << fraction), fraction == 16, float32(1.0 / (2 << fraction))
    middle = int32((1 << fraction) - 1 - twice_centre)
    step0, step1, step2, step3 = steps
    place, low = weyl(counter, keys), uint32(0xFFFF)
    for j in range(128):
        i = uint64(j)
        g, h = hash_pair(place, keys)
        values[i] = step0 * _level(codes[i], g & low, one, middle, wide, unit)
        values[i + uint64(128)] = step1 * _level(codes[i + uint64(128)], h & low, one, middle, wide, unit)
        g, h = uint32(g >> uint32(16)), uint32(h >> uint32(16))
        values[i + uint64(256)] = step2 * _level(codes[i + uint64(256)], g, one, middle, wide, unit)
        values[i + uint64(384)] = step3 * _level(codes[i + uint64(384)], h, one, middle, wide, unit)
        place = uint32(place + WEYL)


@njit(**KERNEL)
def apply_dithered(target, payload, mode, factor, bucket, span, word0, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if `check` is set, then assign or add its spans first … last−1 to the target."""
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
    u = np.empty(GROUP + 1, np.uint16)
    for start in range(first * span, min(size, last * span), GROUP):
        count = min(size - start, GROUP)
        unpack_group(payload, uint64(head + start // GROUP * (GROUP * bits // 8)), bits, codes, count)
        if count == GROUP and bucket % 128 == 0:
            first_two = (steps[start // bucket], steps[(start + 128) // bucket])
            last_two = (steps[(start + 256) // bucket], steps[(start + 384) // bucket])
            _undither_group(codes, first_two + last_two, twice_centre, fraction, uint32(start), keys, values)
        else:
            _draw(start, count, keys, u)
            _undither(codes, u, bucket, steps, twice_centre, fraction, start, count, values)
        apply_values(target, uint64(start), values, count, mode, weight)
    return OK


@njit(**KERNEL)
def encode_tensor(x, start, count, bits, out, at, head):  # type: ignore[no-untyped-def]
    """Pack the min-max codes of x[start : start + count] into out[at:], and minimum and step into head."""
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
    head[1] = float32(min((float64(high) - float64(low)) / top, float64(LARGEST)))
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
    """Assign or add minimum + step · code of a tensor to target[start : start + count], in float64, rounded once."""
    codes, values = np.empty(GROUP, np.uint8), np.empty(GROUP, np.float32)
    for begin in range(0, count, GROUP):
        length = min(GROUP, count - begin)
        at += unpack_group(payload, uint64(at), bits, codes, length)
        for j in range(length):
            values[uint64(j)] = float32(float64(low) + float64(step) * float64(codes[uint64(j)]))
        apply_values(target, uint64(start + begin), values, length, mode, float32(factor))
