"""A few neighbouring floats as one value in compiled loops: what the processor adds and multiplies at once.

    load(array, i)         the LANES numbers of a flat float32 array from index i on
    store(array, i, v)     write them
    spread(x)              the same number in every lane
    fma(a, b, c)           a·b + c
    choose(a, b, x, y)     in each lane x where a > b, else y
    v + w, v - w, v * w    lane by lane

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


def _has_wide_registers() -> bool:
    settings: Any = config
    if settings.CPU_NAME:  # compiled for another processor than this one
        return "+avx512f" in (settings.CPU_FEATURES or "")
    return bool(get_host_cpu_features().get("avx512f"))


LANES = 32 if _has_wide_registers() else 16
"""Two registers of AVX-512, two of AVX2 or four of NEON: four sums and a factor stay in registers."""


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
        one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), arguments[0], cgutils.int32_t(0))
        every = ir.Constant(ir.VectorType(cgutils.int32_t, LANES), None)
        return builder.shuffle_vector(one, one, every)

    return _LANES(types.float32), generate


@intrinsic
def fma(_context, a, b, c):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        name = f"llvm.fmuladd.v{LANES}f32"
        function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        return builder.call(function, arguments)

    return _LANES(_LANES, _LANES, _LANES), generate


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
