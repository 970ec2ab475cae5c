"""The paper's networks and neural tasks on real data: `cifar10`, `celeba` and `shakespeare`.

Common settings:

- `clients`: the number of clients. With the partition "user", a random sample of the users; by default all.
- `partition`: "user" if the data has users, or a spec of `tasks.datasets.partition`.
- `seed`: decides partition and samples, and has no effect on training.
- `data`: the folder of datasets; by default $QAFEL_DATA or ~/.cache/qafel.
- `source`: the files to read, "official", "leaf" or "auto".
- `dropout`: the dropout rate of the network.
- `max_samples`: the most samples of a client, chosen at random.
- `test_samples`: the number of test samples, chosen at random; None: all.
- `device`: "cpu", "cuda", … or "auto".
- `download`: download missing data if its authors allow it.
- `verify`: compare the data with the published checksums or counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.rng import Stream
from qafel.tasks.datasets import celeba as celeba_data
from qafel.tasks.datasets import cifar10 as cifar10_data
from qafel.tasks.datasets.files import data_folder
from qafel.tasks.datasets.partition import Partition, by_user, split
from qafel.tasks.datasets.samples import FederatedData, Samples, Source, Subset
from qafel.tasks.datasets.shakespeare import VOCABULARY, load_shakespeare
from qafel.tasks.neural.compiled import cnn, lstm
from qafel.tasks.neural.task import TorchTask
from qafel.tasks.neural.trainer import Dropout, Precision, Prepare


@final
class Cnn(nn.Module):
    """Four 3×3 convolutions of 32 channels, one shared GroupNorm, dropout, and a linear layer, for 32×32 images.

    Each convolution (padding 2) is followed by the same GroupNorm(32, 32), ReLU and 2×2 max-pooling. The sides are
    32 → 34 → 17 → 19 → 9 → 11 → 5 → 7 → 3, which gives 288 features. It has 31,594 parameters for 10 classes.
    """

    def __init__(self, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv4 = nn.Conv2d(32, 32, 3, padding=2)
        self.norm = nn.GroupNorm(32, 32)
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(288, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.dropout(self._features(images)))
        return scores

    def _features(self, images: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and _are_compiled(images):
            values = torch.cat([parameter.detach().flatten() for parameter in self.parameters()])
            return torch.from_numpy(cnn.compute_features(values.numpy(), images.contiguous().numpy()))
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            images = relu(max_pool2d(self.norm(convolution(images)), 2))
        return images.flatten(1)

    def fill_gradient(
        self, values: NDArray[np.float32], images: Tensor, labels: Tensor, gradient: NDArray[np.float32]
    ) -> bool:
        """Fill `gradient` with the gradient of the mean cross entropy for the model `values`, without autograd.

        Return False for images or labels that the compiled loops do not support: they do not check bounds.
        """
        if not _are_compiled(images) or not _are_classes(labels, len(images), self.linear.out_features):
            return False
        dropout = self.dropout.factors((len(images), cnn.FEATURES))
        cnn.fill_gradient(values, images.contiguous().numpy(), labels.numpy(), dropout.numpy(), gradient)
        return True


def _are_compiled(images: Tensor) -> bool:
    """Return whether the compiled loops support these images."""
    return images.device.type == "cpu" and images.dtype == torch.float32 and images.shape[1:] == (3, 32, 32)


def _are_classes(labels: Tensor, count: int, classes: int) -> bool:
    """Return whether these are the class numbers of `count` samples, at least one."""
    whole = not labels.is_floating_point() and labels.shape == (count,) and count > 0
    return whole and bool(labels.min() >= 0) and bool(labels.max() < classes)


@final
class CharacterLstm(nn.Module):
    """Embedding of 8, two LSTM layers of 256, and a linear layer on the last position, for the next character.

    It has 819,920 parameters for a vocabulary of 80.
    """

    def __init__(self, vocabulary: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        scores: Tensor = self.linear(self._states(characters))
        return scores

    def _states(self, characters: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and self._is_compiled(characters):
            parameters = [parameter.detach().numpy() for parameter in self._recurrent()]
            return torch.from_numpy(lstm.compute_states(parameters, characters.numpy()))
        states, _ = self.lstm(self.embedding(characters))
        return states[:, -1]  # type: ignore[no-any-return]

    def _recurrent(self) -> list[Tensor]:
        return [self.embedding.weight, *self.lstm.parameters()]

    def _is_compiled(self, characters: Tensor) -> bool:
        """Return whether the compiled loops support these characters: they do not check bounds."""
        where = {parameter.device.type for parameter in self.parameters()} == {"cpu"}
        plain = characters.dtype == torch.long and characters.dim() == 2 and characters.numel() > 0
        if not where or not plain or self.lstm.hidden_size % 32 or torch.is_autocast_enabled("cpu"):
            return False
        return bool(characters.min() >= 0) and bool(characters.max() < self.embedding.num_embeddings)

    def fill_gradient(
        self, values: NDArray[np.float32], characters: Tensor, labels: Tensor, gradient: NDArray[np.float32]
    ) -> bool:
        """Fill `gradient` with the gradient of the mean cross entropy for the model `values`, without autograd."""
        classes = _are_classes(labels, len(characters), self.linear.out_features)
        if not classes or not self._is_compiled(characters):
            return False
        layout = Layout.of({name: tuple(parameter.shape) for name, parameter in self.named_parameters()})
        parameters, gradients = (list(layout.split(flat).values()) for flat in (values, gradient))
        lstm.fill_gradient(parameters, characters.numpy(), labels.numpy(), gradients)
        return True


@final
class Normalise:
    """Convert bytes to (x/255 − mean)/std of each channel."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        channels = (1, len(mean), 1, 1)
        centre, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self._gain = (1 / (255 * spread)).float().view(channels)
        self._shift = (-centre / spread).float().view(channels)

    def __call__(self, images: NDArray[Any], device: torch.device) -> Tensor:
        x = torch.from_numpy(images).to(device)
        return torch.addcmul(self._shift.to(device), x.float(), self._gain.to(device))


