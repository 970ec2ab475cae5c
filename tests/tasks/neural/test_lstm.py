"""The compiled LSTM computes what torch's does, forward and back through time."""

import multiprocessing

import numpy as np
import pytest
import torch
from torch import nn

from qafel.bench.training import PlainLstm
from qafel.tasks.neural.lstm import last_state
from qafel.tasks.neural.published import CharacterLstm


def plain(characters, embedding, lstm):
    return lstm(embedding(characters))[0][:, -1]


def make(batch=3, steps=5, units=32, layers=2, vocabulary=11, width=4, scale=1.0):
    generator = torch.Generator().manual_seed(batch + 7 * steps)
    embedding, lstm = nn.Embedding(vocabulary, width), nn.LSTM(width, units, layers, batch_first=True)
    with torch.no_grad():
        for parameter in (*embedding.parameters(), *lstm.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (scale / units**0.5))
    return torch.randint(0, vocabulary, (batch, steps), generator=generator), embedding, lstm


def run(operation, characters, embedding, lstm):
    """The result and all gradients, as float64."""
    parameters = [embedding.weight, *lstm.parameters()]
    state = operation(characters, embedding, lstm)
    grad = torch.linspace(-1, 2, state.numel()).view(state.shape).to(state.dtype)
    return [x.detach().double() for x in (state, *torch.autograd.grad(state, parameters, grad))]


def error(found, exact):
    """Relative; absolute where the gradient is zero, as that of W_rec is after one step."""
    return ((found - exact).norm() / (exact.norm() or 1)).item()


@pytest.mark.parametrize(
    ("batch", "steps", "units", "layers"),
    [
        (1, 1, 32, 1),
        (3, 5, 32, 2),
        (9, 40, 64, 3),
        (32, 20, 96, 2),
        (300, 3, 32, 2),
        pytest.param(32, 80, 256, 2, marks=pytest.mark.slow),
    ],
)
def test_the_state_and_all_gradients_equal_torchs_to_the_precision_of_float32(batch, steps, units, layers):
    given = make(batch, steps, units, layers)
    ours, theirs = run(last_state, *given), run(plain, *given)
    exact = run(plain, *given[:1], *(module.double() for module in given[1:]))
    for found, torchs, reference in zip(ours, theirs, exact, strict=True):
        assert error(found, reference) < max(5 * error(torchs, reference), 1e-6)


def test_saturated_gates_are_as_in_torch():
    given = make(scale=100.0)
    for found, expected in zip(run(last_state, *given), run(plain, *given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * expected.abs().max().item())


def test_a_nan_stays_with_its_sample():
    characters, embedding, lstm = make(vocabulary=2)
    with torch.no_grad():
        embedding.weight[1] = float("nan")
        characters[:] = 0
        characters[1, 2] = 1
        state = last_state(characters, embedding, lstm)
    assert state[1].isnan().all()
    assert not state[[0, 2]].isnan().any()


def test_a_sample_has_the_same_bits_in_every_batch_and_without_a_gradient():
    characters, embedding, lstm = make(batch=21, units=64)
    together = last_state(characters, embedding, lstm)
    with torch.inference_mode():
        assert torch.equal(last_state(characters, embedding, lstm), together)
        alone = torch.cat([last_state(row[None], embedding, lstm) for row in characters])
    assert torch.equal(alone, together)


def test_equal_bits_wherever_parameters_lie_in_memory():
    given = make(batch=5, units=64)
    expected = run(last_state, *given)
    for shift in (1, 3, 5):
        for parameter in (p for module in given[1:] for p in module.parameters()):
            flat = torch.empty(parameter.numel() + shift)
            flat[shift:] = parameter.detach().flatten()
            parameter.data = flat[shift:].view(parameter.shape)
        for found, same in zip(run(last_state, *given), expected, strict=True):
            assert torch.equal(found, same)


def _bits(_):
    return [x.numpy().tobytes() for x in run(last_state, *make(batch=33, steps=9, units=64))]


@pytest.mark.slow
def test_equal_bits_in_every_process():
    here = _bits(0)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert all(there == here for there in pool.map(_bits, range(4)))


def test_characters_need_not_be_contiguous():
    characters, embedding, lstm = make(batch=6, steps=6)
    for found, expected in zip(
        run(last_state, characters.T, embedding, lstm),
        run(last_state, characters.T.contiguous(), embedding, lstm),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("number", [-1, 11])
def test_a_number_outside_the_vocabulary_is_refused(number):
    characters, embedding, lstm = make()
    characters[0, 0] = number
    with pytest.raises(IndexError):
        last_state(characters, embedding, lstm)


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [({"hidden_size": 20}, torch.float32), ({"hidden_size": 32}, torch.float64), ({"bias": False}, torch.float32)],
)
def test_other_layers_and_types_are_left_to_torch(settings, dtype):
    lstm = nn.LSTM(**{"input_size": 4, "hidden_size": 32, "batch_first": True, **settings}).to(dtype)
    embedding, characters = nn.Embedding(11, 4).to(dtype), torch.arange(10).view(2, 5)
    assert torch.equal(last_state(characters, embedding, lstm), plain(characters, embedding, lstm))


def test_bfloat16_is_left_to_torch():
    given = make()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(last_state(*given), plain(*given))


def test_the_network_has_the_names_and_shapes_of_torchs_layers():
    ours, theirs = CharacterLstm(), PlainLstm()
    expected = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == expected
    ours.load_state_dict(theirs.state_dict())
    characters = torch.arange(160).view(2, 80) % 80
    with torch.inference_mode():
        np.testing.assert_allclose(ours(characters), theirs(characters), atol=1e-6)
