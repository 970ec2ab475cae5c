"""The compiled network computes what plain PyTorch computes."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from qafel.algorithm import LocalTraining
from qafel.bench.training import PlainCnn
from qafel.errors import PartFailed
from qafel.rng import Stream
from qafel.tasks.datasets.partition import split
from qafel.tasks.datasets.samples import ArraySamples
from qafel.tasks.neural.compiled.cnn import FEATURES, compute_features, fill_gradient
from qafel.tasks.neural.model import FlatModel
from qafel.tasks.neural.published import Cnn
from qafel.tasks.neural.task import TorchTask
from qafel.tasks.protocol import train_from

ROUNDING = 2**-24
START, ONE_STEP = Stream.named(0, "test"), LocalTraining(lr=0.1, steps=1)


def networks(classes, seed):
    """The compiled network's flat model, and the plain one in float32 and float64, with gains of both signs."""
    generator = torch.Generator().manual_seed(seed)
    flat = FlatModel(Cnn(classes, 0.0), torch.device("cpu"))
    flat.values.copy_(torch.randn(flat.layout.size, generator=generator) / 10)
    flat.module.norm.weight.data.copy_(torch.randn(32, generator=generator))
    plain, exact = PlainCnn(classes, 0.0), PlainCnn(classes, 0.0).double()
    plain.load_state_dict(flat.module.state_dict())
    exact.load_state_dict(flat.module.state_dict())
    return flat, plain, exact


def batch(count, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 32, 32, generator=generator), torch.randint(0, classes, (count,), generator=generator)


def own_task(images, labels):
    """A task of one client with the network for three classes."""
    samples = ArraySamples(images.numpy(), labels.numpy())
    partition = split("iid", np.zeros(len(labels)), 1, START)
    return TorchTask("own", partial(Cnn, 3, 0.0), samples, samples, partition)


def gradient_of(network, images, labels):
    network.zero_grad()
    cross_entropy(network(images), labels).backward()
    return {name: parameter.grad.double() for name, parameter in network.named_parameters()}


def without_dropout(count):
    return np.ones((count, FEATURES), np.float32)


@pytest.mark.parametrize(("count", "classes"), [(1, 10), (2, 2), (7, 10), (8, 10), (10, 3), (33, 10)])
def test_scores_and_gradients_deviate_from_double_precision_as_plain_pytorch_does_up_to_a_few_times(count, classes):
    flat, plain, exact = networks(classes, count)
    images, labels = batch(count, classes, count)
    with torch.no_grad():
        ours, theirs, truth = flat.module(images), plain(images), exact(images.double())
    assert (ours - truth).norm() < 8 * (theirs - truth).norm() + 20 * ROUNDING * truth.norm()
    found, expected = gradient_of(plain, images, labels), gradient_of(exact, images.double(), labels)
    flat.module.fill_gradient(flat.values.numpy(), images, labels, flat.gradient.numpy())
    for name, parameter in flat.module.named_parameters():
        truth, scale = expected[name], max(expected[name].norm(), 1e-3)
        assert (parameter.grad - truth).norm() < 8 * (found[name] - truth).norm() + 30 * ROUNDING * scale, name


def test_dropout_multiplies_the_features():
    flat, plain, _ = networks(10, 0)
    images, labels = batch(5, 10, 1)
    factors = np.random.default_rng(0).integers(0, 2, (5, FEATURES)).astype(np.float32) * np.float32(1.25)
    plain.dropout.forward = lambda x: x * torch.from_numpy(factors)
    expected = gradient_of(plain, images, labels)
    fill_gradient(flat.values.numpy(), images.numpy(), labels.numpy(), factors, flat.gradient.numpy())
    for name, parameter in flat.module.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), expected[name], rtol=1e-3, atol=1e-5)


def test_the_gradient_does_not_depend_on_what_was_there_nor_on_where_arrays_begin():
    flat, _, _ = networks(10, 3)
    images, labels = batch(11, 10, 4)
    results = []
    for shift in (0, 1, 3, 8):
        values, gradient = (np.full(flat.layout.size + shift, np.nan, np.float32)[shift:] for _ in range(2))
        pixels = np.empty(images.numel() + shift, np.float32)[shift:].reshape(images.shape)
        values[...], pixels[...] = flat.values.numpy(), images.numpy()
        fill_gradient(values, pixels, labels.numpy(), without_dropout(11), gradient)
        results.append((gradient.tobytes(), compute_features(values, pixels).tobytes()))
    assert len(set(results)) == 1


def test_the_features_of_an_image_do_not_depend_on_its_batch():
    flat, _, _ = networks(10, 5)
    images, _ = batch(19, 10, 6)
    together = compute_features(flat.values.numpy(), images.numpy())
    alone = [compute_features(flat.values.numpy(), images[i : i + 1].numpy())[0] for i in range(19)]
    np.testing.assert_array_equal(together, np.array(alone))


def test_scores_far_apart_give_a_finite_gradient():
    flat, _, _ = networks(10, 7)
    flat.module.linear.weight.data.mul_(1e4)
    images, labels = batch(4, 10, 8)
    fill_gradient(flat.values.numpy(), images.numpy(), labels.numpy(), without_dropout(4), flat.gradient.numpy())
    assert flat.gradient.isfinite().all()


def test_with_autograd_the_module_computes_by_torchs_operations():
    flat, plain, _ = networks(10, 9)
    images, labels = batch(3, 10, 10)
    expected = gradient_of(plain, images, labels)
    found = gradient_of(flat.module, images, labels)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("label", [-1, 3, 10**9])
def test_a_label_that_is_no_class_is_left_to_torch_which_refuses_it(label):
    """Compiled loops check no bounds: they would write beside the scores."""
    images, labels = batch(4, 3, 0)
    labels[1] = label
    task = own_task(images, labels)
    with pytest.raises(PartFailed, match="IndexError: .*out of bounds"):
        train_from(task, 0, task.initial_model(START), ONE_STEP, START)


@pytest.mark.parametrize("shape", [(4, 3, 16, 16), (4, 1, 32, 32), (4, 3, 40, 40)])
def test_images_of_another_shape_are_left_to_torch_which_refuses_them(shape):
    """Compiled loops would read beyond the images."""
    task = own_task(torch.zeros(shape), torch.arange(4) % 3)
    model = task.initial_model(START)
    with pytest.raises(PartFailed, match="RuntimeError: .*(shapes cannot be multiplied|channels)"):
        train_from(task, 0, model, ONE_STEP, START)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied|channels"):
        task.evaluate(model)


@pytest.mark.parametrize("kind", ["ignored", "shares", "33 wide"])
def test_what_only_torch_can_train_on_is_trained_on_by_torch(kind):
    images, labels = batch(4, 3, 0)
    if kind == "ignored":
        labels[2] = -100
    elif kind == "shares":
        labels = torch.softmax(torch.randn(4, 3), 1)
    else:
        images = torch.randn(4, 3, 33, 33)
    task = own_task(images, labels)
    start, plain = task.initial_model(START), PlainCnn(3, 0.0)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start), plain.parameters())
    gradient = torch.cat([part.flatten() for part in gradient_of(plain, images, labels).values()])
    found = (start - train_from(task, 0, start, ONE_STEP, START)) / ONE_STEP.lr
    assert np.linalg.norm(found - gradient.numpy()) < 1e-4 * gradient.norm()
