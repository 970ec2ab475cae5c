"""Compiled loops: settings for Numba, its cache, and short vectors ("lanes") as values.

    load(array, i)            sixteen of a flat float32, int16, uint16, int32 or uint32 array from index i on
    load_wide(array, i)       WIDE of a flat float32 array: two registers of the processor
    store(array, i, v)        write them
    floats(x), words(n)       the same number in every lane: as float32, as int16, …
    longs(n), wide(x)         … as int32, as float32 in WIDE lanes
    as_floats, as_words,      one kind from another; to words the lowest bits, from floats the fraction cut off
    as_longs
    v + w, v - w, v * w       lane by lane; for floats also v / w, for words and longs also v & w, v | w, v ^ w,
                              v << w and v >> w (zeros come in)
    fma(a, b, c)              floats: a·b + c, rounded once where the processor can
    least(v, w), largest      lane by lane; of floats the first where one is NaN
    below(v, w)               words: minus one where v < w, else zero
    choose(mask, v, w)        v where the word is not zero, else w
    pushed(v, w)              words: v shifted up by one bit, and w's sign as the lowest bit
    nearest(v)                floats, rounded to the nearest whole number, halves to even
    mixed(v)                  floats times the 16 × 16 Hadamard matrix: butterflies of 1, 2, 4 and 8 apart
    gather(array, v)          what stands at these sixteen indices, as longs
    expand(array, i, mask)    words from index i on into the lanes of the mask, in order; zero in the others
    compress(v, mask)         the words in the lanes of the mask, the last lane first, side by side
    count(mask)               how many lanes the mask has

Numba vectorises a loop only if arrays do not overlap, and tests that at every start of the loop. This test is too slow
for 32 channels. With lanes a loop is written in vectors, and some of them stay in registers. LLVM maps them to the
registers of the CPU. Lanes mix only in `mixed`, so a sum has one order. Products and sums are fused only in `fma`;
without it every CPU computes the same bits. Indices are not checked.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

intrinsic: Any = _intrinsic  # its result is called without the context, unlike its type

# Python calls kernels. Inner functions are compiled into kernels only, which saves seconds.
KERNEL: Final[dict[str, Any]] = {"cache": True, "nogil": True, "error_model": "numpy"}
INNER: Final[dict[str, Any]] = {
    "nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip


def forget_stale_kernels(folder: Path) -> None:
    """Delete cached kernels of a folder that are older than any source file there, or than this one.

    Numba's cache notices a change in a kernel's file, but not in the files of its inner functions. With an old hash
    function, two machines would decode different numbers.
    """
    with suppress(OSError):
        newest = max(source.stat().st_mtime_ns for source in (Path(__file__), *folder.glob("*.py")))
        for index in (folder / "__pycache__").glob("*.nbi"):
            if index.stat().st_mtime_ns < newest:
                index.unlink(missing_ok=True)


def _has_wide_registers() -> bool:
    settings: Any = config
    if settings.CPU_NAME:  # compiled for another processor
        return "+avx512f" in (settings.CPU_FEATURES or "")
    return bool(get_host_cpu_features().get("avx512f"))


LANES: Final = 16
WIDE: Final = 32 if _has_wide_registers() else 16
"""Two registers of AVX-512, two of AVX2 or four of NEON."""

_ELEMENTS: Final = {types.float32: ir.FloatType(), types.int16: ir.IntType(16), types.int32: ir.IntType(32)}


@final
class _Lanes(types.Type):
    def __init__(self, element: Any, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(f"Lanes({element}, {lanes})")


_FLOATS, _WORDS, _LONGS = (_Lanes(element, LANES) for element in _ELEMENTS)
WIDE_FLOATS: Final = _Lanes(types.float32, WIDE)


def vector(kind: Any) -> Any:
    """The LLVM type of the lanes."""
    return ir.VectorType(_ELEMENTS[kind.element], kind.lanes)


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, vector(kind))  # type: ignore[no-untyped-call]


def place(context: Any, builder: Any, array_type: Any, array: Any, index: Any, kind: Any) -> Any:
    """The address of the lanes from `index`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector(kind).as_pointer())


def _loading(lanes: int) -> Any:
    @intrinsic
    def load(_context, array, index):  # type: ignore[no-untyped-def]
        width = array.dtype.bitwidth
        element = array.dtype if array.dtype == types.float32 else types.int16 if width == 16 else types.int32
        kind = _Lanes(element, lanes)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            array, index = arguments
            return builder.load(place(context, builder, signature.args[0], array, index, kind), align=2)

        return kind(array, types.intp), generate

    return load


load, load_wide = _loading(LANES), _loading(WIDE)


@intrinsic
def store(_context, array, index, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array, index, value = arguments
        builder.store(value, place(context, builder, signature.args[0], array, index, signature.args[2]), align=2)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


def spread(builder: Any, number: Any, kind: Any) -> Any:
    """Write the instructions that put a number into every lane."""
    one = builder.insert_element(ir.Constant(vector(kind), ir.Undefined), number, cgutils.int32_t(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(cgutils.int32_t, kind.lanes), None))


def _spreading(kind: Any) -> Any:
    @intrinsic
    def spreading(_context, number):  # type: ignore[no-untyped-def]
        def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            return spread(builder, arguments[0], kind)

        return kind(kind.element), generate

    return spreading


floats, words, longs, wide = (_spreading(kind) for kind in (_FLOATS, _WORDS, _LONGS, WIDE_FLOATS))


def _unary(result: Any, build: Any) -> Any:
    @intrinsic
    def compute(_context, value):  # type: ignore[no-untyped-def]
        def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            return build(builder, arguments[0])

        return result(value), generate

    return compute


def _converting(result: Any) -> Any:
    into = vector(result)

    def build(builder: Any, value: Any) -> Any:
        if result is _FLOATS:
            return builder.sitofp(value, into)
        if value.type == vector(_FLOATS):
            return builder.fptosi(value, into)
        return builder.trunc(value, into) if result is _WORDS else builder.sext(value, into)

    return _unary(result, build)


def call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Write the call of one of LLVM's functions."""
    kind = ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, values)


