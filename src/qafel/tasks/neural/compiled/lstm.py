"""An LSTM over embedded characters in compiled loops: its last state, and the gradient of its loss without autograd.

    z = W_in·x + W_rec·h + b,  (i, f, o) = σ(z),  g = tanh(z),  c' = f·c + i·g,  h' = o·tanh(c')

Three things make it faster than a library call for each step:

- Only the kernel runs between two products.
- The first layer's input is one of a few vectors, so W_in·x + b is a row of a table. Its gradient is the sum of the
  rows' gradients.
- Products that need not wait cover many steps while these are in the cache: other layers' inputs, weights' gradients.

Every layer has a table and a product. The first layer's product has zero columns; the table of the others has one row,
their bias. Sums have a fixed order, so bits are equal in every process. docs/decisions/neural.md gives the reasons.

Matrix products are in tiles, C = A·B or C += A·B, in float32 with packed B. A packed matrix consists of panels of
`PANEL` columns, each stored row by row. Every number of C is one chain of multiply-adds in the order of the inner
index, independent of sizes and registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import float32, int32, njit, types, uintp
from numba.core import cgutils
from numpy.typing import NDArray

from qafel.compiled import KERNEL, WIDE, WIDE_FLOATS, call, intrinsic, multiply_add, place, spread, vector

PANEL = WIDE
"""Columns of a panel."""
ROWS = WIDE // 4
"""Rows of a tile: their sums and a factor fit in registers."""
Floats: TypeAlias = NDArray[np.float32]
_LOOPS: dict[str, Any] = {**KERNEL, "fastmath": {"contract"}}
_ROWS_AT_ONCE = 512
"""Rows of a product over many steps: deep enough to be fast, few enough for the cache."""
_SAMPLES_AT_ONCE = 64
"""Samples that pass through all layers together. More need more memory and are not faster."""
_NO_PANELS = np.empty((0, 1, PANEL), np.float32)
"""A matrix without columns, packed."""
_APART = 16
"""Extra length of a row. Rows whose length is a power of two would compete for the same cache lines."""


@final
class _Kept(NamedTuple):
    """The results of a layer: gates, (steps, batch, 4·units and a gap), and c and h before and after each step."""

    gates: Floats
    cells: Floats
    states: Floats


def compute_states(parameters: Sequence[Floats], characters: NDArray[np.int64]) -> Floats:
    """Return the last layer's h at the last position, equal to torch's up to rounding.

    `parameters` are the embedding and the layers' W_in, W_rec and two biases; `characters` is (batch, positions).
    """
    layers = _prepare(parameters)
    return np.concatenate([_run(layers, group, False)[-1].states[-1] for (group,) in _groups(characters)])


def fill_gradient(
    parameters: Sequence[Floats], characters: NDArray[np.int64], labels: NDArray[np.int64], gradients: Sequence[Floats]
) -> None:
    """Fill `gradients` with the gradients of the mean cross entropy over a batch.

    `parameters` are the embedding, the layers' W_in, W_rec and two biases, and the weights and biases of the scores.
    """
    embedding, (_, positions), layers = parameters[0], characters.shape, _prepare(parameters)
    panels = [(_NO_PANELS, pack(parameters[2]))] + [
        (pack(w_in), pack(w_rec)) for w_in, w_rec in _weights(parameters)[1:]
    ]
    to_weights = [(gradients[1][:, :0], gradients[2]), *_weights(gradients)[1:]]
    # Above the first layer, the table has a row for each step: shorter sums are more exact.
    heights = [len(embedding)] + [positions] * (len(layers) - 1)
    tables = [
        np.zeros((height, len(to_rec)), np.float32) for height, (_, to_rec) in zip(heights, to_weights, strict=True)
    ]
    for gradient in gradients[-2:]:
        gradient[:] = 0
    for number, (group, some_labels) in enumerate(_groups(characters, labels)):
        kept = _run(layers, group, True)
        grad_states = np.zeros_like(kept[-1].states[1:])
        last = kept[-1].states[-1]
        grad_states[-1] = _classify(parameters[-2:], last, some_labels, len(labels), gradients[-2:])
        steps = np.tile(np.arange(positions), (len(group), 1))
        for layer in reversed(range(len(kept))):
            below = kept[layer - 1].states if layer else kept[0].states[:0]
            grad_below = np.empty_like(below[1:])
            given = (steps if layer else group, *kept[layer], below, *panels[layer], grad_states)
            _backward(*given, grad_below, tables[layer], *to_weights[layer], number > 0)
            grad_states = grad_below
    gradients[1][:], gradients[0][:] = multiply(tables[0].T, embedding), multiply(tables[0], parameters[1])
    for layer, table in enumerate(tables):
        gradients[4 * layer + 3][:] = gradients[4 * layer + 4][:] = table.sum(0)


def _groups(*arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield the rows of the arrays, a few at a time."""
    for start in range(0, len(arrays[0]), _SAMPLES_AT_ONCE):
        yield tuple(np.ascontiguousarray(array[start : start + _SAMPLES_AT_ONCE]) for array in arrays)


