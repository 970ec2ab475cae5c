"""Kernels of top-k and rand-k in NumPy."""

from __future__ import annotations

import numpy as np

from qafel.params import Vector
from qafel.quantizers.kernels import BITMAP, MAGNITUDE_BITS
from qafel.quantizers.plain import MASK64, Array, mix64


def select_largest(bits: Array, count: int, chosen: Array) -> None:
    """As the kernel of this name."""
    magnitudes = bits & MAGNITUDE_BITS
    least = np.partition(magnitudes, bits.size - count)[bits.size - count]
    kept = magnitudes > least
    equal = np.flatnonzero(magnitudes == least)
    kept[equal[: count - int(kept.sum())]] = True
    chosen[:] = np.flatnonzero(kept)


def _mixed(words: Array) -> Array:
    """`mix64` of many words."""
    z = words + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def select_random(seed: int, size: int, chosen: Array) -> None:
    """As the kernel of this name: the first different indices that the seed draws, in whatever order."""
    count = chosen.size
    wanted = min(count, size - count)
    marks, start, counter = np.zeros(size, np.bool_), mix64(seed & MASK64), 0
    missing = wanted
    while missing:
        draws = missing + missing // 4 + 16
        counters = np.arange(counter, counter + draws, dtype=np.uint64)
        counter += draws
        products = (_mixed(np.uint64(start) + counters) >> np.uint64(32)) * np.uint64(size)
        drawn = (products[(products & np.uint64(0xFFFFFFFF)) >= 2**32 % size] >> np.uint64(32)).astype(np.int64)
        drawn = drawn[~marks[drawn]]
        _, places = np.unique(drawn, return_index=True)
        marks[drawn[np.sort(places)[:missing]]] = True
        missing = wanted - int(marks.sum())
    chosen[:] = np.flatnonzero(~marks if 2 * count > size else marks)


def _gaps(indices: Array) -> Array:
    return np.diff(indices.astype(np.int64), prepend=-1) - 1


def rice_bits(indices: Array, rice: int) -> int:
    """As the kernel of this name."""
    return indices.size * (rice + 1) + int((_gaps(indices) >> rice).sum())


def write_indices(indices: Array, rice: int, out: Array) -> None:
    """As the kernel of this name."""
    bits = np.zeros(8 * out.size, np.uint8)
    if rice == BITMAP:
        bits[indices] = 1
    else:
        gaps = _gaps(indices)
        ends = np.cumsum((gaps >> rice) + 1 + rice) - rice - 1  # where the one behind the zeros of the quotient stands
        bits[ends] = 1
        for low in range(rice):
            bits[ends + 1 + low] = gaps >> low & 1
    out[:] = np.packbits(bits, bitorder="little")


def read_indices(data: Array, rice: int, size: int, indices: Array) -> bool:
    """As the kernel of this name."""
    bits = np.unpackbits(data, bitorder="little")
    if rice == BITMAP:
        found = np.flatnonzero(bits)
        if found.size != indices.size or (found.size and found[-1] >= size):
            return False
        indices[:] = found
        return True
    total, position, ends = bits.size, 0, []
    ones = np.flatnonzero(bits).tolist()
    following, beyond = 0, len(ones)
    for _ in range(indices.size):
        while following < beyond and ones[following] < position:
            following += 1
        if following == beyond or ones[following] + 1 + rice > total:
            return False
        ends.append(ones[following])
        position = ones[following] + 1 + rice
    if total - position >= 8 or bits[position:].any():
        return False
    at = np.array(ends, np.int64)
    gaps = np.diff(at, prepend=-1 - rice) - 1 - rice << rice
    for low in range(rice):
        gaps |= bits[at + 1 + low].astype(np.int64) << low
    found = np.cumsum(gaps + 1) - 1
    if found.size and found[-1] >= size:
        return False
    indices[:] = found
    return True


def scatter_add(target: Vector, indices: Array, values: Vector, weight: float) -> None:
    """As the kernel of this name."""
    target[indices] += np.float32(weight) * values
