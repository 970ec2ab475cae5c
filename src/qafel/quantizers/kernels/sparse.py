"""Kernels of top-k and rand-k: selection of coordinates, and their indices in few bits.

Indices are sent as gaps in a Rice code (the quotient by 2^r in unary, then r low bits), or as a bitmap if that is
shorter. The first bit of a byte is its least significant one.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32, int64, njit, uint8, uint64

from qafel.compiled import KERNEL
from qafel.quantizers.kernels import BITMAP, MAGNITUDE_BITS
from qafel.quantizers.kernels.shared import mix64


@njit(**KERNEL)
def select_largest(bits, count, chosen):  # type: ignore[no-untyped-def]
    """Increasing indices of the `count` largest magnitudes, the first among equals. `bits` is the int32 view of x.

    Radix selection over the 31 bits of the magnitude, 11 + 10 + 10: four passes, no sort.
    """
    prefix, known, need = int32(0), 31, count
    for digit in (11, 10, 10):
        histogram = np.zeros(1 << digit, np.int64)
        shift = known - digit
        for j in range(bits.size):
            magnitude = int32(bits[j] & MAGNITUDE_BITS)
            if int64(magnitude) >> known == int64(prefix):
                histogram[(magnitude >> shift) & ((1 << digit) - 1)] += 1
        value = (1 << digit) - 1
        while histogram[value] < need:
            need -= histogram[value]
            value -= 1
        prefix, known = int32((int64(prefix) << digit) | value), shift
    place = 0
    for j in range(bits.size):
        magnitude = int32(bits[j] & MAGNITUDE_BITS)
        if magnitude > prefix or (magnitude == prefix and need > 0):
            need -= int64(magnitude == prefix)
            chosen[place] = j
            place += 1


@njit(**KERNEL)
def select_random(seed, size, chosen):  # type: ignore[no-untyped-def]
    """A uniformly random set of chosen.size increasing indices below `size`, from the seed alone.

    Draws without replacement into a bitmap the smaller of the set and its complement. Only integers are used, so every
    machine draws the same set. Rejection makes each draw exactly uniform.
    """
    count = chosen.size
    invert = 2 * count > size
    wanted = size - count if invert else count
    marks = np.zeros((size + 63) // 64, np.uint64)
    reject_below = uint64((uint64(1) << uint64(32)) % uint64(max(size, 1)))
    start, drawn, counter = mix64(uint64(seed)), 0, uint64(0)
    while drawn < wanted:
        product = uint64((mix64(start + counter) >> uint64(32)) * uint64(size))
        counter += uint64(1)
        if (product & uint64(0xFFFFFFFF)) < reject_below:
            continue
        index = product >> uint64(32)
        mask = uint64(1) << (index & uint64(63))
        if not marks[index >> uint64(6)] & mask:
            marks[index >> uint64(6)] |= mask
            drawn += 1
    place = 0
    for word in range(marks.size):
        pattern = ~marks[word] if invert else marks[word]
        base = word * 64
        for bit in range(min(64, size - base)):
            if pattern & (uint64(1) << uint64(bit)):
                chosen[place] = base + bit
                place += 1


@njit(**KERNEL)
def rice_bits(indices, rice):  # type: ignore[no-untyped-def]
    """The length in bits of the Rice code of the indices."""
    total, previous = int64(indices.size) * (rice + 1), int64(-1)
    for j in range(indices.size):
        total += (int64(indices[j]) - previous - 1) >> rice
        previous = int64(indices[j])
    return total


@njit(**KERNEL)
def write_indices(indices, rice, out):  # type: ignore[no-untyped-def]
    """Write increasing indices into zeroed bytes, as Rice-coded gaps or as a bitmap."""
    position, previous = int64(0), int64(-1)
    for j in range(indices.size):
        index = int64(indices[j])
        if rice == BITMAP:
            out[index >> 3] |= uint8(1 << (index & 7))
            continue
        gap = index - previous - 1
        previous = index
        position += gap >> rice
        word = (uint64(gap & ((1 << rice) - 1)) << uint64(1) | uint64(1)) << uint64(position & 7)
        place = position >> 3
        while word:
            out[place] |= uint8(word & uint64(255))
            word >>= uint64(8)
            place += 1
        position += rice + 1


@njit(**KERNEL)
def read_indices(data, rice, size, indices):  # type: ignore[no-untyped-def]  # noqa: PLR0911
    """Read exactly indices.size increasing indices below `size`. Returns False for any other bytes.

    Every step consumes a bit, so reading ends for any data.
    """
    total, position, index = int64(data.size) * 8, int64(0), int64(-1)
    if rice == BITMAP:
        place = 0
        for bit in range(total):
            if data[bit >> 3] >> (bit & 7) & 1:
                if place == indices.size or bit >= size:
                    return False
                indices[place] = bit
                place += 1
        return place == indices.size
    for j in range(indices.size):
        quotient = int64(0)
        while position < total and not (data[position >> 3] >> (position & 7)) & 1:
            quotient += 1
            position += 1
        position += 1
        if position + rice > total:
            return False
        low = int64(0)
        for bit in range(rice):
            low |= int64((data[position >> 3] >> (position & 7)) & 1) << bit
            position += 1
        index += (quotient << rice | low) + 1
        if index >= size:
            return False
        indices[j] = index
    if total - position >= 8:
        return False
    while position < total:
        if (data[position >> 3] >> (position & 7)) & 1:
            return False
        position += 1
    return True


@njit(**KERNEL)
def scatter_add(target, indices, values, weight):  # type: ignore[no-untyped-def]
    """target[indices] += weight · values."""
    factor = float32(weight)
    for j in range(indices.size):
        target[indices[j]] += factor * values[j]
