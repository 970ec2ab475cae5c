"""A decoder of every codec in plain NumPy: what a device without Numba would run, and the oracle of the compiled one.

Written from docs/wire-format.md, bit for bit: every product and sum is rounded once, in the order given there.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import zstandard

from qafel.params import Layout
from qafel.quantizers.rotated import LEVELS
from qafel.quantizers.trellis.plain import apply_streams, decode_streams, mix64, round_keys, signs, stages, turn
from qafel.quantizers.trellis.tables import cut as windows_of
from qafel.quantizers.trellis.tables import tables_for
from tests.quantizers.oracle import uniform16, unpack

NONE, QSGD, TOP_K, RAND_K, AFFINE, SIGN, DITHERED, SCALED, ROTATED, TRELLIS = 1, 2, 3, 4, 5, 6, 7, 9, 10, 12
MASK64 = 2**64 - 1
LARGEST = np.finfo(np.float32).max


def decode(codec: bytes, payload: bytes, size: int, layout: Layout | None = None) -> np.ndarray:
    """The vector of `size` coordinates that a payload of this codec stands for."""
    name, flags, fields, inner = codec[0], codec[1], codec[2:8], codec[8:16].ljust(16, b"\0")
    if flags:
        payload = decompressed(codec[:1] + b"\0" + codec[2:], payload, size, layout)
    if name == SCALED:
        result = decode(inner, payload, size)
    elif name in {TOP_K, RAND_K}:
        indices, values = kept(codec, payload, size)
        result = np.zeros(size, np.float32)
        result[indices] = values
    elif name == NONE:
        result = np.frombuffer(payload, "<f4").astype(np.float32)
    elif name == QSGD:
        result = qsgd(payload, size, int.from_bytes(fields[3:6], "little") or size, fields[1], fields[0])
    elif name == SIGN:
        result = qsgd(payload, size, int.from_bytes(fields[:3], "little") or size, 1, 1)
    elif name == DITHERED:
        result = dithered(payload, size, int.from_bytes(fields[1:4], "little") or size, fields[0])
    elif name == ROTATED:
        result = rotated(payload, size, fields[0])
    elif name == TRELLIS:
        result = trellis(payload, size, *struct.unpack("<fBB", fields))
    else:
        result = affine(payload, size, fields[0], layout)
    return result


def added(target: np.ndarray, codec: bytes, payload: bytes, weight: float, layout: Layout | None = None) -> np.ndarray:
    """target + weight · decoded; what is not sent is not touched."""
    if codec[1]:
        codec = codec[:1] + b"\0" + codec[2:]
        payload = decompressed(codec, payload, target.size, layout)
    if codec[0] == SCALED:
        codec = codec[8:16].ljust(16, b"\0")
    factor = np.float32(weight)
    if codec[0] not in {TOP_K, RAND_K}:
        return target + factor * decode(codec, payload, target.size, layout)
    indices, values = kept(codec, payload, target.size)
    result = target.copy()
    result[indices] += factor * values
    return result


def lengths(codec: bytes, size: int, layout: Layout | None = None) -> tuple[int, int]:
    """Bytes of a plain payload: all of it, and what stands before the codes."""
    name, fields, inner = codec[0], codec[2:8], codec[8:16].ljust(16, b"\0")
    if name == SCALED:
        return lengths(inner, size)
    if name in {TOP_K, RAND_K}:
        count = count_of(fields, size)
        total, head = lengths(inner, count) if inner[0] else (4 * count, 0)
        return 8 + total, 8 + head
    if name == NONE:
        return 4 * size, 0
    if name == AFFINE:
        shapes = [(size, 1)] if layout is None else [shape for _, shape in layout.tensors]
        sizes = [(math.prod(shape), len(shape) > 1) for shape in shapes]
        return sum(12 + packed(n, fields[0]) if many else 4 * n for n, many in sizes), 0
    if name == ROTATED:
        pieces = cut(size)
        head = 8 + 4 * sum(piece[3] for piece in pieces)
        return head + sum(packed(padded, fields[0]) for _, _, padded, _ in pieces), head
    at = {QSGD: 3, SIGN: 0, DITHERED: 1}[name]
    bucket = int.from_bytes(fields[at : at + 3], "little") or max(size, 1)
    head = 4 * -(-size // bucket) + (8 if name == DITHERED else 0)
    return head + packed(size, 1 if name == SIGN else fields[0]), head


def decompressed(codec: bytes, payload: bytes, size: int, layout: Layout | None) -> bytes:
    total, head = lengths(codec, size, layout)
    if len(payload) == total:
        return payload
    return payload[:head] + zstandard.ZstdDecompressor().decompress(payload[head:], max_output_size=total - head)


def packed(size: int, bits: int) -> int:
    """Bytes of packed codes, in groups of 512, each plane rounded up."""
    groups = [min(512, size - start) for start in range(0, size, 512)]
    return sum(-(-count * width // 8) for count in groups for width in (1, 2, 4, 8) if bits & width)


def clipped(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -LARGEST, LARGEST)


def qsgd(payload: bytes, size: int, bucket: int, levels: int, bits: int) -> np.ndarray:
    count = -(-size // max(bucket, 1))
    steps = np.repeat(np.frombuffer(payload, "<f4", count), bucket)[:size]
    codes = unpack(payload[4 * count :], size, bits)
    signed = 2 * codes - 1 if bits == 1 else codes - levels
    return steps * signed.astype(np.float32)


def dithered(payload: bytes, size: int, bucket: int, bits: int) -> np.ndarray:
    count = -(-size // max(bucket, 1))
    steps = np.repeat(np.frombuffer(payload, "<f4", count, 8), bucket)[:size]
    codes = unpack(payload[8 + 4 * count :], size, bits)
    fraction = 15 if bits == 8 else 16
    u = uniform16(size, (int.from_bytes(payload[:8], "little"), 0)) >> (16 - fraction)
    twice = (codes << (fraction + 1)) + (1 << fraction) - 1 - (((1 << bits) - 1) << fraction) - 2 * u
    with np.errstate(over="ignore"):
        return clipped(steps * (twice.astype(np.float32) * np.float32(2.0 ** -(fraction + 1))))


def affine(payload: bytes, size: int, bits: int, layout: Layout | None) -> np.ndarray:
    shapes = [(size, 1)] if layout is None else [shape for _, shape in layout.tensors]
    parts, at = [np.empty(0, np.float32)], 0
    for shape in shapes:
        count = math.prod(shape)
        if len(shape) < 2:
            parts.append(np.frombuffer(payload, "<f4", count, at).astype(np.float32))
            at += 4 * count
            continue
        low, step, _ = struct.unpack_from("<ffI", payload, at)
        codes = unpack(payload[at + 12 :], count, bits).astype(np.float64)
        with np.errstate(over="ignore"):
            parts.append(clipped((low + step * codes).astype(np.float32)))
        at += 12 + packed(count, bits)
    return np.concatenate(parts)


def cut(size: int) -> list[tuple[int, int, int, int]]:
    """Start, coordinates, size with padding and columns of the blocks of `rotated`."""
    pieces, start = [], 0
    while start < size:
        rest = size - start
        padded = next(n for n in (32, 64, 128, 256, 512, 1024, 2048, 4096) if n >= min(rest, 4096))
        if padded > 64 and 4 * rest < 3 * padded:
            padded //= 2
        pieces.append((start, min(rest, padded), padded, padded // 256 if padded >= 1024 else 1))
        start += min(rest, padded)
    return pieces


def rotated(payload: bytes, size: int, bits: int) -> np.ndarray:
    keys = round_keys((int.from_bytes(payload[:8], "little"), 0))
    pieces = cut(size)
    scales = np.frombuffer(payload, "<f4", sum(piece[3] for piece in pieces), 8)
    levels = np.concatenate([LEVELS[bits], -LEVELS[bits]])
    result, at, code, scale = np.empty(size, np.float32), 8 + 4 * scales.size, 0, 0
    for start, count, padded, cols in pieces:
        rows, doubled = padded // cols, padded // cols < 128
        x = levels[unpack(payload[at:], padded, bits)].reshape(rows, cols)
        x = x * np.float32(1 / (rows * rows) if doubled else 1 / rows)
        strides = [1 << k for k in range(rows.bit_length() - 1)]
        for again in (1, 0) if doubled else (0,):
            d1, d2 = signs(code + again * (padded // 32), padded, keys, x.shape)
            x = turn(stages(x, strides) * d2)
            x = stages(x, [strides[-2], *strides[:-2]]) * d1
        with np.errstate(over="ignore"):
            x = clipped(x * scales[scale : scale + cols])
        result[start : start + count] = x.ravel()[:count]
        at, code, scale = at + packed(padded, bits), code + padded, scale + cols
    return result


def trellis(payload: bytes, size: int, rate: float, states: int, _least: int) -> np.ndarray:
    """Tables, notes that are not hidden, lengths, words."""
    if size < 1024:
        return rotated(payload, size, max(1, round(rate)))
    windows, streams, plain, *_ = windows_of(size)
    groups, tables = len(windows), tables_for(states)
    classes, notes = np.frombuffer(payload, np.uint8, groups), np.zeros(8 + 2 * groups, np.uint8)
    notes[plain] = np.frombuffer(payload, np.uint8, plain.size, groups)
    lengths = np.frombuffer(payload, "<u4", len(streams) - 1, groups + plain.size)
    words = np.frombuffer(payload[groups + plain.size + 4 * lengths.size :], "<u2")
    v, ends = np.zeros(-(-size // 16) * 16, np.int16), [0, *np.cumsum(lengths).tolist(), words.size]
    result, count = np.zeros(size, np.float32), len(streams)
    assert decode_streams(words, ends, windows, streams, classes, states, tables.reading, v, notes, 0, count)
    seed, scales = int.from_bytes(notes[:8].tobytes(), "little"), notes[8:].view("<u2")
    apply_streams(result, v, windows, streams, classes, scales, tables.levels, seed, 0, 1.0, 0, count)
    return result


def count_of(fields: bytes, size: int) -> int:
    """k: a count, or a float32 fraction in its shortest decimal, rounded with halves up, or down; at least one."""
    if fields[0] == 1:
        wanted = int.from_bytes(fields[1:5], "little")
    else:
        share = float(str(np.frombuffer(fields[1:5], "<f4")[0]))
        wanted = int(share * size + (0.5 if fields[0] == 0 else 1e-9))
    return min(size, max(1, wanted))


def kept(codec: bytes, payload: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and values of a sparse payload."""
    inner = codec[8:16].ljust(16, b"\0") if codec[8] else bytes([NONE]).ljust(16, b"\0")
    count = count_of(codec[2:8], size)
    if codec[0] == RAND_K:
        return drawn(int.from_bytes(payload[:8], "little"), size, count), decode(inner, payload[8:], count)
    length = lengths(inner, count)[0]
    return read_indices(payload[length:], size, count), decode(inner, payload[:length], count)


def drawn(seed: int, size: int, count: int) -> np.ndarray:
    """A random set from the seed: draws without replacement of the set or, if that is smaller, of its complement."""
    wanted = min(count, size - count)
    marks, start, counter = np.zeros(size, bool), mix64(seed), 0
    while marks.sum() < wanted:
        product = (mix64((start + counter) & MASK64) >> 32) * size
        counter += 1
        if product & 0xFFFFFFFF >= 2**32 % size:
            marks[product >> 32] = True
    return np.flatnonzero(~marks if 2 * count > size else marks)


def read_indices(data: bytes, size: int, count: int) -> np.ndarray:
    if count == size:
        return np.arange(size)
    bits = np.unpackbits(np.frombuffer(data[1:], np.uint8), bitorder="little")
    if data[0] == 255:
        return np.flatnonzero(bits)
    rice, at, index, found = data[0], 0, -1, []
    for _ in range(count):
        ones = at + int(np.argmax(bits[at:]))
        low = int(bits[ones + 1 : ones + 1 + rice] @ (1 << np.arange(rice)))
        index += ((ones - at) << rice) + low + 1
        found.append(index)
        at = ones + 1 + rice
    return np.array(found)
