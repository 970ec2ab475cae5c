"""Kernels of QSGD, sign, dithered and affine, and of top-k and rand-k, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qafel.params import Vector
from qafel.quantizers.kernels import BAD_CODE, BAD_STEP, BITMAP, GROUP, L2, LARGEST, MAGNITUDE_BITS, MEAN, OK
from qafel.quantizers.plain import (
    MASK64,
    Array,
    apply_values,
    is_finite,
    mix64,
    pack,
    round_keys,
    steps_are_sound,
    steps_in,
    uniform16,
    unpack,
)

_FLOAT = np.float32
_SHRINK = np.float32(1.0 - 2.0**-22)
_NORMAL, _SUBNORMAL = np.float32(2.0**-126), np.float32(2.0**-149)
_TINY, _LIFT = np.float32(2.0**-80), np.float32(2.0**80)
_ONE_BITS = 0x4B000000  # the pattern of 2²³
_PIECE = 1 << 16  # coordinates per step of work


def _pieces(size: int, span: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Begin and end of pieces that consist of whole spans."""
    length = span * max(1, _PIECE // span)
    end = min(size, last * span)
    for begin in range(first * span, end, length):
        yield begin, min(end, begin + length)


def _sums(x: Vector, bucket: int, square: bool) -> Array:
    """Σ|xᵢ|, or Σxᵢ², of every bucket: in float64, in four fixed parts, each coordinate after coordinate."""
    wide = x.astype(np.float64)
    terms = wide * wide if square else np.abs(wide)
    full = terms.size // bucket * bucket
    found = [_four_sums(terms[:full].reshape(-1, bucket))]
    if full < terms.size:
        found.append(_four_sums(terms[None, full:]))
    return np.concatenate(found)


def _four_sums(rows: Array) -> Array:
    count = rows.shape[1]
    even = count - count % 4
    parts = np.zeros((len(rows), 4))
    if even:
        parts = np.cumsum(rows[:, :even].reshape(len(rows), even // 4, 4), axis=1)[:, -1]
    first = parts[:, 0]
    for rest in range(even, count):
        first = first + rows[:, rest]
    return np.asarray((first + parts[:, 1]) + (parts[:, 2] + parts[:, 3]))


def _each(steps: Vector, bucket: int, size: int) -> Vector:
    """A bucket's step for each of its coordinates."""
    return np.repeat(steps, bucket)[:size]


def _steps(x: Vector, bucket: int, levels: float, norm: int) -> Vector:
    """One step per bucket."""
    most = float(LARGEST) * (1 - 2.0**-23) / math.ceil(levels)  # the top level must decode to a finite value
    if norm == MEAN:
        counts = np.diff(np.append(np.arange(0, x.size, bucket), x.size))
        return (_sums(x, bucket, False) / counts).astype(np.float32)
    scales = np.maximum.reduceat(np.abs(x), np.arange(0, x.size, bucket)).astype(np.float64)
    if norm == L2:
        scales = np.maximum(np.sqrt(_sums(x, bucket, True)), scales)
    steps = np.minimum(scales / levels, most).astype(np.float32)
    return np.where((scales > 0) & (steps < _NORMAL), steps + _SUBNORMAL, steps)


def encode_spans(
    x: Vector, out: Array, word0: int, word1: int, bucket: int, span: int, levels: float, bits: int, norm: int,
    gain: float, skip: int, first: int, last: int,
) -> bool:  # fmt: skip
    """As the kernel of this name."""
    size = x.size
    head = skip + 4 * -(-size // bucket)
    keys = round_keys(word0, word1)
    fraction = 15 if bits == 8 else 16
    half = _FLOAT(0.5) if bits == 1 and levels == 1.0 else _FLOAT(1)
    level = _FLOAT(1 << fraction)
    one, magic = level * _SHRINK * half, _FLOAT(2.0**23) + level * (half if half < 1 else _FLOAT(levels))
    top = 1 if half < 1 else int(2 * levels)
    for begin, end in _pieces(size, span, first, last):
        part = x[begin:end]
        if not is_finite(part):
            return False
        steps = _steps(part, bucket, levels, norm)
        lifts = np.where(steps < _TINY, _LIFT, _FLOAT(1))  # keeps 1/step finite where the step is tiny
        scales = np.divide(one, steps * lifts, out=np.zeros_like(steps), where=steps > 0)
        fixed = (part * _each(lifts, bucket, part.size)) * _each(scales, bucket, part.size) + magic
        u = uniform16(begin, part.size, keys) >> (16 - fraction)
        codes = np.clip((fixed.view(np.int32) - np.int32(_ONE_BITS) + u) >> fraction, 0, top).astype(np.uint8)
        if norm == MEAN:
            codes = (part >= 0).astype(np.uint8)
        if gain != 1.0:
            steps *= _FLOAT(gain)
        _write(out, skip, head, begin, bucket, bits, steps, codes)
    return True


def _write(
    out: Array, skip: int, head: int, begin: int, bucket: int, bits: int, steps: Vector, codes: Array
) -> None:  # fmt: skip
    """Write steps and codes of a piece from coordinate `begin` to their places in a payload."""
    at = skip + 4 * (begin // bucket)
    out[at : at + 4 * steps.size] = np.frombuffer(steps.astype("<f4").tobytes(), np.uint8)
    packed, at = pack(codes, bits), head + begin // GROUP * (GROUP * bits // 8)
    out[at : at + packed.size] = packed


def _codes_in(payload: Array, head: int, begin: int, end: int, bits: int) -> Array:
    return unpack(payload[head + begin // GROUP * (GROUP * bits // 8) :], end - begin, bits)


def _codes_are_sound(payload: Array, head: int, size: int, bits: int, top: int) -> bool:
    """Whether every code is at most `top`."""
    if top == (1 << bits) - 1:
        return True
    if bits == 4 and top == 14:  # the padding of the last byte counts, as in the compiled kernel
        packed = payload[head:]
        return not bool(((packed & 15 == 15) | (packed >> 4 == 15)).any())
    return all(
        int(_codes_in(payload, head, begin, end, bits).max()) <= top for begin, end in _pieces(size, GROUP, 0, size)
    )


def apply_levels(
    target: Vector, payload: Array, mode: int, factor: float, bucket: int, span: int, levels: int, bits: int,
    check: bool, first: int, last: int,
) -> int:  # fmt: skip
    """As the kernel of this name."""
    size = target.size
    steps = steps_in(payload, 0, -(-size // bucket))
    head = 4 * steps.size
    if check:
        if not steps_are_sound(steps, levels):
            return BAD_STEP
        if not _codes_are_sound(payload, head, size, bits, 1 if bits == 1 else 2 * levels):
            return BAD_CODE
    for begin, end in _pieces(size, span, first, last):
        codes = _codes_in(payload, head, begin, end, bits).astype(np.int16)
        signed = (2 * codes if bits == 1 else codes) - np.int16(levels)
        values = _each(steps[begin // bucket :], bucket, end - begin) * signed.astype(np.float32)
        apply_values(target[begin:end], values, mode, factor)
    return OK


def apply_dithered(
    target: Vector, payload: Array, mode: int, factor: float, bucket: int, span: int, word0: int, bits: int,
    check: bool, first: int, last: int,
) -> int:  # fmt: skip
    """As the kernel of this name."""
    size = target.size
    steps = steps_in(payload, 8, -(-size // bucket))
    if check and not steps_are_sound(steps, 1.0):
        return BAD_STEP
    head, keys = 8 + 4 * steps.size, round_keys(word0, 0)
    fraction = 15 if bits == 8 else 16
    unit, middle = _FLOAT(1.0 / (2 << fraction)), (1 << fraction) - 1 - (((1 << bits) - 1) << fraction)
    for begin, end in _pieces(size, span, first, last):
        codes = _codes_in(payload, head, begin, end, bits).astype(np.int32)
        u = uniform16(begin, end - begin, keys) >> (16 - fraction)
        twice = (codes << (fraction + 1)) + np.int32(middle) - 2 * u
        with np.errstate(over="ignore"):
            values = _each(steps[begin // bucket :], bucket, end - begin) * (twice.astype(np.float32) * unit)
        apply_values(target[begin:end], values, mode, factor)
    return OK


def encode_tensor(x: Vector, start: int, count: int, bits: int, out: Array, at: int, head: Vector) -> None:
    """As the kernel of this name."""
    head[:] = 0.0
    if count == 0:
        return
    part = x[start : start + count]
    low, high, top = float(part[part.argmin()]), float(part[part.argmax()]), (1 << bits) - 1  # of zeros, the first
    head[0] = low
    head[1] = min((high - low) / top, float(LARGEST))
    inverse = 1.0 / float(head[1]) if head[1] > 0 else 0.0
    for begin, end in _pieces(count, GROUP, 0, count):
        codes = (part[begin:end].astype(np.float64) - low) * inverse + 0.5
        packed = pack(np.minimum(codes, float(top)).astype(np.uint8), bits)
        out[at : at + packed.size] = packed
        at += packed.size


def apply_tensor(
    target: Vector, start: int, count: int, payload: Array, at: int, bits: int, low: float, step: float, mode: int,
    factor: float,
) -> None:  # fmt: skip
    """As the kernel of this name."""
    for begin, end in _pieces(count, GROUP, 0, count):
        codes = _codes_in(payload, at, begin, end, bits).astype(np.float64)
        with np.errstate(over="ignore"):
            values = (low + step * codes).astype(np.float32)
        apply_values(target[start + begin : start + end], values, mode, factor)


def select_largest(bits: Array, count: int, chosen: Array) -> None:
    """As the kernel of this name."""
    magnitudes = bits & MAGNITUDE_BITS
    least = np.partition(magnitudes, bits.size - count)[bits.size - count]
    kept = magnitudes > least
    equal = np.flatnonzero(magnitudes == least)
    kept[equal[: count - int(kept.sum())]] = True
    chosen[:] = np.flatnonzero(kept)


def select_random(seed: int, size: int, chosen: Array) -> None:
    """As the kernel of this name: the first different indices that the seed draws, in whatever order."""
    count = chosen.size
    wanted = min(count, size - count)
    marks, start, counter = np.zeros(size, np.bool_), mix64(np.array([seed & MASK64], np.uint64)), 0
    missing = wanted
    while missing:
        draws = missing + missing // 4 + 16
        counters = np.arange(counter, counter + draws, dtype=np.uint64)
        counter += draws
        products = (mix64(start + counters) >> np.uint64(32)) * np.uint64(size)
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
