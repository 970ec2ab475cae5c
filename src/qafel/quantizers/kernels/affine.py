"""Min-max affine quantization of one tensor: value = minimum + step · code, in float64, rounded once."""

from __future__ import annotations

import numpy as np
from numba import float32, float64, njit, uint8, uint64

from qafel.quantizers.kernels.decode import apply_values
from qafel.quantizers.kernels.numeric import KERNEL
from qafel.quantizers.kernels.packing import GROUP, pack_group, unpack_group

_LARGEST = np.float32(np.finfo(np.float32).max)


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
