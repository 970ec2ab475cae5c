"""An LSTM over embedded characters, forward and backward through time, as one compiled operation.

    z = W_in·x + W_rec·h + b,  (i, f, o) = σ(z),  g = tanh(z),  c' = f·c + i·g,  h' = o·tanh(c')

Three things make it faster than a call of a library for each step. Nothing but the kernel runs between two products.
The first layer's input is one of a few vectors, so W_in·x + b is a row of a table, and its gradient is the sum of those
of the rows. The gradients of the weights are products over many steps at a time, while those steps are in the cache.

Any layer has such a table and such a product: the first has a product with no columns, and the table of the others has
one row, their bias. No sum is reordered and no library is called: equal bits in every process.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
import torch
from numba import float32, int32, njit, uintp
from numpy.typing import NDArray
from torch import Tensor, nn

from qafel.tasks.neural.products import KERNEL, PANEL, add_outer_, add_product_, multiply, pack

_ROWS_AT_ONCE = 512
"""How many rows the products of the weights' gradients sum over: enough to be deep, and still near when used."""
_APART = 16
"""Rows whose length is a power of two share a few places of the cache; so much more keeps them apart."""


def last_state(characters: Tensor, embedding: nn.Embedding, lstm: nn.LSTM) -> Tensor:
    """The last layer's h at the last position: `lstm(embedding(characters))[0][:, -1]`, equal up to rounding.

    `characters` is (batch, positions). Compiled for float32 on a CPU and layers whose width is a multiple of 32; torch
    does the rest, and bfloat16, for which it has kernels of its own.
    """
    weights = [weight for layer in lstm.all_weights for weight in layer]
    if not _is_compiled(characters, embedding, lstm):
        states, _ = lstm(embedding(characters))
        return states[:, -1]  # type: ignore[no-any-return]
    keep = torch.is_grad_enabled() and any(weight.requires_grad for weight in (embedding.weight, *weights))
    return _LastState.apply(keep, characters, embedding.weight, *weights)  # type: ignore[no-untyped-call, no-any-return]


def _is_compiled(characters: Tensor, embedding: nn.Embedding, lstm: nn.LSTM) -> bool:
    plain = lstm.bias and lstm.batch_first and not lstm.bidirectional and lstm.proj_size == 0 and lstm.dropout == 0
    where = embedding.weight.device.type == "cpu" and embedding.weight.dtype == torch.float32
    if not (plain and where and lstm.hidden_size % 32 == 0 and characters.numel()) or torch.is_autocast_enabled("cpu"):
        return False
    # A number outside the vocabulary is left to torch, which says so.
    return bool(characters.min() >= 0) and bool(characters.max() < embedding.num_embeddings)


@final
class _LastState(torch.autograd.Function):
    """The compiled operation; `weights` are those of `nn.LSTM`, layer by layer: W_in, W_rec and two biases."""

    @staticmethod
    def forward(ctx: Any, keep: bool, characters: Tensor, embedding: Tensor, *weights: Tensor) -> Tensor:
        kept: list[Tensor] = []
        numbers, below = characters.contiguous(), torch.empty(0, 0, 0)
        (batch, steps), units = numbers.shape, weights[1].shape[1]
        for w_in, w_rec, bias, other_bias in zip(*[iter(weights)] * 4, strict=True):
            if not below.numel():
                table, panels = bias + other_bias + multiply(embedding, w_in.T), _no_panels()
            else:
                table, panels, numbers = (bias + other_bias)[None], pack(w_in.T), torch.zeros_like(numbers)
            gates = torch.empty(steps if keep else 1, batch, 4 * units)
            cells, states = torch.empty(steps + 1 if keep else 1, batch, units), torch.empty(steps + 1, batch, units)
            cells[0], states[0] = 0, 0
            _forward(*_arrays(numbers, table, below, panels, pack(w_rec.T), gates, cells, states))
            kept += [gates, cells, states]
            below = states
        if keep:
            ctx.save_for_backward(characters, embedding, *weights, *kept)
        return below[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        characters, embedding, *others = ctx.saved_tensors
        layers = len(others) // 7
        grad_states = torch.zeros_like(others[-1][1:])
        grad_states[-1] = grads[0]
        found: list[Tensor] = []
        for layer in reversed(range(layers)):
            w_in, w_rec = others[4 * layer : 4 * layer + 2]
            gates, cells, states = others[4 * layers + 3 * layer :][:3]
            if layer:
                # A row of the table for each step, not one for all: shorter sums are more exact.
                numbers = torch.arange(characters.shape[1]).expand(characters.shape).contiguous()
                table, panels = torch.zeros(characters.shape[1], len(w_in)), pack(w_in)
                below = others[4 * layers + 3 * layer - 1]
            else:
                numbers, table = characters.contiguous(), torch.zeros(len(embedding), len(w_in))
                panels, below = _no_panels(), states[:0]
            grad_in, grad_rec = torch.zeros(len(w_in), PANEL * len(panels)), torch.zeros(w_rec.shape)
            grad_below = torch.zeros_like(below[1:])
            given = (numbers, gates, cells, states, below, panels, pack(w_rec), grad_states)
            _backward(*_arrays(*given, grad_below, table, grad_in, grad_rec))
            bias = table.sum(0)
            found = [grad_in if layer else multiply(table.T, embedding), grad_rec, bias, bias.clone(), *found]
            grad_states = grad_below
        return None, None, multiply(table, w_in), *found


def _no_panels() -> Tensor:
    """A matrix without columns, packed."""
    return torch.empty(0, 1, PANEL)


def _arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """The tensors' memory as arrays."""
    return [tensor.detach().numpy() for tensor in tensors]


_LOG2_E, _MAGIC = np.float32(1 / math.log(2)), np.float32(1.5 * 2**23)
_LN2_HIGH = np.float32(0.693359375)  # ln 2 in two parts: n times the first is exact
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_ONE, _TWO = np.float32(1), np.float32(2)
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))