def _mixed(builder: Any, value: Any) -> Any:
    for stride in (1, 2, 4, 8):
        order = ir.Constant(ir.VectorType(cgutils.int32_t, LANES), [i ^ stride for i in range(LANES)])
        signs = ir.Constant(value.type, [-1.0 if i & stride else 1.0 for i in range(LANES)])
        value = builder.fadd(builder.shuffle_vector(value, value, order), builder.fmul(value, signs))
    return value


as_floats, as_words, as_longs = (_converting(kind) for kind in (_FLOATS, _WORDS, _LONGS))
nearest = _unary(_FLOATS, lambda builder, value: call(builder, "llvm.rint.v16f32", value.type, value))
mixed = _unary(_FLOATS, _mixed)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Write the instruction of `fma`."""
    return call(builder, f"llvm.fmuladd.v{a.type.count}f32", a.type, a, b, c)


@intrinsic
def fma(_context, a, b, c):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return multiply_add(builder, *arguments)

    return a(a, a, a), generate


def _less(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    if kind.element == types.float32:
        return builder.fcmp_ordered("<", a, b)
    return builder.icmp_signed("<", a, b)


@intrinsic
def least(_context, a, b):  # type: ignore[no-untyped-def]
    def generate(_context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        a, b = arguments
        return builder.select(_less(builder, signature.args[0], b, a), b, a)

    return a(a, a), generate


@intrinsic
def largest(_context, a, b):  # type: ignore[no-untyped-def]
    def generate(_context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        a, b = arguments
        return builder.select(_less(builder, signature.args[0], a, b), b, a)

    return a(a, a), generate


@intrinsic
def below(_context, a, b):  # type: ignore[no-untyped-def]
    kind = _Lanes(types.int16, a.lanes)

    def generate(_context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.sext(_less(builder, signature.args[0], *arguments), vector(kind))

    return kind(a, a), generate


@intrinsic
def choose(_context, mask, a, b):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        mask, a, b = arguments
        return builder.select(_lanes_of(builder, mask), a, b)

    return a(mask, a, a), generate


@intrinsic
def pushed(_context, a, b):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        a, b = arguments
        return call(builder, f"llvm.fshl.v{a.type.count}i16", a.type, a, b, ir.Constant(a.type, [1] * a.type.count))

    return a(a, a), generate


def _lanes_of(builder: Any, mask: Any) -> Any:
    return builder.icmp_signed("!=", mask, ir.Constant(mask.type, None))


@intrinsic
def gather(_context, array, indices):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        result = ir.Constant(vector(_LONGS), ir.Undefined)
        for lane in range(LANES):
            index = builder.zext(builder.extract_element(arguments[1], cgutils.int32_t(lane)), cgutils.intp_t)
            number = builder.load(builder.gep(data, [index]), align=4)
            result = builder.insert_element(result, number, cgutils.int32_t(lane))
        return result

    return _LONGS(array, _LONGS), generate


@intrinsic
def expand(_context, array, index, mask):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        lanes, zeros = _lanes_of(builder, arguments[2]), ir.Constant(vector(_WORDS), None)
        where = builder.gep(data, [arguments[1]])
        return call(builder, "llvm.masked.expandload.v16i16", zeros.type, where, lanes, zeros)

    return _WORDS(array, types.intp, _WORDS), generate


@intrinsic
def compress(_context, value, mask):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        order = ir.Constant(ir.VectorType(cgutils.int32_t, LANES), list(range(LANES))[::-1])
        value, mask = (builder.shuffle_vector(given, given, order) for given in arguments)
        lanes, nothing = _lanes_of(builder, mask), ir.Constant(value.type, ir.Undefined)
        return call(builder, "llvm.experimental.vector.compress.v16i16", value.type, value, lanes, nothing)

    return _WORDS(_WORDS, _WORDS), generate


@intrinsic
def count(_context, mask):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        bits = builder.bitcast(_lanes_of(builder, arguments[0]), ir.IntType(16))
        return builder.zext(call(builder, "llvm.ctpop.i16", bits.type, bits), cgutils.intp_t)

    return types.intp(_WORDS), generate


def _operator(symbol: Any, of_floats: str | None, of_words: str | None) -> None:
    def instruction(kind: Any) -> str | None:
        return of_floats if kind.element == types.float32 else of_words

    @intrinsic
    def compute(_context, a, b):  # type: ignore[no-untyped-def]
        def generate(_context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return getattr(builder, str(instruction(signature.args[0])))(*arguments)

        return a(a, a), generate

    @overload(symbol, inline="always")
    def overloaded(a, b):  # type: ignore[no-untyped-def]
        if isinstance(a, _Lanes) and a is b and instruction(a):
            return lambda a, b: compute(a, b)  # noqa: PLW0108 -- Numba takes a function of these names
        return None


_operator(operator.add, "fadd", "add")
_operator(operator.sub, "fsub", "sub")
_operator(operator.mul, "fmul", "mul")
_operator(operator.truediv, "fdiv", None)
_operator(operator.and_, None, "and_")
_operator(operator.or_, None, "or_")
_operator(operator.xor, None, "xor")
_operator(operator.lshift, None, "shl")
_operator(operator.rshift, None, "lshr")
