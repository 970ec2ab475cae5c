"""Sign with a scale: the bucket's mean magnitude, and one bit a coordinate."""

from __future__ import annotations

import numpy as np
from numba import float32, float64, njit, uint8, uint64

from qafel.quantizers.kernels.numeric import INFINITY_BITS, INNER, KERNEL, magnitude_bits
from qafel.quantizers.kernels.packing import GROUP, pack_group


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
