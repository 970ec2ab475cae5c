"""QSGD's kernels: one step per bucket, an integer code per coordinate, value = step · level(code).

Coordinates j and j + half of a packing group share one 32-bit hash, 16 bits each, and, at 4 bits, one byte. With
v = x/step in fixed point with 16 fractional bits and u a uniform 16-bit integer, code = ⌊(v + u) / 2¹⁶⌋ rounds up
with probability frac(v): unbiased to 2⁻¹⁷ of a step.
"""

# ruff: noqa: PLR0917 — a kernel takes plain arrays and numbers

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, njit, uint8, uint32

from qafel.quantizers.kernels.numeric import INFINITY_BITS, KERNEL, hash32, magnitude_bits, round_keys
from qafel.quantizers.kernels.packing import GROUP, pack_group

MAX_ABS, L2 = 0, 1

_ONE = np.float32(65536.0)  # one level in fixed point
_SHRINK = np.float32(1.0 - 2.0**-22)  # keeps the largest coordinate inside the top level whatever rounding did
_NORMAL = np.float32(2.0**-126)
_SUBNORMAL = np.float32(2.0**-149)
_LARGEST = np.float32(np.finfo(np.float32).max)
_TINY, _LIFT = np.float32(2.0**-80), np.float32(2.0**80)


@njit(**KERNEL)
def _norm(x, norm, largest):  # type: ignore[no-untyped-def]
    """The bucket's scale, ‖x‖∞ or ‖x‖₂; squares are summed in float64, where nothing over- or underflows."""
    if norm == MAX_ABS:
        return float64(largest)
    a, b, c, d = float64(0), float64(0), float64(0), float64(0)
    quarter = x.size // 4
    x0, x1, x2, x3 = x[:quarter], x[quarter : 2 * quarter], x[2 * quarter : 3 * quarter], x[3 * quarter :]
    for j in range(quarter):
        a += float64(x0[j]) * float64(x0[j])
        b += float64(x1[j]) * float64(x1[j])
        c += float64(x2[j]) * float64(x2[j])
    for j in range(x3.size):
        d += float64(x3[j]) * float64(x3[j])
    return max(np.sqrt((a + b) + (c + d)), float64(largest))


