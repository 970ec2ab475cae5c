"""A decoder of every codec in slow NumPy, written from docs/wire-format.md: the oracle of the shipped decoders.

The module imports nothing from `qafel`. It reads one file of the format, the tables of `trellis`. NumPy rounds every
product and every sum once, in the order that the format prescribes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import zstandard

from tests.quantizers.oracle import MASK64, Keys, hash_pair, mix64, round_keys, uniform16, unpack

Shapes = Sequence[tuple[int, ...]]

NONE, QSGD, TOP_K, RAND_K, AFFINE, SIGN, DITHERED, SCALED, ROTATED, TRELLIS, LAYERS = 1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13
LARGEST = np.finfo(np.float32).max
TABLES = Path(__file__).parents[2] / "src" / "qafel" / "quantizers" / "kernels" / "tables.json"
LEVELS = {
    1: "0.797884583",
    2: "0.452780038 1.51041758",
    3: "0.24509418 0.756005287 1.34390926 2.15194559",
    4: "0.128395036 0.388048291 0.656759143 0.942340434 1.25623119 1.6180464 2.06901717 2.73258948",
    5: "0.0658896565 0.198051825 0.331378311 0.466699511 0.604933619 0.747135699 0.894565105 1.0487833 "
    "1.21180439 1.38634038 1.57622802 1.78723323 2.02872849 2.31773949 2.69111967 3.26073241",
    6: "0.0334095061 0.100278288 0.167296901 0.234566987 0.302192837 0.37028265 0.438949674 0.508313775 "
    "0.578503013 0.649655581 0.721921921 0.795467675 0.870476604 0.947154939 1.02573633 1.10648823 "
    "1.18972015 1.27579451 1.36514103 1.45827639 1.55583119 1.65858889 1.76754189 1.88397729 "
    "2.00961113 2.14681029 2.29898119 2.47130489 2.67227387 2.9174068 3.24043703 3.74410129",
}
"""The positive levels of `rotated`, part of the format."""


def decode(codec: bytes, payload: bytes, size: int, shapes: Shapes | None = None) -> np.ndarray:
    """The vector of `size` coordinates that a payload of this codec stands for."""
    name, flags, fields, inner = codec[0], codec[1], codec[2:8], codec[8:16].ljust(16, b"\0")
    if flags:
        payload = decompressed(codec[:1] + b"\0" + codec[2:], payload, size, shapes)
    if name == SCALED:
        result = decode(inner, payload, size)
    elif name == LAYERS:
        result = layers(inner, payload, size, shapes)
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
        result = affine(payload, size, fields[0], shapes)
    return result


def added(target: np.ndarray, codec: bytes, payload: bytes, weight: float, shapes: Shapes | None = None) -> np.ndarray:
    """target + weight · decoded; what is not sent is not touched."""
    if codec[1]:
        codec = codec[:1] + b"\0" + codec[2:]
        payload = decompressed(codec, payload, target.size, shapes)
    if codec[0] == SCALED:
        codec = codec[8:16].ljust(16, b"\0")
    factor = np.float32(weight)
    if codec[0] not in {TOP_K, RAND_K}:
        return target + factor * decode(codec, payload, target.size, shapes)
    indices, values = kept(codec, payload, target.size)
    result = target.copy()
    result[indices] += factor * values
    return result


def lengths(codec: bytes, size: int, shapes: Shapes | None = None) -> tuple[int, int]:
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
        shapes = [(size, 1)] if shapes is None else shapes
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


def decompressed(codec: bytes, payload: bytes, size: int, shapes: Shapes | None) -> bytes:
    total, head = lengths(codec, size, shapes)
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


def affine(payload: bytes, size: int, bits: int, shapes: Shapes | None) -> np.ndarray:
    shapes = [(size, 1)] if shapes is None else shapes
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


def signs(counter: int, size: int, keys: Keys, shape: tuple[int, int]) -> list[np.ndarray]:
    """D₁ and D₂ as arrays of ±1."""
    result = []
    for words in hash_pair(counter + np.arange(size // 32), keys):
        bits = np.concatenate([(words >> np.uint32(31 - part)) & np.uint32(1) for part in range(32)])
        result.append((1.0 - 2.0 * bits).astype(np.float32).reshape(shape))
    return result


def butterflies(x: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Replace rows a and b that lie a stride apart with a + b and a − b, for one stride after another."""
    for stride in strides:
        x = x.copy()
        for start in range(0, len(x), 2 * stride):
            a, b = x[start : start + stride].copy(), x[start + stride : start + 2 * stride].copy()
            x[start : start + stride], x[start + stride : start + 2 * stride] = a + b, a - b
    return x


