"""Matrix products as rows of tiles, C = A·B or C += A·B, float32, where B is packed.

A packed matrix is cut into panels of `PANEL` columns, each of which lies in memory row after row. What is added to a
number of C is one chain of multiply-adds in the order of the inner index, whatever the sizes and the processor's
registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils

from qafel.compiled import KERNEL, WIDE, WIDE_FLOATS, call, intrinsic, multiply_add, place, spread, vector

PANEL = WIDE
"""How many columns a panel has."""

ROWS = WIDE // 4
"""The sums of so many rows and a factor stay in registers."""


@njit(**KERNEL)
def pack(b):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A matrix as panels of its columns, (panels, rows, columns of a panel); zeros fill the last."""
    rows, columns = b.shape
    panels = np.empty((-(-columns // PANEL), rows, PANEL), np.float32)
    for p in range(len(panels)):
        some = min(PANEL, columns - p * PANEL)
        for k in range(rows):
            panels[p, k, :some] = b[k, p * PANEL : p * PANEL + some]
            panels[p, k, some:] = 0
    return panels


@njit(**KERNEL)
def multiply(a, b):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A·B of any sizes, by the same tile: a library's sums may depend on where matrices lie in memory."""
    panels = pack(b)
    c = np.empty((len(a), PANEL * len(panels)), np.float32)
    set_product_(np.ascontiguousarray(a), 0, a.shape[1], 1, len(a), panels, c, 0, c.shape[1], False)
    return c[:, : b.shape[1]]


@njit(**KERNEL)
def set_product_(a, a_at, a_row, a_column, rows, b, c, c_at, c_row, add):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set `rows` rows of C to A·B, or `add` it. `*_at` is where a matrix begins in its array, `*_row` how far apart its
    rows are.

    Panels are the outer loop: B may be larger than the cache, and A, a batch, stays there. Tiles are of one height, but
    for the last: ten rows are five and five, as few rows make poor use of the registers.
    """
    panels, depth, width = b.shape
    tiles = -(-rows // ROWS)
    height = -(-rows // tiles)
    for p in range(panels):
        for r in range(0, rows, height):
            from_a, to, some = a_at + r * a_row, c_at + r * c_row + p * width, min(height, rows - r)
            tile(a, from_a, a_row, a_column, b, p * depth * width, width, c, to, c_row, some, depth, add)


@njit(**KERNEL)
def set_outer_(a, a_row, x, c, add):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set C to Aᵀ·X, or `add` it: the sum over X's rows of the products with the same row of A.

    C's rows are A's columns, a multiple of `ROWS`; they are the outer loop, as few of A's columns stay in the cache.
    """
    (height, width), panels = c.shape, pack(x)
    depth = len(x)
    for r in range(0, height, ROWS):
        for p in range(len(panels)):
            to = r * width + p * PANEL
            tile(a, r, 1, a_row, panels, p * depth * PANEL, PANEL, c, to, width, ROWS, depth, add)


@intrinsic
def tile(_, a, a_at, a_row, a_column, b, b_at, b_row, c, c_at, c_row, rows, depth, add):  # type: ignore[no-untyped-def]
    """Set `rows` × `PANEL` numbers of C to the product of as many rows of A with `PANEL` columns of B, or `add` it.

    Arrays come with the place of a matrix's first number, counted as if they were flat, and with how far apart its rows
    are; A also with how far apart its columns are, so that its transpose costs nothing. There are at most `ROWS` rows,
    with a loop of instructions for each number of them. What is set or added is one chain of multiply-adds in the order
    of the inner index, of which there are `depth`.

    LLVM does not find such a tile in a loop of numbers. It reaches 97 % of what the processor multiplies and adds at
    most, with 32 rows as with thousands; see docs/decisions/neural-lstm.md.
    """
    word = types.intp
    places = (a, word, word, word, b, word, word, c, word, word)
    return types.void(*places, word, word, types.boolean), _emit_tiles


def _emit_tiles(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write a tile for each number of rows, and the choice between them."""
    *places, rows, depth, add = arguments
    after = builder.append_basic_block("tiled")
    choice = builder.switch(rows, after)
    for count in range(1, ROWS + 1):
        block = builder.append_basic_block("tile")
        choice.add_case(rows.type(count), block)
        builder.position_at_end(block)
        _emit_tile(context, builder, signature, (*places, depth, add), count)
        builder.branch(after)
    builder.position_at_end(after)
    return context.get_dummy_value()


def _emit_tile(context: Any, builder: Any, signature: Any, arguments: Any, rows: int) -> None:
    """Write the tile's instructions: for each inner index PANEL numbers of B, and a multiply-add of them per row."""
    a, a_at, a_row, a_column, b, b_at, b_row, c, c_at, c_row, depth, add = arguments
    a_type, b_type, c_type = (signature.args[i] for i in (0, 4, 7))
    word, floats = context.get_value_type(types.intp), vector(WIDE_FLOATS)

    def row_of(at: Any, step: Any, number: Any) -> Any:
        return builder.add(at, builder.mul(step, number))

    def lanes_of(array_type: Any, array: Any, at: Any) -> Any:
        return place(context, builder, array_type, array, at, WIDE_FLOATS)

    factors = context.make_array(a_type)(context, builder, a).data
    a_rows = [row_of(a_at, a_row, word(r)) for r in range(rows)]
    c_rows = [lanes_of(c_type, c, row_of(c_at, c_row, word(r))) for r in range(rows)]
    zero = ir.Constant(floats, None)
    sums = [cgutils.alloca_once(builder, floats) for _ in range(rows)]  # type: ignore[no-untyped-call]
    for total in sums:
        builder.store(zero, total)
    for row in c_rows:
        _prefetch(builder, row)
    with cgutils.for_range(builder, depth) as loop:
        columns = builder.load(lanes_of(b_type, b, row_of(b_at, b_row, loop.index)), align=4)
        for start, total in zip(a_rows, sums, strict=True):
            factor = builder.load(builder.gep(factors, [row_of(start, a_column, loop.index)]))
            factor = spread(builder, factor, WIDE_FLOATS)
            builder.store(multiply_add(builder, factor, columns, builder.load(total)), total)
    with builder.if_then(add):
        for row, total in zip(c_rows, sums, strict=True):
            builder.store(builder.fadd(builder.load(row, align=4), builder.load(total)), total)
    for row, total in zip(c_rows, sums, strict=True):
        builder.store(builder.load(total), row, align=4)


def _prefetch(builder: Any, lanes: Any) -> None:
    """Ask for the `lanes` in memory, which are written later."""
    word, first = cgutils.int32_t, builder.bitcast(lanes, cgutils.voidptr_t)
    for line in range(0, 4 * PANEL, 64):
        where = builder.gep(first, [word(line)])
        call(builder, "llvm.prefetch.p0", ir.VoidType(), where, word(1), word(3), word(1))
