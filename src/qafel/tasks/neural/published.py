"""The paper's neural tasks: real data, the published models, plain keyword settings.

    cifar10        images in ten classes
    celeba         portraits: does the person smile?
    shakespeare    the next character of a play

What their settings mean:

    clients          how many there are; of a dataset's users a random sample, all of them by default
    partition        "user" if the data has users, or a spec of `tasks.datasets.partition`
    seed             decides the partition and all random samples of this list, and nothing of the training
    data             the folder of all datasets; by default $QAFEL_DATA, else ~/.cache/qafel
    source           "official" or "leaf": which files to read; "auto" takes LEAF's if only they are there
    max_samples      the most that each client holds, a random sample of what it has
    test_samples     how many are evaluated, a random sample
    dropout          the network's dropout rate
    device           where PyTorch computes
    download         fetch data that is missing from its authors, if they allow that
    verify           compare the data with what its authors published
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.tasks.datasets import celeba as celeba_data
from qafel.tasks.datasets import cifar10 as cifar10_data
from qafel.tasks.datasets.files import data_folder
from qafel.tasks.datasets.partition import Partition, by_user, split
from qafel.tasks.datasets.samples import FederatedData, Samples, Source, Subset
from qafel.tasks.datasets.shakespeare import VOCABULARY, find_shakespeare, load_shakespeare
from qafel.tasks.neural.networks import CharacterLstm, Cnn, Normalise, as_numbers
from qafel.tasks.neural.task import TorchTask
from qafel.tasks.neural.trainer import Precision, Prepare


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
    """CIFAR-10 with the four-layer network: 31,594 parameters.

    The published runs have 5,000 clients with sizes from a power law; the paper's text says `dirichlet-sizes:0.1`.
    """
    settings = {**locals(), "data": data_folder(data)}
    cifar10_data.find_cifar10(settings["data"], fetch=download)
    found = cifar10_data.load_cifar10(settings["data"], verify)
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
    """CelebA with the four-layer network: 29,282 parameters.

    `attribute` is what the network finds, `held_out` the share of the people whose images are for testing.
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
    """Shakespeare with the two-layer LSTM: 819,920 parameters.

    `train_fraction` of each user's text is for training; `precision` is the type in which matrices are multiplied. All
    windows held out, a third of a million, would take a quarter of an hour to evaluate: a sample is the default.
    """
    settings = {**locals(), "data": data_folder(data)}
    find_shakespeare(settings["data"], fetch=download, source=source)
    found = load_shakespeare(settings["data"], source, train_fraction, verify)
    return _task(shakespeare, settings, found, partial(CharacterLstm, len(VOCABULARY)), as_numbers, precision)


def _task(
    make: Callable[..., TorchTask],
    settings: dict[str, Any],
    found: FederatedData,
    network: Callable[[], nn.Module],
    prepare: Prepare,
    precision: Precision = "float32",
) -> TorchTask:
    """The task; another process makes it by `make(**settings)`, with the same folder whatever its environment."""
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
    """A random sample of so many samples, in their order; all of them if there are fewer."""
    if count is None or count >= len(samples):
        return samples
    if count < 1:
        raise ConfigError(f"there is at least one test sample; got test_samples = {count}")
    order = Stream.named(seed, "test samples").generator().permutation(len(samples))
    return Subset(samples, np.sort(order[:count]))


def _divide(found: FederatedData, spec: str, clients: int | None, max_samples: int | None, seed: int) -> Partition:
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"a client holds at least one sample; got max_samples = {max_samples}")
    if spec == "user":
        if found.users is None:
            raise ConfigError("this dataset has no users: choose another partition, such as iid or dirichlet:0.1")
        whole = by_user(found.users)
        count = whole.clients if clients is None else clients
        if not 1 <= count <= whole.clients:
            raise ConfigError(f"the data has {whole.clients} users, so 1 to {whole.clients} clients; got {clients}")
    elif clients is None:
        raise ConfigError(f"partition {spec!r} needs a number of clients: set clients")
    else:
        whole, count = split(spec, found.train.labels, clients, Stream.named(seed, "partition")), clients
    if count == whole.clients and max_samples is None:
        return whole
    chosen = np.sort(Stream.named(seed, "users").generator().permutation(whole.clients)[:count])
    return whole.take(chosen, max_samples, Stream.named(seed, "samples"))
