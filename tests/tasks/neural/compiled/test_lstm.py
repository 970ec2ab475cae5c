"""The compiled LSTM computes what torch's does, forward and back through time."""

import multiprocessing

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from qafel.bench.training import PlainLstm, random_lstm_task
from qafel.tasks.neural.model import FlatModel
from qafel.tasks.neural.published import CharacterLstm


def make(batch=3, steps=5, units=32, layers=2, vocabulary=11, width=4, scale=1.0):
    """Characters, labels and a network."""
    generator = torch.Generator().manual_seed(batch + 7 * steps)
    network = CharacterLstm(vocabulary, width, units, layers)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (scale / units**0.5))
    characters = torch.randint(0, vocabulary, (batch, steps), generator=generator)
    return characters, torch.randint(0, vocabulary, (batch,), generator=generator), network


def compiled(characters, labels, network):
    """The scores and all gradients without autograd, as float64."""
    flat = FlatModel(network, torch.device("cpu"))
    assert network.fill_gradient(flat.values.numpy(), characters, labels, flat.gradient.fill_(7).numpy())
    return [scores(characters, network).double(), *(p.grad.double() for p in network.parameters())]


def scores(characters, network):
    with torch.inference_mode():
        return network(characters)


def plain(characters, labels, network):
    """The same by torch's operations: with autograd the network has no others."""
    found = network(characters)
    gradients = torch.autograd.grad(cross_entropy(found, labels), list(network.parameters()))
    return [x.detach().double() for x in (found, *gradients)]


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
        (150, 3, 32, 2),
        pytest.param(32, 80, 256, 2, marks=pytest.mark.slow),
    ],
)
def test_scores_and_all_gradients_equal_torchs_to_the_precision_of_float32(batch, steps, units, layers):
    given = make(batch, steps, units, layers)
    theirs, ours = plain(*given), compiled(*given)
    exact = plain(*given[:2], given[2].double())
    for found, torchs, reference in zip(ours, theirs, exact, strict=True):
        assert error(found, reference) < max(5 * error(torchs, reference), 1e-6)


def test_saturated_gates_are_as_in_torch():
    given = make(scale=100.0)
    for found, expected in zip(compiled(*given), plain(*given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * expected.abs().max().item())


def test_a_nan_stays_with_its_sample():
    characters, _, network = make(vocabulary=2)
    with torch.no_grad():
        network.embedding.weight[1] = float("nan")
    characters[:] = 0
    characters[1, 2] = 1
    found = scores(characters, network)
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()


def test_a_sample_has_the_same_state_in_every_batch():
    characters, _, network = make(batch=70, units=64)
    with torch.inference_mode():
        together = network._states(characters)
        alone = torch.cat([network._states(row[None]) for row in characters])
    assert torch.equal(alone, together)


def test_equal_bits_wherever_parameters_lie_in_memory():
    characters, labels, network = make(batch=5, units=64)
    expected = compiled(characters, labels, network)[1:]
    values = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    for shift in (1, 3, 5):
        moved, gradient = torch.empty(values.numel() + shift)[shift:], torch.empty(values.numel() + shift)[shift:]
        moved.copy_(values)
        network.fill_gradient(moved.numpy(), characters, labels, gradient.numpy())
        assert torch.equal(gradient.double(), torch.cat([x.flatten() for x in expected]))


def _bits(_):
    return [x.numpy().tobytes() for x in compiled(*make(batch=33, steps=9, units=64))]


@pytest.mark.slow
def test_equal_bits_in_every_process():
    here = _bits(0)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert all(there == here for there in pool.map(_bits, range(4)))


def test_characters_need_not_be_contiguous():
    characters, labels, network = make(batch=6, steps=6)
    expected = compiled(characters.T.contiguous(), labels, network)
    for found, same in zip(compiled(characters.T, labels, network), expected, strict=True):
        assert torch.equal(found, same)


@pytest.mark.parametrize("number", [-1, 11])
def test_a_number_outside_the_vocabulary_is_left_to_torch_which_refuses_it(number):
    characters, labels, network = make()
    for numbers in (characters, labels):
        before, numbers.view(-1)[0] = numbers.view(-1)[0].item(), number
        assert not network.fill_gradient(np.empty(0), characters, labels, np.empty(0))
        numbers.view(-1)[0] = before
    characters[0, 0] = number
    with pytest.raises(IndexError):
        scores(characters, network)


def test_other_widths_and_bfloat16_are_left_to_torch():
    characters, labels, network = make(units=20)
    assert not network.fill_gradient(np.empty(0), characters, labels, np.empty(0))
    np.testing.assert_allclose(scores(characters, network), plain(characters, labels, network)[0], atol=1e-6)
    characters, labels, network = make()
    with torch.autocast("cpu", torch.bfloat16):
        assert not network.fill_gradient(np.empty(0), characters, labels, np.empty(0))


def test_a_task_in_float32_trains_it_without_autograd():
    assert random_lstm_task("float32")._compiled is not None


def test_the_network_has_the_names_and_shapes_of_torchs_layers():
    ours, theirs = CharacterLstm(), PlainLstm()
    expected = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == expected
    ours.load_state_dict(theirs.state_dict())
    characters = torch.arange(160).view(2, 80) % 80
    with torch.inference_mode():
        np.testing.assert_allclose(ours(characters), theirs(characters), atol=1e-6)
