"""Sixteen numbers as one value in compiled loops: what `trellis` searches and codes with, sixteen paths side by side.

    load(array, i)            sixteen of a flat float32, int16, uint16, int32 or uint32 array from index i on
    store(array, i, v)        write them
    floats(x), words(n)       the same number in every lane: as float32, as int16, …
    longs(n)                  … as int32
    as_floats, as_words,      one kind from another; to words the lowest bits, from floats the fraction cut off
    as_longs
    v + w, v - w, v * w       lane by lane; for floats also v / w, for words and longs also v & w, v | w, v ^ w,
                              v << w and v >> w (zeros come in)
    least(v, w), largest      lane by lane
    below(v, w)               words: minus one where v < w, else zero
    choose(mask, v, w)        v where the word is not zero, else w
    nearest(v)                floats, rounded to the nearest whole number, halves to even
    mixed(v)                  floats times the 16 × 16 Hadamard matrix: butterflies of 1, 2, 4 and 8 apart
    gather(array, v)          what stands at these sixteen indices, as longs
    expand(array, i, mask)    words from index i on, one after another into the lanes of the mask; zero in the others
    compress(v, mask)         the words in the lanes of the mask, the last lane first, side by side
    count(mask)               how many lanes the mask has

LLVM turns them into whatever registers a CPU has. Lanes never mix but in `mixed`, no product is fused with a sum, and
so every CPU computes the same. Indices are not checked: the loops that use this are.
"""

from __future__ import annotations

import operator
from typing import Any, final

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

intrinsic: Any = _intrinsic  # its result is called without the context, which its types do not say

LANES = 16


class _LanesType(types.Type):
    element: Any


@final
class _FloatsType(_LanesType):
    element = ir.FloatType()

    def __init__(self) -> None:
        super().__init__("Floats16")


@final
class _WordsType(_LanesType):
    element = ir.IntType(16)

    def __init__(self) -> None:
        super().__init__("Words16")


@final
class _LongsType(_LanesType):
    element = ir.IntType(32)

    def __init__(self) -> None:
        super().__init__("Longs16")


_FLOATS, _WORDS, _LONGS = _FloatsType(), _WordsType(), _LongsType()


def _vector(kind: Any) -> Any:
    return ir.VectorType(kind.element, LANES)


@register_model(_FloatsType)
@register_model(_WordsType)
@register_model(_LongsType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _vector(kind))  # type: ignore[no-untyped-call]


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any, kind: Any) -> Any:
    """Where the lanes from `index` on begin in memory."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _vector(kind).as_pointer())


def _kind_of(array: Any) -> Any:
    return _FLOATS if array.dtype == types.float32 else _WORDS if array.dtype.bitwidth == 16 else _LONGS


@intrinsic
def load(_context, array, index):  # type: ignore[no-untyped-def]
    kind = _kind_of(array)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array, index = arguments
        return builder.load(_place(context, builder, signature.args[0], array, index, kind), align=2)

    return kind(array, types.intp), generate


@intrinsic
def store(_context, array, index, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array, index, value = arguments
        builder.store(value, _place(context, builder, signature.args[0], array, index, signature.args[2]), align=2)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


def _spreading(kind: Any, given: Any) -> Any:
    @intrinsic
    def spread(_context, number):  # type: ignore[no-untyped-def]
        def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            one = builder.insert_element(ir.Constant(_vector(kind), ir.Undefined), arguments[0], cgutils.int32_t(0))
            return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(cgutils.int32_t, LANES), None))

        return kind(given), generate

    return spread


floats, words = _spreading(_FLOATS, types.float32), _spreading(_WORDS, types.int16)
longs = _spreading(_LONGS, types.int32)


def _unary(result: Any, build: Any) -> Any:
    @intrinsic
    def compute(_context, value):  # type: ignore[no-untyped-def]
        def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
            return build(builder, arguments[0])

        return result(value), generate

    return compute


def _converting(result: Any) -> Any:
    into = _vector(result)

    def build(builder: Any, value: Any) -> Any:
        if result is _FLOATS:
            return builder.sitofp(value, into)
        if value.type == _vector(_FLOATS):
            return builder.fptosi(value, into)
        return builder.trunc(value, into) if result is _WORDS else builder.sext(value, into)

    return _unary(result, build)


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
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
nearest = _unary(_FLOATS, lambda builder, value: _call(builder, "llvm.rint.v16f32", value.type, value))
mixed = _unary(_FLOATS, _mixed)


def _less(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    return builder.fcmp_ordered("<", a, b) if kind is _FLOATS else builder.icmp_signed("<", a, b)


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
    def generate(_context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.sext(_less(builder, signature.args[0], *arguments), _vector(_WORDS))

    return _WORDS(a, a), generate


@intrinsic
def choose(_context, mask, a, b):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        mask, a, b = arguments
        return builder.select(_lanes_of(builder, mask), a, b)

    return a(_WORDS, a, a), generate


def _lanes_of(builder: Any, mask: Any) -> Any:
    return builder.icmp_signed("!=", mask, ir.Constant(mask.type, None))


@intrinsic
def gather(_context, array, indices):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        result = ir.Constant(_vector(_LONGS), ir.Undefined)
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
        lanes, zeros = _lanes_of(builder, arguments[2]), ir.Constant(_vector(_WORDS), None)
        where = builder.gep(data, [arguments[1]])
        return _call(builder, "llvm.masked.expandload.v16i16", zeros.type, where, lanes, zeros)

    return _WORDS(array, types.intp, _WORDS), generate


@intrinsic
def compress(_context, value, mask):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        order = ir.Constant(ir.VectorType(cgutils.int32_t, LANES), list(range(LANES))[::-1])
        value, mask = (builder.shuffle_vector(given, given, order) for given in arguments)
        lanes, nothing = _lanes_of(builder, mask), ir.Constant(value.type, ir.Undefined)
        return _call(builder, "llvm.experimental.vector.compress.v16i16", value.type, value, lanes, nothing)

    return _WORDS(_WORDS, _WORDS), generate


@intrinsic
def count(_context, mask):  # type: ignore[no-untyped-def]
    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        bits = builder.bitcast(_lanes_of(builder, arguments[0]), ir.IntType(16))
        return builder.zext(_call(builder, "llvm.ctpop.i16", bits.type, bits), cgutils.intp_t)

    return types.intp(_WORDS), generate


def _operator(symbol: Any, of_floats: str | None, of_words: str | None) -> None:
    @intrinsic
    def compute(_context, a, b):  # type: ignore[no-untyped-def]
        def generate(_context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return getattr(builder, str(of_floats if signature.args[0] is _FLOATS else of_words))(*arguments)

        return a(a, a), generate

    @overload(symbol, inline="always")
    def overloaded(a, b):  # type: ignore[no-untyped-def]
        if a is b and (of_floats if a is _FLOATS else of_words if a in {_WORDS, _LONGS} else None):
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