@njit(**KERNEL)
def _expm1(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    """e^x − 1 for |x| ≤ 87, to three units in the last place, without a call, so that loops vectorise.

    With x = n·ln 2 + r it is 2ⁿ(e^r − 1) + (2ⁿ − 1), and a series of seven terms is exact enough for |r| ≤ ln 2 / 2.
    """
    shifted = x * _LOG2_E + _MAGIC  # the last bits are those of n
    n = shifted - _MAGIC
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    series = r + r * r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * _C7)))))
    power = np.int32((np.float32(shifted).view(np.int32) + int32(127)) << int32(23)).view(np.float32)
    return power * series + (power - _ONE)


@njit(**KERNEL)
def _within(x, most):  # type: ignore[no-untyped-def]  # pragma: no cover
    """x, but within ±`most`; a NaN stays one."""
    x = most if x > most else x
    return -most if x < -most else x


@njit(**KERNEL)
def _sigmoid(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    return _ONE / (_TWO + _expm1(-_within(x, float32(87))))


@njit(**KERNEL)
def _tanh(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    power = _expm1(_TWO * _within(x, float32(10)))
    return power / (power + _TWO)


@njit(**KERNEL)
def _advance(z, cell, next_cell, state):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One sample's step: z becomes (i, f, g, o); then the new c and h. Loops with few arrays, which vectorise."""
    units = cell.size
    f, g, o = uintp(units), uintp(2 * units), uintp(3 * units)
    for signed in range(2 * units):
        j = uintp(signed)
        z[j] = _sigmoid(z[j])
    for signed in range(units):
        j = uintp(signed)
        z[g + j] = _tanh(z[g + j])
        z[o + j] = _sigmoid(z[o + j])
    for signed in range(units):
        j = uintp(signed)
        next_cell[j] = z[f + j] * cell[j] + z[j] * z[g + j]
    for signed in range(units):
        j = uintp(signed)
        state[j] = z[o + j] * _tanh(next_cell[j])


@njit(**KERNEL)
def _forward(numbers, table, below, w_in, w_rec, gates, cells, states):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Run a layer over all steps. Fill `states`, (steps + 1, batch, units), from its second row on.

    `numbers`, (batch, steps), say which row of the table a step begins with; `below` are the states of the layer below.
    `gates` and `cells` have room for all steps (and one more), or for one only if no backward pass follows.
    """
    batch, steps = numbers.shape
    units, width = states.shape[2], gates.shape[2]
    for t in range(steps):
        now, at = t % len(gates), (t % len(gates)) * batch * width
        for b in range(batch):
            z, row = gates[now, b], table[numbers[b, t]]
            for j in range(width):
                z[j] = row[j]
        add_product_(below, (t + 1) * batch * units, units, 1, batch, w_in, gates, at, width)
        if t > 0:
            add_product_(states, t * batch * units, units, 1, batch, w_rec, gates, at, width)
        for b in range(batch):
            _advance(gates[now, b], cells[t % len(cells), b], cells[(t + 1) % len(cells), b], states[t + 1, b])


@njit(**KERNEL)
def _retreat(gates, cell, next_cell, grad_state, grad_cell, slope):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One sample's step back: fill `slope`, the gradient of z; `grad_cell`, that of c', becomes that of c."""
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


@njit(**KERNEL)
def _backward(  # type: ignore[no-untyped-def]  # pragma: no cover
    numbers, gates, cells, states, below, w_in, w_rec, grad_states, grad_below, grad_table, grad_in, grad_rec
):
    """Run a layer back through all steps; add to the last four. `grad_states` comes with what the layer above gives.

    The slopes of some steps, enough for one product that is deep, are kept in the order of time.
    """
    batch, steps = numbers.shape
    units, width = states.shape[2], gates.shape[2]
    far, size = width + _APART, max(1, _ROWS_AT_ONCE // batch)
    slopes, grad_cell = np.empty((size * batch, far), np.float32), np.zeros((batch, units), np.float32)
    panels = np.empty(size * batch * units, np.float32)
    before, inputs = states.reshape(len(states) * batch, units), below.reshape(len(below) * batch, units)
    for stop in range(steps, 0, -size):
        start = max(0, stop - size)
        for t in range(stop - 1, start - 1, -1):
            first = (t - start) * batch
            for b in range(batch):
                _retreat(gates[t, b], cells[t, b], cells[t + 1, b], grad_states[t, b], grad_cell[b], slopes[first + b])
                row, slope = grad_table[numbers[b, t]], slopes[first + b]
                for j in range(width):
                    row[j] += slope[j]
            add_product_(slopes, first * far, far, 1, batch, w_in, grad_below, t * batch * units, units)
            if t > 0:
                add_product_(slopes, first * far, far, 1, batch, w_rec, grad_states, (t - 1) * batch * units, units)
        add_outer_(slopes, far, before[start * batch : stop * batch], panels, grad_rec)
        add_outer_(slopes, far, inputs[(start + 1) * batch : (stop + 1) * batch], panels, grad_in)