def _weights(parameters: Sequence[Floats]) -> list[tuple[Floats, Floats]]:
    """Return W_in and W_rec of each layer."""
    return [(parameters[at], parameters[at + 1]) for at in range(1, len(parameters) - 3, 4)]


def _prepare(parameters: Sequence[Floats]) -> list[tuple[Floats, Floats, Floats]]:
    """Return each layer's table, and its W_in and W_rec packed."""
    layers = []
    for layer, (w_in, w_rec) in enumerate(_weights(parameters)):
        bias = parameters[4 * layer + 3] + parameters[4 * layer + 4]
        if layer:
            layers.append((bias[None], pack(w_in.T), pack(w_rec.T)))
        else:
            layers.append((bias + multiply(parameters[0], w_in.T), _NO_PANELS, pack(w_rec.T)))
    return layers


def _classify(
    parameters: Sequence[Floats], states: Floats, labels: NDArray[np.int64], count: int, gradients: Sequence[Floats]
) -> Floats:
    """Compute linear layer and cross entropy, forward and backward. Return the gradient of the states."""
    (weights, biases), (to_weights, to_biases) = parameters, gradients
    scores = multiply(states, weights.T) + biases
    slopes = np.exp(scores - scores.max(1, keepdims=True))
    slopes /= slopes.sum(1, keepdims=True)
    slopes[np.arange(len(labels)), labels] -= 1
    slopes /= np.float32(count)
    to_weights += multiply(slopes.T, states)
    to_biases += slopes.sum(0)
    return multiply(slopes, weights)  # type: ignore[no-any-return]


def _run(layers: Sequence[tuple[Floats, Floats, Floats]], characters: NDArray[np.int64], keep: bool) -> list[_Kept]:
    """Return the results of each layer: all states, and gates and cells of all steps if `keep`."""
    (batch, steps), found = characters.shape, []
    numbers, below = characters, np.empty((0, 0, 0), np.float32)
    for table, w_in, w_rec in layers:
        units = w_rec.shape[1]
        gates = np.empty((steps if keep else min(steps, _steps_at_once(batch)), batch, 4 * units + _APART), np.float32)
        cells = np.empty((steps + 1 if keep else 1, batch, units), np.float32)
        states = np.empty((steps + 1, batch, units), np.float32)
        cells[0] = states[0] = 0
        _forward(numbers, table, below, w_in, w_rec, gates, cells, states)
        found.append(_Kept(gates, cells, states))
        numbers, below = np.zeros_like(characters), states
    return found


@njit(**_LOOPS)
def _steps_at_once(batch):  # type: ignore[no-untyped-def]
    return max(1, _ROWS_AT_ONCE // batch)


_LOG2_E, _MAGIC = np.float32(1 / math.log(2)), np.float32(1.5 * 2**23)
_LN2_HIGH = np.float32(0.693359375)  # ln 2 in two parts: n times the first is exact
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_ONE, _TWO = np.float32(1), np.float32(2)
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))


