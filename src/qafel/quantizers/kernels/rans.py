"""Kernels of trellis: numbers to bytes in as many bits as they carry, and back (range asymmetric numeral systems).

A coder's state x holds what was written so far. To write a number that has `count` of 4096 codes from `start` on, x
becomes 4096·⌊x/count⌋ + start + x mod count; to read, one looks up x mod 4096 and undoes this. States are
in [2¹⁵, 2³¹), and 16 bits at a time move between them and the words. Reading runs forward, writing backward. Sixteen
coders work side by side, one a lane. Duda, 2013; Giesen, 2014.

A coder may begin anywhere above 2¹⁵: ours hold fifteen bits each of a message of 30 bytes, which comes out when all is
read.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int16, int32, int64, njit, uint16

from qafel.compiled import (
    INNER,
    LANES,
    as_floats,
    as_longs,
    as_words,
    below,
    choose,
    compress,
    count,
    expand,
    floats,
    fma,
    gather,
    load,
    longs,
    store,
    words,
)
from qafel.quantizers.kernels import CODES, HIDDEN_BYTES, MIDDLE

_BITS, _LOWEST = 12, 1 << 15


@njit(**INNER)
def hide(message, states):  # type: ignore[no-untyped-def]
    """Where the coders begin, for a message of 30 bytes: bits 15·lane … 15·lane + 14 of it, above 2¹⁵."""
    for lane in range(LANES):
        bits = 0
        for k in range(3):
            at = 15 * lane // 8 + k
            bits |= (int64(message[at]) if at < HIDDEN_BYTES else 0) << (8 * k)
        states[lane] = _LOWEST + ((bits >> (15 * lane % 8)) & (_LOWEST - 1))


@njit(**INNER)
def unhide(states, message):  # type: ignore[no-untyped-def]
    """The inverse of `hide`; False for states that no message has."""
    message[:] = 0
    for lane in range(LANES):
        bits = int64(states[lane]) - _LOWEST
        if not 0 <= bits < _LOWEST:
            return False
        bits <<= 15 * lane % 8
        for k in range(3):
            if 15 * lane // 8 + k < HIDDEN_BYTES:
                message[15 * lane // 8 + k] |= (bits >> (8 * k)) & 255
    return True


@njit(**INNER)
def write(v, tables, classes, edges, message, out):  # type: ignore[no-untyped-def]
    """Write all numbers, group by group, to `out`, the last word first; how many words that takes."""
    states = np.empty(LANES, np.int32)
    hide(message, states)
    x = load(states, 0)
    at = 0
    for group in range(classes.size - 1, -1, -1):
        base = longs(int32(classes[group] * 2 * MIDDLE + MIDDLE))
        for row in range(edges[group + 1] - LANES, edges[group] - LANES, -LANES):
            entry = gather(tables, as_longs(load(v, row)) + base)
            size, begin = entry & longs(int32(0x1FFF)), entry >> longs(int32(13))
            full = below(size - longs(int32(1)), x >> longs(int32(19)))  # x ≥ 2¹⁹·count: no room
            store(out, at, compress(as_words(x), full))
            at += count(full)
            x = choose(full, x >> longs(int32(16)), x)
            # The quotient is below 2¹⁹: in float32 it is off by less than 1/8, and so at most one too small.
            quotient = as_longs(fma(as_floats(x), floats(float32(1)) / as_floats(size), floats(float32(-0.125))))
            others = longs(int32(CODES)) - size
            missing = choose(below(x - quotient * size, size), longs(int32(0)), others)
            x = x + begin + quotient * others + missing
    store(states, 0, x)
    for lane in range(LANES - 1, -1, -1):
        out[at], out[at + 1] = uint16(states[lane] >> 16), uint16(states[lane])
        at += 2
    return at


@njit(**INNER)
def _opened(data, begin, coders):  # type: ignore[no-untyped-def]
    """Where the coders of a stream stand; False for states that none has."""
    for lane in range(LANES):
        coders[lane] = int32(data[begin + 2 * lane]) | (int32(data[begin + 2 * lane + 1]) << int32(16))
        if coders[lane] < _LOWEST:
            return False
    return True


@njit(**INNER)
def _read_row(data, at, end, tables, base, x, path, states, v, row):  # type: ignore[no-untyped-def]
    """Sixteen numbers; where that leaves the words, the coders and the paths."""
    first, last, book = (0, 2, 1) if states == 8 else (1, 4, 2)
    one = words(int16(1))
    c = (path >> words(int16(book))) & one
    place = (as_longs(c) << longs(int32(_BITS))) | (x & longs(int32(CODES - 1)))
    entry = gather(tables, place + base)
    x = ((entry & longs(int32(CODES - 1))) + longs(int32(1))) * (x >> longs(int32(_BITS)))
    x = x + ((entry >> longs(int32(_BITS))) & longs(int32(CODES - 1)))
    short = below(x, longs(int32(_LOWEST)))
    word = as_longs(expand(data, at, short)) & longs(int32(0xFFFF))
    x = choose(short, (x << longs(int32(16))) | word, x)
    number = as_words(entry >> longs(int32(24)))
    store(v, row, number + number + c - words(int16(MIDDLE)))
    u = number ^ (path >> words(int16(first))) ^ (path >> words(int16(last)))
    return min(at + count(short), end + 1), x, ((path << one) | (u & one)) & words(int16(states - 1))


@njit(**INNER)
def read(data, begin, end, tables, classes, edges, states, v, message):  # type: ignore[no-untyped-def]
    """Read all numbers from the words data[begin:end]; False unless they are as many as the numbers say.

    At least sixteen words more must stand in `data`: some are looked at before it shows that they are not there.
    """
    coders = np.empty(LANES, np.int32)
    if not _opened(data, begin, coders):
        return False
    at, x, path = begin + 2 * LANES, load(coders, 0), words(int16(0))
    for group in range(classes.size):
        base = longs(int32(classes[group] * 2 * CODES))
        for row in range(edges[group], edges[group + 1], LANES):
            at, x, path = _read_row(data, at, end, tables, base, x, path, states, v, row)
    store(coders, 0, x)
    return at == end and unhide(coders, message)


@njit(**INNER)
def read_two(data, ends, tables, classes, edges, states, v, messages):  # type: ignore[no-untyped-def]
    """Read two streams of equal groups at once, the second one's numbers right after the first one's.

    A row waits for the row before, and most of the time for the table; two streams share this time.
    """
    coders, others = np.empty(LANES, np.int32), np.empty(LANES, np.int32)
    if not (_opened(data, ends[0], coders) and _opened(data, ends[1], others)):
        return False
    at, x, path = ends[0] + 2 * LANES, load(coders, 0), words(int16(0))
    at2, x2, path2 = ends[1] + 2 * LANES, load(others, 0), words(int16(0))
    groups, further = edges.size - 1, edges[edges.size - 1] - edges[0]
    for group in range(groups):
        base = longs(int32(classes[group] * 2 * CODES))
        base2 = longs(int32(classes[groups + group] * 2 * CODES))
        for row in range(edges[group], edges[group + 1], LANES):
            at, x, path = _read_row(data, at, ends[1], tables, base, x, path, states, v, row)
            at2, x2, path2 = _read_row(data, at2, ends[2], tables, base2, x2, path2, states, v, row + further)
    store(coders, 0, x)
    store(others, 0, x2)
    sound = at == ends[1] and at2 == ends[2]
    return sound and unhide(coders, messages[0]) and unhide(others, messages[1])