def as_numbers(characters: NDArray[Any], device: torch.device) -> Tensor:
    """Return the characters as 64-bit numbers for an embedding."""
    return torch.from_numpy(characters).to(device).long()


def cifar10(
    *,
    clients: int = 5000,
    partition: str = "power:0.1",
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    dropout: float = 0.1,
    max_samples: int | None = None,
    test_samples: int | None = None,
    device: str = "cpu",
    download: bool = True,
    verify: bool = True,
) -> TorchTask:
    """Return CIFAR-10 with the four-layer network of 31,594 parameters.

    The published runs have 5,000 clients with sizes from a power law. The paper's text states `dirichlet-sizes:0.1`.
    """
    settings = {**locals(), "data": data_folder(data)}
    found = cifar10_data.load_cifar10(settings["data"], verify, download)
    network = partial(Cnn, len(cifar10_data.CLASSES), dropout)
    return _task(cifar10, settings, found, network, Normalise(cifar10_data.MEAN, cifar10_data.STD))


def celeba(
    *,
    clients: int | None = None,
    partition: str = "user",
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    source: Source = "auto",
    attribute: str = "Smiling",
    held_out: float = 0.1,
    dropout: float = 0.1,
    max_samples: int | None = None,
    test_samples: int | None = None,
    device: str = "cpu",
) -> TorchTask:
    """Return CelebA with the four-layer network of 29,282 parameters.

    attribute   the attribute to predict
    held_out    the share of people whose images are for testing
    """
    settings = {**locals(), "data": data_folder(data)}
    found = celeba_data.load_celeba(settings["data"], source, attribute, held_out, seed)
    return _task(celeba, settings, found, partial(Cnn, 2, dropout), Normalise(celeba_data.MEAN, celeba_data.STD))


def shakespeare(
    *,
    clients: int | None = None,
    partition: str = "user",
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    source: Source = "auto",
    train_fraction: float = 0.9,
    max_samples: int | None = None,
    test_samples: int | None = 10_000,
    precision: Precision = "auto",
    device: str = "cpu",
    download: bool = True,
    verify: bool = True,
) -> TorchTask:
    """Return Shakespeare with the two-layer LSTM of 819,920 parameters.

    train_fraction   the share of each user's text for training
    precision        the type of matrix products
    test_samples     by default a sample: evaluating all 300,000 windows takes a quarter of an hour
    """
    settings = {**locals(), "data": data_folder(data)}
    found = load_shakespeare(settings["data"], source, train_fraction, verify, download)
    return _task(shakespeare, settings, found, partial(CharacterLstm, len(VOCABULARY)), as_numbers, precision)


def _task(
    make: Callable[..., TorchTask],
    settings: dict[str, Any],
    found: FederatedData,
    network: Callable[[], nn.Module],
    prepare: Prepare,
    precision: Precision = "float32",
) -> TorchTask:
    """Return the task. Another process rebuilds it by `make(**settings)`, with the same data folder."""
    seed = settings["seed"]
    return TorchTask(
        make.__name__,
        network,
        found.train,
        _some(found.test, settings["test_samples"], seed),
        _divide(found, settings["partition"], settings["clients"], settings["max_samples"], seed),
        prepare=prepare,
        precision=precision,
        device=settings["device"],
        rebuild=partial(make, **settings),
    )


def _some(samples: Samples, count: int | None, seed: int) -> Samples:
    """Return `count` random samples in their order, or all if there are fewer."""
    if count is None or count >= len(samples):
        return samples
    if count < 1:
        raise ConfigError(f"test_samples must be at least one test sample; got {count}")
    order = Stream.named(seed, "test samples").generator().permutation(len(samples))
    return Subset(samples, np.sort(order[:count]))


def _divide(found: FederatedData, spec: str, clients: int | None, max_samples: int | None, seed: int) -> Partition:
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"max_samples must be at least one sample; got {max_samples}")
    if spec == "user":
        if found.users is None:
            raise ConfigError("this dataset lacks users: choose another partition, such as iid or dirichlet:0.1")
        whole = by_user(found.users)
        count = whole.clients if clients is None else clients
        if not 1 <= count <= whole.clients:
            raise ConfigError(f"clients must be from 1 to the number of users, {whole.clients}; got {clients}")
    elif clients is None:
        raise ConfigError(f"partition {spec!r} needs a number of clients: set clients")
    else:
        whole, count = split(spec, found.train.labels, clients, Stream.named(seed, "partition")), clients
    if count == whole.clients and max_samples is None:
        return whole
    chosen = np.sort(Stream.named(seed, "users").generator().permutation(whole.clients)[:count])
    return whole.take(chosen, max_samples, Stream.named(seed, "samples"))
