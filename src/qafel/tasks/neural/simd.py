"""A few neighbouring floats as one value in compiled loops: what the processor adds and multiplies at once.

    load(array, i)         the LANES numbers of a flat float32 array from index i on
    store(array, i, v)     write them
    spread(x)              the same number in every lane
    fma(a, b, c)           a·b + c
    choose(a, b, x, y)     in each lane x where a > b, else y
    v + w, v - w, v * w    lane by lane
    tile(...)              a product of matrices: up to ROWS rows times LANES columns, all of it in registers

Numba vectorises a loop when it can show that arrays do not overlap, which it tests at every start of the loop: too
dear for 32 channels. With this type the loop is written in vectors at once, and a few of them stay in registers. Lanes
never mix, so a sum has one order, whatever the processor and wherever an array begins in memory.

Indices are not checked: the loops that use this are.
"""

from __future__ import annotations

import operator
from typing import Any, final

from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

intrinsic: Any = _intrinsic  # its result is called without the context, which its types do not say
KERNEL: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
"""How loops are compiled."""


def _has_wide_registers() -> bool:
    settings: Any = config
    if settings.CPU_NAME:  # compiled for another processor than this one
        return "+avx512f" in (settings.CPU_FEATURES or "")
    return bool(get_host_cpu_features().get("avx512f"))


LANES, ROWS = (32, 8) if _has_wide_registers() else (16, 4)
"""Two registers of AVX-512, two of AVX2 or four of NEON; the sums of so many rows and a factor stay in registers."""


@final
class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__("Lanes")


_LANES = _LanesType()
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)  # type: ignore[no-untyped-call]


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Where the lanes from `index` on begin in memory."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _FLOATS.as_pointer())


@intrinsic
def load(_context, array, index):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(_place(context, builder, signature.args[0], *arguments), align=4)

    return _LANES(array, types.intp), generate


@intrinsic
def store(_context, array, index, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        where, lanes = arguments[:2], arguments[2]
        builder.store(lanes, _place(context, builder, signature.args[0], *where), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@intrinsic
def spread(_context, number):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return _spread(builder, *arguments)

    return _LANES(types.float32), generate


def _spread(builder: Any, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), number, cgutils.int32_t(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(cgutils.int32_t, LANES), None))


@intrinsic
def fma(_context, a, b, c):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return _fma(builder, *arguments)

    return _LANES(_LANES, _LANES, _LANES), generate


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")  # type: ignore[no-untyped-call]
    return builder.call(function, [a, b, c])


@intrinsic
def choose(_context, a, b, x, y):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        a, b, x, y = arguments
        return builder.select(builder.fcmp_ordered(">", a, b), x, y)

    return _LANES(_LANES, _LANES, _LANES, _LANES), generate


def _operator(symbol: Any, instruction: str) -> None:
    @intrinsic
    def compute(_context, a, b):  # type: ignore[no-untyped-def]
        def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            return getattr(builder, instruction)(*arguments)

        return _LANES(_LANES, _LANES), generate

    @overload(symbol, inline="always")
    def overloaded(a, b):  # type: ignore[no-untyped-def]
        if a is _LANES and b is _LANES:
            return lambda a, b: compute(a, b)  # noqa: PLW0108 -- Numba takes a function of these names
        return None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")


@intrinsic
def tile(_, a, a_at, a_row, a_column, b, b_at, b_row, c, c_at, c_row, rows, depth, add):  # type: ignore[no-untyped-def]
    """Set `rows` × `LANES` numbers of C to the product of as many rows of A with `LANES` columns of B, or `add` it.

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
    """Write the tile's instructions: for each inner index LANES numbers of B, and a multiply-add of them per row."""
    a, a_at, a_row, a_column, b, b_at, b_row, c, c_at, c_row, depth, add = arguments
    a_type, b_type, c_type = (signature.args[i] for i in (0, 4, 7))
    word = context.get_value_type(types.intp)

    def row_of(at: Any, step: Any, number: Any) -> Any:
        return builder.add(at, builder.mul(step, number))

    factors = context.make_array(a_type)(context, builder, a).data
    a_rows = [row_of(a_at, a_row, word(r)) for r in range(rows)]
    c_rows = [_place(context, builder, c_type, c, row_of(c_at, c_row, word(r))) for r in range(rows)]
    zero = ir.Constant(_FLOATS, None)
    sums = [cgutils.alloca_once(builder, _FLOATS) for _ in range(rows)]  # type: ignore[no-untyped-call]
    for total in sums:
        builder.store(zero, total)
    for place in c_rows:
        _prefetch(builder, place)
    with cgutils.for_range(builder, depth) as loop:
        columns = builder.load(_place(context, builder, b_type, b, row_of(b_at, b_row, loop.index)), align=4)
        for start, total in zip(a_rows, sums, strict=True):
            factor = builder.load(builder.gep(factors, [row_of(start, a_column, loop.index)]))
            builder.store(_fma(builder, _spread(builder, factor), columns, builder.load(total)), total)
    with builder.if_then(add):
        for place, total in zip(c_rows, sums, strict=True):
            builder.store(builder.fadd(builder.load(place, align=4), builder.load(total)), total)
    for place, total in zip(c_rows, sums, strict=True):
        builder.store(builder.load(total), place, align=4)


def _prefetch(builder: Any, place: Any) -> None:
    """Ask for the lanes at `place`, which are written later."""
    pointer, word = cgutils.voidptr_t, cgutils.int32_t
    kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
    first = builder.bitcast(place, pointer)
    for line in range(0, 4 * LANES, 64):
        builder.call(function, [builder.gep(first, [word(line)]), word(1), word(3), word(1)])
