"""Kernels of rotated and of trellis in NumPy. Those of trellis are some hundred times slower than the compiled ones."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from qafel.params import Vector
from qafel.quantizers.kernels import (
    BAD_STEP,
    BLOCK,
    CODES,
    COLUMNS,
    COSINES,
    HIDDEN_BYTES,
    LARGEST,
    MIDDLE,
    OK,
    ROOM,
    SEED_BYTES,
    SINES,
    packed_bytes,
    turns_of,
)
from qafel.quantizers.kernels.tables import nudged, share_out, spread
from qafel.quantizers.plain import (
    Array,
    Keys,
    apply_values,
    hash_pair,
    is_finite,
    pack,
    round_keys,
    steps_are_sound,
    steps_in,
    unpack,
)

__all__ = [
    "apply_blocks",
    "apply_streams",
    "decode_streams",
    "deviations",
    "encode_blocks",
    "encode_streams",
    "share_out",
]

_FLOAT = np.float32
_LOWEST = 1 << 15
_TURNS, _SLACK, _FIRST, _FLATTEST, _LEAST = 6, 24.0, 0.75, 0.2, 0.1  # see kernels/windows.py
_TAPS = {8: (1, 3, 2), 32: (2, 5, 3)}  # z₁ = u ⊕ u₋ₐ ⊕ u₋ᵦ, codebook u₋ᵧ


def signs(first: int, size: int, keys: Keys, shape: tuple[int, ...]) -> list[Array]:
    """D₁ and D₂ from size/32 counters: bit 31 − p of word j is the sign of coordinate p·size/32 + j."""
    words = hash_pair(first + np.arange(size // 32), keys)
    shifts = np.arange(32, dtype=np.uint32)[:, None]
    negative = [((word[None, :] << shifts) >> np.uint32(31)).ravel() for word in words]
    return [np.where(which, _FLOAT(-1), _FLOAT(1)).reshape(shape) for which in negative]


def stages(x: Array, strides: list[int]) -> Array:
    """Butterflies (a + b, a − b) of rows that lie a stride apart, for one stride after another."""
    for h in strides:
        pairs = x.reshape(-1, 2, h, x.shape[1])
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).reshape(x.shape)
    return x


def turn(x: Array) -> Array:
    """Row j and row j + rows/2, turned by the angle of j mod 16, times √2."""
    half = x.shape[0] // 2
    cos, sin = COSINES[:half, None], SINES[:half, None]
    return np.concatenate([cos * x[:half] + sin * x[half:], sin * x[:half] - cos * x[half:]])


def _mixed(x: Array, mix: bool) -> Array:
    return np.ascontiguousarray(stages(np.ascontiguousarray(x.T), [1, 2, 4, 8]).T) if mix else x


def rotate(x: Array, turns: int, mix: bool, counter: int, keys: Keys) -> Array:
    """Rotate a block of rows and columns: H·(M)·D₂·G·H′·(M)·D₁. Each turn multiplies by rows (with M by size)."""
    strides = [1 << k for k in range(len(x).bit_length() - 1)]
    for again in range(turns):
        d1, d2 = signs(counter + again * (x.size // 32), x.size, keys, x.shape)
        x = turn(stages(_mixed(x * d1, mix), strides[:-1])) * d2
        x = stages(_mixed(x, mix), strides)
    return x


def rotate_back(x: Array, turns: int, mix: bool, counter: int, keys: Keys) -> Array:
    """The transpose of `rotate`."""
    strides = [1 << k for k in range(len(x).bit_length() - 1)]
    for again in reversed(range(turns)):
        d1, d2 = signs(counter + again * (x.size // 32), x.size, keys, x.shape)
        x = turn(_mixed(stages(x, strides), mix) * d2)
        x = _mixed(stages(x, [strides[-2], *strides[:-2]]), mix) * d1
    return x


def _column_sums(x: Array) -> Array:
    """In float32 over 16 rows at a time, then in float64."""
    partial = np.cumsum(x.reshape(-1, 16, x.shape[1]), axis=1, dtype=np.float32)[:, -1]
    return np.asarray(np.cumsum(partial, axis=0, dtype=np.float64)[-1])


def encode_blocks(
    x: Vector, out: Array, word: int, blocks: Array, scale_count: int, levels: Vector, bits: int, gain: float,
    least: bool, found: Array, first: int, last: int,
) -> bool:  # fmt: skip
    """As the kernel of this name."""
    head = 8 + 4 * scale_count
    keys = round_keys(word, 0)
    edges = (levels[:-1] + levels[1:]) * _FLOAT(0.5)
    for number, (start, count, size, cols, at, scale_at, byte) in enumerate(blocks[first:last].tolist(), first):
        part = x[start : start + count]
        if not is_finite(part):
            return False
        power = max((int(np.abs(part).max().view(np.int32)) >> 23) - 127, -126)
        block = np.zeros(size, np.float32)
        block[:count] = part * _FLOAT(2.0**-power)
        rows = size // cols
        turns, unit = turns_of(rows)  # type: ignore[no-untyped-call]
        y = rotate(block.reshape(rows, cols), turns, False, at, keys)
        sums = _column_sums(y * y)
        inverse = [math.sqrt(rows / square) if square > 0 else 0.0 for square in sums.tolist()]
        y = y * np.array(inverse, np.float32)
        a = np.abs(y)
        index = np.searchsorted(edges, a)
        dots = _column_sums(a * levels[index])
        lanes = np.cumsum(np.square(levels[index]).reshape(-1, COLUMNS), axis=0, dtype=np.float32)[-1]
        squares = np.cumsum(lanes.reshape(-1, cols), axis=0, dtype=np.float64)[-1]
        scales = np.zeros(cols, "<f4")
        found[number] = 0.0
        for c, (total, dot, square) in enumerate(zip(sums.tolist(), dots.tolist(), squares.tolist(), strict=True)):
            scale = 0.0
            if dot > 0:
                scale = math.sqrt(total / rows) * (dot * unit / square if least else rows * unit / dot)
                energy, bound = total * unit * unit * 2.0 ** (2 * power), rows * square / (dot * dot)
                found[number] += energy * (1.0 - 1.0 / bound if least else bound - 1.0), energy
            scales[c] = min(scale * gain * 2.0**power, float(LARGEST))
        out[8 + 4 * scale_at : 8 + 4 * (scale_at + cols)] = np.frombuffer(scales.tobytes(), np.uint8)
        codes = (index + np.where(y < 0, levels.size, 0)).astype(np.uint8).ravel()
        out[head + byte : head + byte + packed_bytes(size, bits)] = pack(codes, bits)
    return True


def apply_blocks(
    target: Vector, payload: Array, mode: int, factor: float, word: int, blocks: Array, scale_count: int,
    levels: Vector, bits: int, check: bool, first: int, last: int,
) -> int:  # fmt: skip
    """As the kernel of this name."""
    scales = steps_in(payload, 8, scale_count)
    if check and not steps_are_sound(scales, 1.0):
        return BAD_STEP
    keys, head = round_keys(word, 0), 8 + 4 * scales.size
    both = np.concatenate([levels, -levels])
    for start, count, size, cols, at, scale_at, byte in blocks[first:last].tolist():
        codes = unpack(payload[head + byte :], size, bits).reshape(-1, cols)
        turns, unit = turns_of(len(codes))  # type: ignore[no-untyped-call]
        x = rotate_back(both[codes] * _FLOAT(unit), turns, False, at, keys)
        with np.errstate(over="ignore"):
            values = (x * scales[scale_at : scale_at + cols]).ravel()[:count]
        apply_values(target[start : start + count], values, mode, factor)
    return OK


def _energy(x: Array) -> float:
    whole = x.size // COLUMNS * COLUMNS
    rows = x[:whole].reshape(-1, COLUMNS)
    with np.errstate(over="ignore"):
        sums = np.cumsum(rows * rows, axis=0, dtype=np.float32)[-1:].ravel()
    total = sum(map(float, sums), 0.0)
    if not 1e-25 < total < 1e35:
        total = sum((float(value) * float(value) for value in x[:whole]), 0.0)
    for value in x[whole:]:
        total += float(value) * float(value)
    return total


def deviations(x: Vector, windows: Array, sigmas: Array) -> float:
    """As the kernel of this name."""
    edges = [0, *(windows[:, 0] + windows[:, 1]).tolist()]
    sigmas[:] = [_energy(x[a:b]) for a, b in pairwise(edges)]
    return float(spread(sigmas, windows))  # type: ignore[no-untyped-call]


def _rotate_stream(x: Vector, windows: Array, first: int, last: int, power: int, keys: Keys) -> Array:
    origin = int(windows[first, 0])
    y = np.zeros(windows[last - 1, :2].sum() - origin, np.float32)
    part = x[origin : origin + y.size]
    y[: part.size] = part * _FLOAT(2.0**-power)
    for number in range(first, last):
        begin, size = int(windows[number, 0]) - origin, int(windows[number, 1])
        overlap = int(windows[number - 1, :2].sum()) - begin - origin if number > first else 0
        y[begin : begin + overlap] *= _FLOAT(1.0 / windows[number - 1, 1])
        window = y[begin : begin + size].reshape(-1, COLUMNS)
        y[begin : begin + size] = rotate(window, 1, True, number * BLOCK, keys).ravel()
    return y


def _coarse_costs(y: Array, levels: Array, biases: Array) -> Array:
    """The costs of the levels −3 … 3, on a new first axis."""
    part = y[None] - levels.reshape(-1, *[1] * y.ndim)
    return np.asarray(part * part + biases.reshape(-1, *[1] * y.ndim))


def _costs(y: Array, levels: Array | None, biases: Array) -> Array:
    """Rows × four classes of v mod 4 × lanes."""
    if levels is not None:
        cost = _coarse_costs(y, levels, biases)
        best = np.stack([cost[3], *(np.minimum(cost[3 + j], cost[j - 1]) for j in (1, 2, 3))], 1)
        return np.minimum(best * _FLOAT(128), _FLOAT(2047)).astype(np.int16)
    parts = [y - _FLOAT(c) for c in range(2)]
    near = [part - _FLOAT(4) * np.rint(part * _FLOAT(0.25)) for part in parts]
    distances = near + [_FLOAT(2) - np.abs(part) for part in near]
    return np.stack([d * d * _FLOAT(256) for d in distances], 1).astype(np.int16)


def _extended(metrics: Array, costs: Array, row: int, states: int) -> tuple[Array, Array]:
    """Extend all paths over these rows, from number `row` of the stream. Returns their costs and choices."""
    first, last, book = _TAPS[states]
    half = states // 2
    p = np.arange(half)
    near = 2 * (((p >> (first - 1)) ^ (p >> (last - 1))) & 1) + ((p >> (book - 1)) & 1)
    choices = np.empty((len(costs), states, COLUMNS), np.bool_)
    for number, cost in enumerate(costs):
        if (row + number) % 8 == 0:
            metrics = metrics - metrics[0]
        a, b = metrics[:half], metrics[half:]
        stay = np.stack([a + cost[near], a + cost[near ^ 2]], 1).reshape(states, COLUMNS)
        cross = np.stack([b + cost[near ^ 2], b + cost[near]], 1).reshape(states, COLUMNS)
        choices[number], metrics = cross < stay, np.minimum(stay, cross)
    return metrics, choices


def _classes(choices: Array, state: Array, states: int) -> tuple[Array, Array]:
    """The class 2·z₁ + c of every row and lane on the best paths to these states, and their first states."""
    first, last, book = _TAPS[states]
    result, lanes = np.empty((len(choices), COLUMNS), np.int16), np.arange(COLUMNS)
    for row in range(len(choices) - 1, -1, -1):
        before = (state >> 1) | np.where(choices[row, state, lanes], states // 2, 0)
        full = (before << 1) | (state & 1)
        result[row] = 2 * ((full ^ (full >> first) ^ (full >> last)) & 1) + ((full >> book) & 1)
        state = before
    return result, state


def _numbers(y: Array, j: Array, levels: Array | None, biases: Array, reach: int) -> tuple[Array, Array]:
    """The best v = j mod 4, and their values."""
    if levels is None:
        offset = j.astype(np.float32)
        v = (_FLOAT(4) * np.rint((y - offset) * _FLOAT(0.25)) + offset).astype(np.int16)
        v = v - ((np.maximum(v - reach, 0) + 3) & -4) + ((np.maximum(-reach - v, 0) + 3) & -4)
        return v, v.astype(np.float32)
    cost = _coarse_costs(y, levels, biases)
    other = np.take_along_axis(cost, np.maximum(j - 1, 0)[None], 0)[0]
    swap = (other < np.take_along_axis(cost, 3 + j[None], 0)[0]) & (j > 0)
    v = np.where(swap, j - 4, j)
    return v, levels[v + 3]


def _scale_bits(scale: float, number: int, keys: Keys) -> int:
    pattern = int(np.array(min(scale, float(LARGEST)), np.float32).view(np.uint32))
    chance = int(hash_pair(np.array([number * BLOCK + BLOCK // 2]), keys)[0][0]) & 0x7FFF
    return min((pattern >> 15) + int(pattern & 0x7FFF > chance), 0xFEFF)


def encode_streams(
    x: Vector, windows: Array, streams: Array, power: int, word: int, states: int, contract: bool,
    plan: tuple[Array, ...], known: tuple[Array, ...], curve: tuple[Any, ...], within: float, notes: Array,
    room: Array, found: Array, begin: int, end: int,
) -> bool:  # fmt: skip
    """As the kernel of this name."""
    keys = round_keys(word, 0)
    for s in range(begin, end):
        first, last = map(int, streams[s, :2])
        y = _rotate_stream(x, windows, first, last, power, keys).reshape(-1, COLUMNS)
        own = tuple(part[first:last] for part in plan)
        groups = _searched(y, windows[first:last], own, power, states, contract, known, curve, within)
        for number, group in enumerate(groups, first):
            at = SEED_BYTES + 2 * number
            notes[at : at + 2] = np.array([_scale_bits(group.scale, number, keys)], "<u2").view(np.uint8)
        message = notes[streams[s, 2] : streams[s, 3]].tobytes()[:HIDDEN_BYTES]
        tables = np.repeat(own[1], [len(group.v) for group in groups])
        words = _written(np.concatenate([group.v for group in groups]), tables, known[4], message)
        origin = int(windows[first, 0]) + s * ROOM
        room[origin : origin + len(words)] = words[::-1]
        found[s] = len(words), sum((group.error for group in groups), 0.0)
    return True


class _Group(NamedTuple):
    v: Array
    scale: float
    error: float
    bits: float


def _searched(
    y: Array, windows: Array, plan: tuple[Array, ...], power: int, states: int, contract: bool,
    known: tuple[Array, ...], curve: tuple[Any, ...], within: float,
) -> list[_Group]:  # fmt: skip
    """Search the numbers of a stream, and its last quarter again with other knobs if the bits deviate from the plan."""
    _, classes, knob, planned = plan
    edges = np.concatenate([[0], np.cumsum(windows[:, 2])])
    count, wanted = len(windows), sum(planned.tolist(), 0.0)
    tail = max(g for g in range(count) if g == 0 or 4 * (edges[-1] - edges[g]) >= edges[-1])
    metrics = np.full((states, COLUMNS), 8192, np.int16)
    metrics[0] = 0
    before, choices = [metrics] * (count + 1), [np.empty(0)] * count
    goal = got = change = earlier = 0.0
    base, shares, groups = knob, [0.0] * count, list[_Group]()
    for turn in range(_TURNS):
        parts = [slice(a // COLUMNS, b // COLUMNS) for a, b in pairwise(edges)]
        settings = [_setting(g, windows, power, plan, known) for g in range(count)]
        scaled = [y[part] * setting[1] for part, setting in zip(parts, settings, strict=True)]
        for g in range(tail if turn else 0, count):
            costs = _costs(scaled[g], *settings[g][2:])
            before[g + 1], choices[g] = _extended(before[g], costs, parts[g].start, states)
        state, groups = before[-1].argmin(0), list[_Group]()
        for g in range(count - 1, -1, -1):
            path, state = _classes(choices[g], state, states)
            groups.insert(0, _group(scaled[g], path, settings[g], contract, int(classes[g]), float(knob[g]), known))
        total, free = (sum((group.bits for group in part), 0.0) for part in (groups, groups[tail:]))
        if abs(total - wanted) <= max(within * wanted, _SLACK) or turn == _TURNS - 1 or not free > 0:
            break
        if turn == 0:
            base, shares, goal = (
                knob.copy(),
                [group.bits for group in groups],
                max(free + wanted - total, _LEAST * free),
            )
            earlier, got, change = 0.0, free, _FIRST * (goal / free - 1)
        else:
            slope = max((free - got) / (change - earlier), _FLATTEST * goal)
            earlier, got, change = change, free, change + (goal - free) / slope
        for g in range(tail, count):
            if classes[g] > 0:
                knob[g] = nudged(classes[g], base[g], change * (shares[g] / windows[g, 2]), *curve)  # type: ignore[no-untyped-call]
    return groups


def _group(
    y: Array, path: Array, setting: tuple[float, Any, Any, Array], contract: bool, k: int, knob: float, known: Any
) -> _Group:
    unit, _, levels, biases = setting
    v, q = _numbers(y, path, levels, biases, int(known[2][k]))
    paid = biases[v + 3] if levels is not None else np.zeros_like(y)
    products = [np.cumsum(a[::-1], axis=0, dtype=np.float32)[-1] for a in (y * q, q * q, y * y, paid)]
    dot, square, energy, bias = (sum(map(float, product), 0.0) for product in products)
    scale = 0.0 if dot <= 0 else dot / square if contract else energy / dot
    error = (energy - 2 * scale * dot + scale * scale * square) * unit * unit
    fine = known[3][k, 0] * y.size + known[3][k, 1] * square
    return _Group(v, scale * unit, error, 0.0 if k == 0 else bias / knob if levels is not None else float(fine))


def _setting(g: int, windows: Array, power: int, plan: Any, known: Any) -> tuple[float, Any, Any, Array]:
    """Unit, factor from a rotated coordinate to units, levels (None: all whole numbers) and costs of a group."""
    sigma, k, knob, _ = (part[g] for part in plan)
    coarse = k < len(known[0])
    unit = sigma if coarse else sigma / knob
    factor = _FLOAT(2.0**power / (int(windows[g, 1]) * unit)) if k > 0 else _FLOAT(0)
    biases = known[1][k] * _FLOAT(knob) if coarse else np.empty(0, np.float32)
    return float(unit), factor, known[0][k] if coarse else None, biases


def _written(v: Array, tables: Array, writing: Array, message: bytes) -> list[int]:
    """The words of a stream. The last row is written first."""
    bits = int.from_bytes(message, "little")
    x = np.array([_LOWEST + ((bits >> (15 * lane)) & (_LOWEST - 1)) for lane in range(COLUMNS)])
    backward: list[int] = []
    for row in range(len(v) - 1, -1, -1):
        entry = writing[int(tables[row]) * 2 * MIDDLE + MIDDLE + v[row].astype(np.int64)].astype(np.int64)
        count, start = entry & 0x1FFF, entry >> 13
        full = x >= count << 19
        backward += (x[full] & 0xFFFF)[::-1].tolist()
        x = np.where(full, x >> 16, x)
        x = (x // count) * CODES + start + x % count
    for state in x[::-1].tolist():
        backward += [state >> 16, state & 0xFFFF]
    return backward[::-1]


def decode_streams(
    data: Array, ends: Array, windows: Array, streams: Array, classes: Array, states: int, reading: Array, v: Array,
    notes: Array, begin: int, end: int,
) -> bool:  # fmt: skip
    """As the kernel of this name."""
    first, last, book = _TAPS[states]
    for s in range(begin, end):
        words = data[ends[s] : ends[s + 1]].astype(np.int64)
        x, at, path = (
            words[0 : 2 * COLUMNS : 2] | (words[1 : 2 * COLUMNS : 2] << 16),
            2 * COLUMNS,
            np.zeros(COLUMNS, np.int64),
        )
        if x.min() < _LOWEST or x.max() >= 1 << 31:
            return False
        for g in range(streams[s, 0], streams[s, 1]):
            origin = int(windows[g, 0])
            for row in range(origin, origin + int(windows[g, 2]), COLUMNS):
                c = (path >> (book - 1)) & 1
                entry = reading[int(classes[g]) * 2 * CODES + (c << 12) + (x & 4095)].astype(np.int64)
                x = ((entry & 4095) + 1) * (x >> 12) + ((entry >> 12) & 4095)
                short = x < _LOWEST
                taken = words[at : at + int(short.sum())]
                if taken.size < short.sum():
                    return False
                x[short] = (x[short] << 16) | taken
                at += taken.size
                number = entry >> 24
                v[row : row + COLUMNS] = 2 * number + c - MIDDLE
                u = (number ^ (path >> (first - 1)) ^ (path >> (last - 1))) & 1
                path = ((path << 1) | u) & (states - 1)
        if at != words.size or x.max() >= 2 * _LOWEST:
            return False
        bits = sum((int(state) - _LOWEST) << (15 * lane) for lane, state in enumerate(x))
        message = bits.to_bytes(HIDDEN_BYTES, "little")
        count = min(HIDDEN_BYTES, int(streams[s, 3] - streams[s, 2]))
        notes[streams[s, 2] : streams[s, 2] + count] = np.frombuffer(message[:count], np.uint8)
        if any(message[count:]):
            return False
    return True


def apply_streams(
    target: Vector, v: Array, windows: Array, streams: Array, classes: Array, scales: Array, levels: Array, word: int,
    mode: int, factor: float, begin: int, end: int,
) -> bool:  # fmt: skip
    """As the kernel of this name."""
    keys = round_keys(word, 0)
    power = min(max(int(scales.max() >> 8) - 127, -126), 127)
    later = np.empty(0, np.float32)
    for number in range(int(streams[end - 1, 1]) - 1, int(streams[begin, 0]) - 1, -1):
        first, size, count = map(int, windows[number])
        scale = (scales[number : number + 1].astype(np.uint32) << np.uint32(15)).view(np.float32)[0]
        unit = scale * (_FLOAT(2.0**-power) * _FLOAT(1.0 / size))
        numbers, k = v[first : first + count], int(classes[number])
        values = (levels[k][numbers + 3] if k < len(levels) else numbers.astype(np.float32)) * unit
        rotated = np.concatenate([values, later * _FLOAT(1.0 / size)]).reshape(-1, COLUMNS)
        block = rotate_back(rotated, 1, True, number * BLOCK, keys).ravel()
        overlap = int(windows[number - 1, :2].sum()) - first if number > 0 else 0
        later = block[:overlap]
        with np.errstate(over="ignore"):
            rest = block[overlap : target.size - first] * _FLOAT(2.0**power)
        apply_values(target[first + overlap : min(first + size, target.size)], rest, mode, factor)
    return True
