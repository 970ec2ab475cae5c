"""The code tables of `trellis`, the windows of a vector, and the choice of a table for each group. Without Numba.

The file tables.json holds the tables. scripts/make_trellis_tables.py writes it. Decoding uses only its whole numbers,
so every machine has the same tables. Table 0 sends nothing, for a group of zeros. Then come the coarse tables with
seven levels each, then the fine ones, where a number is its own value. Each even number owns a count of 4096 codes,
and each odd number a count of another 4096, in the order of the numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel.params import Vector
from qafel.quantizers.kernels import BLOCK, CODES, COLUMNS, HIDDEN_BYTES, MIDDLE, SEED_BYTES

Table: TypeAlias = NDArray[np.int64]

_NARROWEST: Final = 256  # coordinates of a window
_GROUPS: Final = 16  # of a stream, at least
_LEVEL_UNIT: Final = 1024
_BITS_OF_E: Final = 1.4426950408889634  # log₂ e
_NEVER: Final = 1e4  # bits; more than any encoder spends
_FAINT: Final = 2.0**-110  # relative to the largest σ
_PULL: Final = 4.0  # λ must move this many times the distance between tables for the rate to follow
_NOTHING: Final = {
    "rate": 0.0, "error": math.inf, "place": 0.0, "lambda": 1.0, "levels": [0] * 7,
    "counts": [0, 0, 0, CODES, CODES, 0, 0], "bits": [_NEVER, _NEVER, _NEVER, 0.0, 0.0, _NEVER, _NEVER],
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """All tables for one number of states, the lowest rate first.

    rates     bits per coordinate of N(0, σ²)
    errors    ‖Q(x) − x‖² / ‖x‖² of the unbiased Q
    places    the right σ for a table, over a common unit, see `share_out`
    knobs     λ of a coarse table, σ/step of a fine one
    levels    of coarse tables: the values of the numbers −3 … 3, in units of σ
    bits      of coarse tables: the bits of these numbers
    reach     the largest number
    prices    of fine tables: a and b; a number v takes about a + b·v² bits
    writing   for every table and number from −256: its count, and its first code · 2¹³
    reading   for every table and code, even numbers first: count − 1, place within it · 2¹², (⌊v/2⌋ + 128) · 2²⁴
    """

    rates: NDArray[np.float64]
    errors: NDArray[np.float64]
    places: NDArray[np.float64]
    knobs: NDArray[np.float64]
    levels: Vector
    bits: Vector
    reach: Table
    prices: NDArray[np.float64]
    writing: NDArray[np.uint32]
    reading: NDArray[np.uint32]


@lru_cache(2)
def tables_for(states: int) -> Tables:
    """The tables for 8 or for 32 states."""
    text = resources.files("qafel.quantizers.kernels").joinpath("tables.json").read_text()
    rows: list[dict[str, Any]] = [_NOTHING, *json.loads(text)[str(states)]]
    coarse = [row for row in rows if "levels" in row]
    counts = np.zeros((len(rows), 2 * MIDDLE), np.int64)
    reach = np.array([len(row["counts"]) // 2 for row in rows])
    for row, most, into in zip(rows, reach, counts, strict=True):
        into[MIDDLE - most : MIDDLE + most + 1] = row["counts"]
    return Tables(
        rates=np.array([row["rate"] for row in rows]),
        errors=np.array([row["error"] for row in rows]),
        places=np.array([row["place"] for row in rows]),
        knobs=np.array([row.get("lambda", row.get("ratio")) for row in rows]),
        levels=np.array([row["levels"] for row in coarse], np.float32) / np.float32(_LEVEL_UNIT),
        bits=np.array([row["bits"] for row in coarse], np.float32),
        reach=reach,
        prices=np.array([_prices(row) for row in rows]),
        writing=_writing(counts),
        reading=_reading(counts),
    )


def _prices(row: dict[str, Any]) -> list[float]:
    """The counts are those of a Gaussian, so bits grow with v². `rate` is their mean at the usual ‖v‖²."""
    if "ratio" not in row:
        return [0.0, 0.0]
    slope = _BITS_OF_E / (2 * (row["ratio"] ** 2 + 0.26))
    return [row["rate"] - slope * row["square"], slope]


def _writing(counts: Table) -> NDArray[np.uint32]:
    starts = np.empty_like(counts)
    for parity in range(2):
        part = counts[:, parity::2]
        starts[:, parity::2] = np.cumsum(part, axis=1) - part
    return (counts | (starts << 13)).astype(np.uint32).ravel()


def _reading(counts: Table) -> NDArray[np.uint32]:
    result = np.empty((len(counts), 2, CODES), np.uint32)
    for row, into in zip(counts, result, strict=True):
        for parity in range(2):
            part = row[parity::2]
            inside = np.arange(CODES) - np.repeat(np.cumsum(part) - part, part)
            into[parity] = (np.repeat(part, part) - 1) | (inside << 12) | (np.repeat(np.arange(part.size), part) << 24)
    return result.ravel()


class Cut(NamedTuple):
    """The windows, groups and streams of a vector.

    windows     a row each: first coordinate, coordinates of the window, coordinates of its group
    streams     a row each: first group, end of its groups, first byte and end of its notes
    plain       the bytes of the notes that a message holds openly; the others are hidden in the coders
    padded      coordinates with the padding of the last row
    head_bytes  bytes before the words: numbers of tables, plain notes, lengths of all streams except the last

    The notes are the seed, and 16 bits for the scale of every group.
    """

    windows: Table
    streams: Table
    plain: Table
    padded: int
    head_bytes: int


@lru_cache(256)
def cut(size: int) -> Cut:
    """Cut a vector into windows of 4096, or of the largest power of two that fits. A last window takes the rest.

    That window is a power of two as well, so it overlaps its neighbour: it rotates some rotated coordinates again. The
    whole is still a rotation, and only the last row is padded. A group holds the coordinates that a window sends, and a
    stream holds the groups that are searched and coded together.
    """
    padded = -(-size // COLUMNS) * COLUMNS
    width = min(BLOCK, 1 << (padded.bit_length() - 1))
    full, rest = divmod(padded, width)
    rows = [[number * width, width, width] for number in range(full)]
    if rest:
        last = max(_NARROWEST, 1 << (rest - 1).bit_length())
        rows[-1][2] -= last - rest
        rows.append([padded - last, last, last])
    edges = np.array([*range(0, max(1, full // _GROUPS) * _GROUPS, _GROUPS), len(rows)])
    notes = SEED_BYTES + 2 * edges
    notes[0] = 0
    hidden = np.concatenate([np.arange(a, min(a + HIDDEN_BYTES, b)) for a, b in pairwise(notes)])
    streams = np.stack([edges[:-1], edges[1:], notes[:-1], notes[1:]], axis=1)
    plain = np.setdiff1d(np.arange(notes[-1]), hidden)
    head_bytes = len(rows) + plain.size + 4 * (len(streams) - 1)
    return Cut(np.array(rows, np.int64), streams, plain, padded, head_bytes)


def spread(sigmas, windows):  # type: ignore[no-untyped-def]
    """From energies to σ of every group. Returns ‖x‖². If windows overlap, σ is a mean over rotations.

    A group far below the largest counts as zero: float32 cannot hold both in one unit. Kernels compile this function;
    the NumPy path calls it.
    """
    total, count = 0.0, sigmas.size
    for energy in sigmas:
        total += energy
    if count > 1:
        width = windows[count - 2, 1]
        moved = sigmas[count - 2] * ((width - windows[count - 2, 2]) / width)
        sigmas[count - 2] -= moved
        sigmas[count - 1] += moved
    most = 0.0
    for group in range(count):
        sigmas[group] = math.sqrt(sigmas[group] / windows[group, 2])
        most = max(most, sigmas[group])
    for group in range(count):
        if sigmas[group] < _FAINT * most:
            sigmas[group] = 0.0
    return total


def share_out(sigmas, windows, places, rates, knobs, coarse, target, classes, knob, planned):  # type: ignore[no-untyped-def]
    """Choose a table and a knob for every group, so that group g takes planned[g] bits and all take `target` bits.

    With e the relative error of the unbiased Q at some rate, the sum of all errors is least if σ²·(e² + e) is the same
    in all groups. So a table has the place 1/√(e² + e), and one factor, found by bisection, maps all σ to places.
    Kernels compile this function; the NumPy path calls it.
    """
    count = places.size
    most, least = 0.0, math.inf
    for sigma in sigmas:
        if sigma > 0:
            most, least = max(most, sigma), min(least, sigma)
    low, high = (places[1] / most, places[count - 1] / least) if most > 0 else (1.0, 1.0)
    for _ in range(21):
        factor, total = math.sqrt(low) * math.sqrt(high), 0.0
        for group in range(sigmas.size):
            classes[group], knob[group], planned[group] = 0, 1.0, 0.0
            if sigmas[group] > 0:
                place = min(max(sigmas[group] * factor, places[1]), places[count - 1])
                below, above = 1, count - 1
                while above - below > 1:
                    middle = (below + above) // 2
                    below, above = (middle, above) if places[middle] <= place else (below, middle)
                share = (place - places[below]) / (places[above] - places[below])
                planned[group] = windows[group, 2] * (rates[below] + share * (rates[above] - rates[below]))
                total += planned[group]
                nearest = above if share > 0.5 else below
                between = knobs[below] + share * (knobs[above] - knobs[below])
                pull = 0.0 if below == coarse else _PULL if nearest <= coarse else 1.0
                classes[group], knob[group] = nearest, knobs[nearest] + pull * (between - knobs[nearest])
        if total < target:
            low = factor
        else:
            high = factor


def nudged(k, knob, change, rates, knobs, coarse):  # type: ignore[no-untyped-def]
    """The knob for about `change` more bits per coordinate in the same table."""
    low, high = (1, coarse) if k <= coarse else (coarse + 1, rates.size - 1)
    a, b = max(k - 1, low), min(k + 1, high)
    pull = _PULL if k <= coarse else 1.0
    moved = knob + pull * change * (knobs[b] - knobs[a]) / (rates[b] - rates[a])
    return min(max(moved, 0.5 * knobs[k]), 2.0 * knobs[k])
