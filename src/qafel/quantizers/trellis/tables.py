"""What `trellis` agrees on beforehand: code tables, how a vector is cut, which table a group takes. Without Numba.

The tables are in tables.json, made by scripts/make_trellis_tables.py; all that decoding needs of them is whole
numbers, so that every machine holds the same. Table 0 sends nothing, of a group of zeros. Then come the coarse ones,
with seven levels each, then the fine ones, in which a number stands for itself. Of 4096 codes every even number has its
count, of another 4096 every odd one; they begin where those of all lower numbers end.
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
_NEVER: Final = 1e4  # bits that no encoder pays
_NOTHING: Final = {
    "rate": 0.0, "error": math.inf, "place": 0.0, "lambda": 1.0, "levels": [0] * 7,
    "counts": [0, 0, 0, CODES, CODES, 0, 0], "bits": [_NEVER, _NEVER, _NEVER, 0.0, 0.0, _NEVER, _NEVER],
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """All tables for one number of states, the lowest rate first.

    rates     bits a coordinate of N(0, σ²)
    errors    ‖Q(x) − x‖² / ‖x‖² of the unbiased Q
    places    σ over a common unit at which a table is the right one, see kernels/sharing.py
    knobs     λ of a coarse table, σ/step of a fine one
    levels    of coarse tables: what the numbers −3 … 3 stand for, in units of σ
    bits      of coarse tables: what they cost
    reach     the largest number
    prices    of fine tables: a and b, where a number v takes about a + b·v² bits
    writing   for every table and number from −256 on: its count, and where its codes begin · 2¹³
    reading   for every table and code, first the even numbers': count − 1, place within it · 2¹², (⌊v/2⌋ + 128) · 2²⁴
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
    text = resources.files("qafel.quantizers.trellis").joinpath("tables.json").read_text()
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
    """The counts are those of a Gaussian, so bits grow with v², and `rate` is what they are at the usual ‖v‖²."""
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
    """How a vector is cut.

    windows     a row each: first coordinate, coordinates of the window, coordinates of its group
    streams     a row each: first group, end of its groups, first byte and end of its notes
    plain       which bytes of the notes stand in a message as they are; the others are hidden in the coders
    padded      coordinates with what fills up the last row
    head_bytes  what stands before the words: numbers of tables, plain notes, lengths of all streams but one

    The notes are the seed, and 16 bits for the scale of every group.
    """

    windows: Table
    streams: Table
    plain: Table
    padded: int
    head_bytes: int


@lru_cache(256)
def cut(size: int) -> Cut:
    """Windows of 4096, or of the largest power of two that fits; the last one takes what they leave over.

    It is a power of two too, so it takes some of its neighbour's, rotated, and rotates that again: the whole is a
    rotation, and nothing is padded but the last row. A group is what its window leaves to be sent, a stream is what
    is searched and coded together.
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
