"""Matrix products as one compiled tile: a few rows times one panel of columns, all of it in registers.

C += A·B, float32, where B is packed: cut into panels of `PANEL` columns, each of which lies in memory row after row. A
is anything with a stride for rows and one for columns, so that its transpose costs nothing. What is added to a number
of C is one chain of multiply-adds in the order of the inner index, whatever the sizes and the processor's registers.

LLVM does not find such a tile in a loop, so the tile is written in its vectors. It reaches 95 % of what the
processor multiplies and adds at most, with 32 rows as with thousands; see docs/decisions/neural-lstm.md.
"""

from __future__ import annotations

from typing import Any

import torch
from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import njit, types
from torch import Tensor
from torch.nn.functional import pad

from qafel.tasks.neural.simd import intrinsic

KERNEL: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


def _registers() -> tuple[int, int]:
    """How many numbers a vector register has, and how many rows of two registers leave some free for the factors."""
    features = get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 8
    return (8, 4) if features.get("avx") else (4, 4)


_LANES, _ROWS = _registers()
_VECTORS = 2
PANEL = _VECTORS * _LANES
"""How many columns a panel has."""


def pack(b: Tensor) -> Tensor:
    """A matrix as panels of its columns: (panels, rows, columns of a panel)."""
    return b.view(len(b), -1, PANEL).transpose(0, 1).contiguous()


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """A·B of any sizes, by the same tile: a library's sums may depend on where matrices lie in memory."""
    columns = b.shape[1]
    a, b = a.contiguous(), pack(pad(b, (0, -columns % PANEL)).contiguous())
    c = torch.zeros(len(a), PANEL * len(b))
    add_product_(a.detach().numpy(), 0, a.shape[1], 1, len(a), b.numpy(), c.numpy(), 0, c.shape[1])
    return c[:, :columns]


@intrinsic
def _tile(_, a, a_at, a_row, a_column, b, b_at, c, c_at, c_row, rows, depth):  # type: ignore[no-untyped-def]
    """Add to `rows` × `PANEL` numbers of C the product of as many rows of A with a panel of B.

    Arrays come with the place of their first number, counted as if they were flat. There are at most `_ROWS` rows, with
    a loop of instructions for each number of them, and `depth`, the inner index, is at least one.
    """
    word = types.intp
    return types.void(a, word, word, word, b, word, c, word, word, word, word), _emit_tiles


def _emit_tiles(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Write a tile for each number of rows, and the choice between them."""
    *others, rows, depth = args
    after = builder.append_basic_block("tiled")
    choice = builder.switch(rows, after)
    for count in range(1, _ROWS + 1):
        block = builder.append_basic_block("tile")
        choice.add_case(rows.type(count), block)
        builder.position_at_end(block)
        _emit_tile(context, builder, signature, (*others, depth), count)
        builder.branch(after)
    builder.position_at_end(after)
    return context.get_dummy_value()


def _emit_tile(context: Any, builder: Any, signature: Any, args: Any, rows: int) -> None:
    """Write the tile's instructions: one multiply-add per row and register for each inner index, then add to C."""
    a, a_at, a_row, a_column, b, b_at, c, c_at, c_row, depth = args
    word, vector = context.get_value_type(types.intp), ir.VectorType(ir.FloatType(), _LANES)
    arrays = ((signature.args[0], a, a_at), (signature.args[4], b, b_at), (signature.args[6], c, c_at))
    a, b, c = (builder.gep(context.make_array(kind)(context, builder, array).data, [at]) for kind, array, at in arrays)
    fused = f"llvm.fmuladd.v{_LANES}f32"
    multiply_add = builder.module.globals.get(fused)
    if multiply_add is None:
        multiply_add = ir.Function(builder.module, ir.FunctionType(vector, [vector] * 3), fused)
    nothing = ir.Constant(vector, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)

    def vectors(start: Any) -> list[Any]:
        places = (builder.gep(start, [word(_LANES * v)]) for v in range(_VECTORS))
        return [builder.bitcast(place, vector.as_pointer()) for place in places]

    def broadcast(place: Any) -> Any:
        first = builder.insert_element(nothing, builder.load(place), ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, nothing, everywhere)

    starts = [builder.gep(a, [builder.mul(a_row, word(r))]) for r in range(rows)]
    places = [place for r in range(rows) for place in vectors(builder.gep(c, [builder.mul(c_row, word(r))]))]
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    counters = [builder.phi(word) for _ in range(3)]
    running = [builder.phi(vector) for _ in places]
    k, in_a, in_b = counters
    panel = [builder.load(place, align=4) for place in vectors(builder.gep(b, [in_b]))]
    results = []
    for r in range(rows):
        factor = broadcast(builder.gep(starts[r], [in_a]))
        for v in range(_VECTORS):
            results.append(builder.call(multiply_add, [factor, panel[v], running[r * _VECTORS + v]]))
    following = [builder.add(k, word(1)), builder.add(in_a, a_column), builder.add(in_b, word(PANEL))]
    builder.cbranch(builder.icmp_signed("<", following[0], depth), loop, after)
    starting = [word(0)] * 3 + [ir.Constant(vector, None)] * len(places)
    for phi, first, then in zip(counters + running, starting, following + results, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, loop)
    builder.position_at_end(after)
    for place, result in zip(places, results, strict=True):
        builder.store(builder.fadd(builder.load(place, align=4), result), place, align=4)


@njit(**KERNEL)
def add_product_(a, a_at, a_row, a_column, rows, b, c, c_at, c_row):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add A·B to `rows` rows of C. `*_at` is where a matrix begins in its array, `*_row` how far apart its rows are.

    Panels are the outer loop: B may be larger than the cache, and A, a batch, stays there. Tiles are of one height, but
    for the last: ten rows are five and five, as few rows make poor use of the registers.
    """
    panels, depth, width = b.shape
    tiles = -(-rows // _ROWS)
    height = -(-rows // tiles)
    for p in range(panels):
        for r in range(0, rows, height):
            from_a, to, some = a_at + r * a_row, c_at + r * c_row + p * width, min(height, rows - r)
            _tile(a, from_a, a_row, a_column, b, p * depth * width, c, to, c_row, some, depth)


@njit(**KERNEL)
def add_outer_(a, a_row, x, panels, c):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add Aᵀ·X to C: the sum over X's rows of the products with the same row of A; `panels` is room for X, packed.

    C's rows are A's columns, a multiple of `_ROWS`; they are the outer loop, as few of A's columns stay in the cache.
    """
    (height, width), rows = c.shape, len(x)
    count = width // PANEL
    for p in range(count):
        for k in range(rows):
            start, to = p * PANEL, (p * rows + k) * PANEL
            for j in range(PANEL):
                panels[to + j] = x[k, start + j]
    for r in range(0, height, _ROWS):
        for p in range(count):
            _tile(a, r, 1, a_row, panels, p * rows * PANEL, c, r * width + p * PANEL, width, _ROWS, rows)