@njit(**KERNEL)
def _measure_buckets(x, bucket, levels, norm, steps, begin, end):  # type: ignore[no-untyped-def]
    """One step per bucket of x[begin:end]; 1 if a coordinate is NaN or infinite."""
    patterns = x.view(np.int32)
    step_bits = steps.view(np.int32)
    for b in range(begin // bucket, (end + bucket - 1) // bucket):
        low, high = b * bucket, min(end, (b + 1) * bucket)
        largest = magnitude_bits(patterns[low:high])
        if largest >= INFINITY_BITS:
            return 1
        step_bits[b] = largest
        scale = _norm(x[low:high], norm, steps[b])
        step = float32(min(scale, float64(_LARGEST)) / levels)
        if scale > 0 and step < _NORMAL:
            step += _SUBNORMAL  # a subnormal quotient rounded down would push the largest value out of range
        steps[b] = step
    return 0


@njit(**KERNEL)
def _round_pairs(low, high, counter, steps, lifts, one, offset, keys, out_low, out_high):  # type: ignore[no-untyped-def]
    key0, key1, key2 = keys
    lift_low, lift_high = lifts
    scale_low = one / (steps[0] * lift_low) if steps[0] > 0 else float32(0)
    scale_high = one / (steps[1] * lift_high) if steps[1] > 0 else float32(0)
    for j in range(low.size):
        h = hash32(uint32(counter + uint32(j)), key0, key1, key2)
        v = int32((low[j] * lift_low) * scale_low + offset)
        out_low[j] = uint8(uint32(uint32(v) + uint32(h & uint32(0xFFFF))) >> uint32(16))
    for j in range(high.size):
        h = hash32(uint32(counter + uint32(j)), key0, key1, key2)
        w = int32((high[j] * lift_high) * scale_high + offset)
        out_high[j] = uint8(uint32(uint32(w) + uint32(h >> uint32(16))) >> uint32(16))


@njit(**KERNEL)
def _round_nibbles(low, high, counter, steps, one, offset, keys, out):  # type: ignore[no-untyped-def]
    """`_round_pairs` and 4-bit packing in one pass: the case that has to be as fast as memory."""
    key0, key1, key2 = keys
    scale_low, scale_high = one / steps[0], one / steps[1]
    for j in range(high.size):
        h = hash32(uint32(counter + uint32(j)), key0, key1, key2)
        v = int32(low[j] * scale_low + offset)
        w = int32(high[j] * scale_high + offset)
        v = int32(uint32(uint32(v) + uint32(h & uint32(0xFFFF))) >> uint32(16))
        w = int32(uint32(uint32(w) + uint32(h >> uint32(16))) >> uint32(12))
        out[j] = uint8(v | int32(w & int32(0xF0)))


@njit(**KERNEL)
def _lift(step):  # type: ignore[no-untyped-def]
    """A power of two that keeps 1/step finite where the step is tiny."""
    return _LIFT if step < _TINY else float32(1)


@njit(**KERNEL)
def encode_spans(x, key, bucket, span, levels, bits, norm, gain, steps, packed, first, last):  # type: ignore[no-untyped-def]
    """Quantize the spans first … last−1; returns 1 if a coordinate is NaN or infinite, else 0.

    `span` is a multiple of `bucket` and of GROUP, or the whole vector, so no two spans share a step or a byte.
    With one bit there is no zero level: the two codes stand for −step and +step.
    """
    size = x.size
    keys = round_keys(key)
    codes = np.empty(GROUP, np.uint8)
    one = _ONE * _SHRINK * (float32(0.5) if bits == 1 else float32(1))
    offset = (_ONE * float32(0.5) if bits == 1 else _ONE * float32(levels)) + float32(0.5)
    for number in range(first, last):
        begin, end = number * span, min(size, (number + 1) * span)
        if _measure_buckets(x, bucket, levels, norm, steps, begin, end) != 0:
            return 1
        for start in range(begin, end, GROUP):
            count = min(end - start, GROUP)
            half = (count + 1) // 2
            out = packed[start // GROUP * (GROUP * bits // 8) :]
            r = 0
            while r < half:
                b, c = (start + r) // bucket, min((start + half + r) // bucket, steps.size - 1)
                stop = min(half, (b + 1) * bucket - start)
                if start + half + r < end:
                    stop = min(stop, (c + 1) * bucket - start - half)
                low, high = x[start + r : start + stop], x[start + half + r : start + min(count, half + stop)]
                counter, pair = uint32(start + r), (steps[b], steps[c])
                if bits == 4 and low.size == high.size and min(pair[0], pair[1]) >= _TINY:
                    _round_nibbles(low, high, counter, pair, one, offset, keys, out[r:stop])
                else:
                    lifts = (_lift(pair[0]), _lift(pair[1]))
                    out_low, out_high = codes[r:stop], codes[half + r : half + r + high.size]
                    _round_pairs(low, high, counter, pair, lifts, one, offset, keys, out_low, out_high)
                    if bits == 4:
                        _join_nibbles(out_low, out_high, out[r:stop])
                r = stop
            if bits != 4:
                pack_group(codes[:count], bits, out)
        for b in range(begin // bucket, (end + bucket - 1) // bucket):
            steps[b] *= gain
    return 0


@njit(**KERNEL)
def _join_nibbles(low, high, out):  # type: ignore[no-untyped-def]
    for j in range(high.size):
        out[j] = uint8(low[j] | uint8(high[j] << uint8(4)))
    for j in range(high.size, low.size):
        out[j] = low[j]