@njit(**_LOOPS)
def _expm1(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return e^x − 1 for |x| ≤ 87, to three units in the last place. Without a call, loops vectorise.

    x = n·ln 2 + r gives 2ⁿ(e^r − 1) + (2ⁿ − 1). Seven terms of the series suffice for |r| ≤ ln 2 / 2.
    """
    shifted = x * _LOG2_E + _MAGIC  # the last bits are those of n
    n = shifted - _MAGIC
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    series = r + r * r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * _C7)))))
    power = np.int32((np.float32(shifted).view(np.int32) + int32(127)) << int32(23)).view(np.float32)
    return power * series + (power - _ONE)


@njit(**_LOOPS)
def _within(x, most):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return x clipped to ±`most`; NaN stays NaN."""
    x = most if x > most else x
    return -most if x < -most else x


@njit(**_LOOPS)
def _sigmoid(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    return _ONE / (_TWO + _expm1(-_within(x, float32(87))))


@njit(**_LOOPS)
def _tanh(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    power = _expm1(_TWO * _within(x, float32(10)))
    return power / (power + _TWO)


@njit(**_LOOPS)
def _advance(z, row, cell, next_cell, state):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take one sample's step: z + row becomes (i, f, g, o), then c and h. Loops with few arrays vectorise."""
    units = cell.size
    f, g, o = uintp(units), uintp(2 * units), uintp(3 * units)
    for signed in range(2 * units):
        j = uintp(signed)
        z[j] = _sigmoid(z[j] + row[j])
    for signed in range(units):
        j = uintp(signed)
        z[g + j] = _tanh(z[g + j] + row[g + j])
        z[o + j] = _sigmoid(z[o + j] + row[o + j])
    for signed in range(units):
        j = uintp(signed)
        next_cell[j] = z[f + j] * cell[j] + z[j] * z[g + j]
    for signed in range(units):
        j = uintp(signed)
        state[j] = z[o + j] * _tanh(next_cell[j])


@njit(**_LOOPS)
def _forward(numbers, table, below, w_in, w_rec, gates, cells, states):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Run a layer over all steps. Fill `states`, (steps + 1, batch, units), from its second row on.

    `numbers`, (batch, steps), are the rows of the table that steps begin with. `below` are the states of the layer
    below. `gates` and `cells` hold all steps, or only a few if no backward pass follows.
    """
    batch, steps = numbers.shape
    units, (room, _, far), size = states.shape[2], gates.shape, _steps_at_once(batch)
    for start in range(0, steps, size):
        rows = (min(steps, start + size) - start) * batch
        at = start % room * batch * far
        set_product_(below, (start + 1) * batch * units, units, 1, rows, w_in, gates, at, far, False)
        for t in range(start, min(steps, start + size)):
            now = t % room
            add = len(w_in) > 0
            set_product_(states, t * batch * units, units, 1, batch, w_rec, gates, now * batch * far, far, add)
            for b in range(batch):
                before, after = cells[t % len(cells), b], cells[(t + 1) % len(cells), b]
                _advance(gates[now, b], table[numbers[b, t]], before, after, states[t + 1, b])


@njit(**_LOOPS)
def _retreat(gates, cell, next_cell, grad_state, grad_cell, slope):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take one sample's step back: fill `slope`, the gradient of z, and turn `grad_cell` from c' to c."""
    units = cell.size
    f, g, o = uintp(units), uintp(2 * units), uintp(3 * units)
    for signed in range(units):
        j = uintp(signed)
        squashed, out = _tanh(next_cell[j]), gates[o + j]
        slope[o + j] = grad_state[j] * squashed * (out * (_ONE - out))
        grad_cell[j] += grad_state[j] * out * (_ONE - squashed * squashed)
    for signed in range(units):
        j = uintp(signed)
        slope[j] = grad_cell[j] * gates[g + j] * (gates[j] * (_ONE - gates[j]))
        slope[g + j] = grad_cell[j] * gates[j] * (_ONE - gates[g + j] * gates[g + j])
    for signed in range(units):
        j = uintp(signed)
        slope[f + j] = grad_cell[j] * cell[j] * (gates[f + j] * (_ONE - gates[f + j]))
        grad_cell[j] *= gates[f + j]


@njit(**_LOOPS)
def _backward(  # type: ignore[no-untyped-def]  # pragma: no cover
    numbers, gates, cells, states, below, w_in, w_rec, grad_states, grad_below, grad_table, grad_in, grad_rec, add
):
    """Run a layer back through all steps. Add to the table's gradient, set that of `below`, set or `add` the weights'.

    `grad_states` starts with the gradient from the layer above. Slopes of several steps are stored in order of time.
    """
    batch, steps = numbers.shape
    units, size = states.shape[2], _steps_at_once(batch)
    width, far = 4 * units, gates.shape[2]
    slopes, grad_cell = np.empty((size * batch, far), np.float32), np.zeros((batch, units), np.float32)
    before, inputs = states.reshape(len(states) * batch, units), below.reshape(len(below) * batch, units)
    for stop in range(steps, 0, -size):
        start, more = max(0, stop - size), add or stop < steps
        for t in range(stop - 1, start - 1, -1):
            first = (t - start) * batch
            for b in range(batch):
                row, slope = grad_table[numbers[b, t]], slopes[first + b]
                _retreat(gates[t, b], cells[t, b], cells[t + 1, b], grad_states[t, b], grad_cell[b], slope)
                for j in range(width):
                    row[j] += slope[j]
            if t > 0:
                to = (t - 1) * batch * units
                set_product_(slopes, first * far, far, 1, batch, w_rec, grad_states, to, units, True)
        rows = (stop - start) * batch
        set_product_(slopes, 0, far, 1, rows, w_in, grad_below, start * batch * units, units, False)
        set_outer_(slopes, far, before[start * batch : stop * batch], grad_rec, more)
        set_outer_(slopes, far, inputs[(start + 1) * batch : (stop + 1) * batch], grad_in, more)


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
