"""Decoding of levels: value = step · level, plain IEEE arithmetic in a fixed order, equal on every machine.

The payload is checked whole before the target is touched, so an error leaves it as it was.
"""

# ruff: noqa: PLR0917 — a kernel takes plain arrays and numbers

from __future__ import annotations

import numpy as np
from numba import float32, int8, njit, uint8, uint32

from qafel.quantizers.kernels.numeric import KERNEL
from qafel.quantizers.kernels.packing import GROUP, unpack_group

ASSIGN, ADD, CHECK = 0, 1, 2
OK, BAD_STEP, BAD_CODE = 0, 1, 2


@njit(**KERNEL)
def read_steps(payload, steps):  # type: ignore[no-untyped-def]
    """Little-endian float32 from bytes at any alignment."""
    words = steps.view(np.uint32)
    for b in range(steps.size):
        word = uint32(payload[4 * b]) | uint32(uint32(payload[4 * b + 1]) << uint32(8))
        word |= uint32(uint32(payload[4 * b + 2]) << uint32(16)) | uint32(uint32(payload[4 * b + 3]) << uint32(24))
        words[b] = uint32(word)


@njit(**KERNEL)
def _steps_are_sound(steps, reach):  # type: ignore[no-untyped-def]
    """Every step is non-negative and step · reach finite; false for NaN."""
    sound = True
    for b in range(steps.size):
        sound &= (steps[b] >= float32(0)) & (steps[b] * reach < float32(np.inf))
    return sound


@njit(**KERNEL)
def _no_nibble_is_15(packed):  # type: ignore[no-untyped-def]
    bad = uint8(0)
    for j in range(packed.size):
        c = packed[j]
        bad |= uint8(uint8(uint8(c & uint8(15)) == uint8(15)) | uint8(c >= uint8(240)))
    return bad == uint8(0)


@njit(**KERNEL)
def _codes_are_sound(packed, size, bits, top):  # type: ignore[no-untyped-def]
    """Every code is at most `top`."""
    if top == (1 << bits) - 1:
        return True
    if bits == 4 and top == 14:
        return _no_nibble_is_15(packed)
    codes = np.empty(GROUP, np.uint8)
    for start in range(0, size, GROUP):
        part = codes[: min(GROUP, size - start)]
        unpack_group(packed[start // GROUP * (GROUP * bits // 8) :], bits, part)
        largest = uint8(0)
        for j in range(part.size):
            largest = part[j] if part[j] > largest else largest  # max() does not vectorise here
        if largest > top:
            return False
    return True


@njit(**KERNEL)
def _unpack_levels(packed, bits, centre, double, codes, levels):  # type: ignore[no-untyped-def]
    """Signed levels of one group: code − centre, or ±1 when there is one bit."""
    if bits == 4:
        half = (levels.size + 1) // 2
        low, high = levels[:half], levels[half:]
        for j in range(low.size):
            low[j] = int8(uint8(packed[j] & uint8(15)) - centre)
        for j in range(high.size):
            high[j] = int8(uint8(packed[j] >> uint8(4)) - centre)
        return
    unpack_group(packed, bits, codes)
    for j in range(levels.size):
        levels[j] = int8(uint8(codes[j] << double) - centre)


@njit(**KERNEL)
def _assign(target, levels, step):  # type: ignore[no-untyped-def]
    for j in range(target.size):
        target[j] = step * float32(levels[j])


@njit(**KERNEL)
def _add(target, levels, step):  # type: ignore[no-untyped-def]
    for j in range(target.size):
        target[j] += step * float32(levels[j])


@njit(**KERNEL)
def _add_weighted(target, levels, step, weight):  # type: ignore[no-untyped-def]
    for j in range(target.size):
        target[j] += weight * (step * float32(levels[j]))


@njit(**KERNEL)
def apply_levels(target, payload, mode, weight, bucket, span, levels, bits, check, first, last):  # type: ignore[no-untyped-def]
    """Check the payload if asked, then assign or add the spans first … last−1 of it to the target."""
    size = target.size
    steps = np.empty((size + bucket - 1) // bucket, np.float32)
    read_steps(payload, steps)
    packed = payload[4 * steps.size :]
    if check:
        if not _steps_are_sound(steps, float32(levels)):
            return BAD_STEP
        if not _codes_are_sound(packed, size, bits, 1 if bits == 1 else 2 * levels):
            return BAD_CODE
    centre, double = uint8(levels), uint8(1 if bits == 1 else 0)
    codes, signed = np.empty(GROUP, np.uint8), np.empty(GROUP, np.int8)
    for start in range(first * span, min(size, last * span), GROUP):
        count = min(size - start, GROUP)
        part = packed[start // GROUP * (GROUP * bits // 8) :]
        _unpack_levels(part, bits, centre, double, codes[:count], signed[:count])
        r = 0
        while r < count:
            b = (start + r) // bucket
            stop = min(count, (b + 1) * bucket - start)
            if mode == ASSIGN:
                _assign(target[start + r : start + stop], signed[r:stop], steps[b])
            elif weight == float32(1):
                _add(target[start + r : start + stop], signed[r:stop], steps[b])
            else:
                _add_weighted(target[start + r : start + stop], signed[r:stop], steps[b], weight)
            r = stop
    return OK
