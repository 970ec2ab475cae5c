"""Matrix products in tiles, C = A·B or C += A·B, in float32 with packed B.

A packed matrix consists of panels of `PANEL` columns, each stored row by row. Every number of C is one chain of
multiply-adds in the order of the inner index, independent of sizes and registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils

from qafel.compiled import KERNEL, WIDE, WIDE_FLOATS, call, intrinsic, multiply_add, place, spread, vector

PANEL = WIDE
"""Columns of a panel."""

ROWS = WIDE // 4
"""Rows of a tile: their sums and a factor fit in registers."""


@njit(**KERNEL)
def pack(b):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a matrix as panels, (panels, rows, columns of a panel). Zeros fill the last panel."""
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
    """Return A·B of any sizes. The sums of a library may depend on memory addresses; these do not."""
    panels = pack(b)
    c = np.empty((len(a), PANEL * len(panels)), np.float32)
    set_product_(np.ascontiguousarray(a), 0, a.shape[1], 1, len(a), panels, c, 0, c.shape[1], False)
    return c[:, : b.shape[1]]


@njit(**KERNEL)
def set_product_(a, a_at, a_row, a_column, rows, b, c, c_at, c_row, add):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set `rows` rows of C to A·B, or `add` it. `*_at` is the start of a matrix, `*_row` the distance of its rows.

    Panels are the outer loop: A, a batch, stays in the cache, while B may be larger. Tiles have equal heights: ten rows
    are five and five, because few rows use the registers poorly.
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
    """Set C to Aᵀ·X, or `add` it: the sum over rows of the products of the same rows of A and X.

    C's rows are A's columns, a multiple of `ROWS`. They are the outer loop, so that few columns of A stay in the cache.
    """
    (height, width), panels = c.shape, pack(x)
    depth = len(x)
    for r in range(0, height, ROWS):
        for p in range(len(panels)):
            to = r * width + p * PANEL
            tile(a, r, 1, a_row, panels, p * depth * PANEL, PANEL, c, to, width, ROWS, depth, add)


@intrinsic
def tile(_, a, a_at, a_row, a_column, b, b_at, b_row, c, c_at, c_row, rows, depth, add):  # type: ignore[no-untyped-def]
    """Set `rows` × `PANEL` numbers of C to the product of rows of A with `PANEL` columns of B, or `add` it.

    `*_at` is the flat index of a matrix's first number and `*_row` the distance of its rows. `a_column` is the distance
    of A's columns, so a transpose needs no copy. `rows` is at most `ROWS`, with a separate loop for each value. Each
    number is one chain of `depth` multiply-adds in the order of the inner index.

    LLVM does not generate such a tile from a plain loop. The tile reaches 97 % of the processor's peak.
    """
    word = types.intp
    places = (a, word, word, word, b, word, word, c, word, word)
    return types.void(*places, word, word, types.boolean), _emit_tiles


def _emit_tiles(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit a tile for each number of rows, and a switch between them."""
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
    """Emit the tile: for each inner index, load PANEL numbers of B and multiply-add them to each row."""
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
    """Prefetch the `lanes`, which are written later."""
    word, first = cgutils.int32_t, builder.bitcast(lanes, cgutils.voidptr_t)
    for line in range(0, 4 * PANEL, 64):
        where = builder.gep(first, [word(line)])
        call(builder, "llvm.prefetch.p0", ir.VoidType(), where, word(1), word(3), word(1))