def turn(x: np.ndarray) -> np.ndarray:
    """G: rows j and j + rows/2, turned by the angle of j mod 16, times √2."""
    half = len(x) // 2
    fraction = (2 * (np.arange(half) % 16) + 1) * 0x9E3779B1 % 2**32 / 2.0**32
    tangent = 0.25 + 0.375 * fraction
    root = math.sqrt(2.0) / (1.0 + tangent * tangent)
    cosine = (root * (1.0 - tangent * tangent)).astype(np.float32)[:, None]
    sine = (root * (tangent + tangent)).astype(np.float32)[:, None]
    return np.concatenate([cosine * x[:half] + sine * x[half:], sine * x[:half] - cosine * x[half:]])


def strides_of(rows: int) -> tuple[list[int], list[int]]:
    """The strides of H, and those of H′ in the order in which it is undone."""
    strides = [1 << k for k in range(rows.bit_length() - 1)]
    return strides, [strides[-2], *strides[:-2]]


def rotated(payload: bytes, size: int, bits: int) -> np.ndarray:
    keys = round_keys((int.from_bytes(payload[:8], "little"), 0))
    pieces = cut(size)
    scales = np.frombuffer(payload, "<f4", sum(piece[3] for piece in pieces), 8)
    positive = np.array(LEVELS[bits].split(), np.float32)
    levels = np.concatenate([positive, -positive])
    result, at, code, scale = np.empty(size, np.float32), 8 + 4 * scales.size, 0, 0
    for start, count, padded, cols in pieces:
        rows, doubled = padded // cols, padded // cols < 128
        x = levels[unpack(payload[at:], padded, bits)].reshape(rows, cols)
        x = x * np.float32(1 / (rows * rows) if doubled else 1 / rows)
        strides, others = strides_of(rows)
        for again in (1, 0) if doubled else (0,):
            d1, d2 = signs(code + again * (padded // 32), padded, keys, x.shape)
            x = butterflies(turn(butterflies(x, strides) * d2), others) * d1
        with np.errstate(over="ignore"):
            x = clipped(x * scales[scale : scale + cols])
        result[start : start + count] = x.ravel()[:count]
        at, code, scale = at + packed(padded, bits), code + padded, scale + cols
    return result


@cache
def tables_for(states: int) -> list[dict]:
    """Table 0, which sends nothing, then those of the file."""
    nothing = {"counts": [0, 0, 0, 4096, 4096, 0, 0], "levels": [0] * 7}
    return [nothing, *json.loads(TABLES.read_text())[str(states)]]


@cache
def codes_of_table(states: int, number: int) -> list[list[tuple[int, int, int]]]:
    """For even and for odd numbers, each of 4096 codes as (number, its count, place within the count)."""
    counts = tables_for(states)[number]["counts"]
    reach = len(counts) // 2
    result: list[list[tuple[int, int, int]]] = [[], []]
    for v, count in zip(range(-reach, reach + 1), counts, strict=True):
        result[v % 2] += [(v, count, place) for place in range(count)]
    return result


def windows_of(size: int) -> list[tuple[int, int, int]]:
    """Start, coordinates, and coordinates of the group of each window of `trellis`."""
    padded = -(-size // 16) * 16
    width = max(1 << k for k in range(13) if 1 << k <= padded)
    windows = [(start, width, width) for start in range(0, padded - width + 1, width)]
    if rest := padded % width:
        last = min(1 << k for k in range(8, 13) if 1 << k >= rest)
        windows[-1] = (windows[-1][0], width, width - (last - rest))
        windows.append((padded - last, last, last))
    return windows


def trellis(payload: bytes, size: int, rate: float, states: int, _least: int) -> np.ndarray:
    """Tables, notes that are not hidden, lengths, words."""
    if size < 1024:
        return rotated(payload, size, max(1, round(rate)))
    lifted, payload = payload[0] >= 128, bytes([payload[0] % 128]) + payload[1:]
    windows = windows_of(size)
    groups, full = len(windows), sum(1 for window in windows if window[1] == windows[0][1])
    edges = [*range(0, max(1, full // 16) * 16, 16), groups]
    notes = bytearray(8 + 2 * groups)
    edges_of_notes = [0, *(8 + 2 * edge for edge in edges[1:])]
    places = [range(a, b) for a, b in pairwise(edges_of_notes)]
    at = groups
    for place in places:
        for note in place[30:]:
            notes[note] = payload[at]
            at += 1
    lengths = [int.from_bytes(payload[at + 4 * s : at + 4 * s + 4], "little") for s in range(len(places) - 1)]
    words = np.frombuffer(payload[at + 4 * len(lengths) :], "<u2").tolist()
    ends, v = [0, *np.cumsum(lengths, dtype=int).tolist(), len(words)], np.zeros(-(-size // 16) * 16, np.int64)
    for s, place in enumerate(places):
        hidden = numbers(words[ends[s] : ends[s + 1]], windows, payload, range(edges[s], edges[s + 1]), states, v)
        assert not any(hidden[len(place) :])
        notes[place[0] : place[0] + min(30, len(place))] = hidden[: len(place)]
    result = rotated_back(v, windows, payload[:groups], bytes(notes), tables_for(states), size)
    return result * np.float32(2.0**-64) if lifted else result


def numbers(
    words: list[int], windows: Sequence[tuple[int, int, int]], tables: bytes, groups: range, states: int, v: np.ndarray
) -> bytes:
    """Read the numbers of a stream into v; return what its coders hide."""
    near, far, book = (0, 2, 1) if states == 8 else (1, 4, 2)  # bits of the state
    coders = [words[2 * lane] + (words[2 * lane + 1] << 16) for lane in range(16)]
    paths, at = [0] * 16, 32
    for group in groups:
        codes, (start, _, count) = codes_of_table(states, tables[group]), windows[group]
        for i in range(start, start + count):
            lane = (i - start) % 16
            path, x = paths[lane], coders[lane]
            v[i], share, inside = codes[path >> book & 1][x % 4096]
            x = share * (x // 4096) + inside
            if x < 2**15:
                x, at = (x << 16) + words[at], at + 1
            coders[lane] = x
            u = (int(v[i]) >> 1 ^ path >> near ^ path >> far) & 1
            paths[lane] = (path << 1 | u) % states
    assert at == len(words)
    return sum((x - 2**15) << 15 * lane for lane, x in enumerate(coders)).to_bytes(30, "little")


def rotated_back(
    v: np.ndarray, windows: Sequence[tuple[int, int, int]], numbers: bytes, notes: bytes, tables: list[dict], size: int
) -> np.ndarray:
    """The vector of these numbers: values, then rotations, the last window first."""
    keys = round_keys((int.from_bytes(notes[:8], "little"), 0))
    scales = (np.frombuffer(notes[8:], "<u2").astype(np.uint32) << np.uint32(15)).view(np.float32)
    power = int(np.clip(np.frexp(scales.max())[1] - 1, -126, 127))
    result, shared = np.empty(size, np.float32), np.empty(0, np.float32)
    for number in range(len(windows) - 1, -1, -1):
        start, width, count = windows[number]
        values, table = v[start : start + count], tables[numbers[number]]
        if "levels" in table:
            values = np.array(table["levels"], np.float32)[values + 3] / np.float32(1024)
        unit = scales[number] * (np.float32(2.0**-power) * np.float32(1 / width))
        whole = np.concatenate([values.astype(np.float32) * unit, shared * np.float32(1 / width)])
        x = whole.reshape(-1, 16)
        strides, others = strides_of(len(x))
        d1, d2 = signs(4096 * number, width, keys, x.shape)
        x = turn(butterflies(butterflies(x, strides).T, (1, 2, 4, 8)).T * d2)
        x = butterflies(butterflies(x, others).T, (1, 2, 4, 8)).T * d1
        overlap = windows[number - 1][0] + windows[number - 1][1] - start if number else 0
        shared = x.ravel()[:overlap]
        with np.errstate(over="ignore"):
            rest = clipped(x.ravel()[overlap : size - start] * np.float32(2.0**power))
        result[start + overlap : start + overlap + rest.size] = rest
    return result


def layers(inner: bytes, payload: bytes, size: int, shapes: Shapes | None) -> np.ndarray:
    """Put the pieces of a sorted vector in their places. The first bytes are their ranks."""
    rate = inner[2] if inner[0] == ROTATED else float(str(np.frombuffer(inner[2:6], "<f4")[0]))
    most = max(1, int(rate * size / 416))
    tensors = [math.prod(shape) for shape in shapes or [(size,)]]
    if len(tensors) > most:
        tensors = [size]
    length = 1 + size // most
    while sum(max(1, count // length) for count in tensors) > most:
        length += 1 + length // 8
    edges = [0]
    for count in tensors:
        parts, start = max(1, count // length), edges[-1]
        edges += [
            start + count * (i + 1) // parts for i in range(parts) if count * (i + 1) // parts > count * i // parts
        ]
    ranks, at = payload[: len(edges) - 1], 0
    values, result = decode(inner, payload[len(ranks) :], size), np.empty(size, np.float32)
    for piece in sorted(range(len(ranks)), key=lambda number: ranks[number]):
        begin, end = edges[piece : piece + 2]
        result[begin:end], at = values[at : at + end - begin], at + end - begin
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
