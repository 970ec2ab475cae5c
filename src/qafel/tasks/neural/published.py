"""The paper's neural tasks: real data, the published models, plain keyword settings.

    cifar10        images in ten classes
    celeba         portraits: does the person smile?
    shakespeare    the next character of a play

`partition` is "user", where the data has users, or a spec of `tasks.datasets.partition`. Of users, `clients` takes a
random sample, all by default; `max_samples` bounds what each client holds, `test_samples` what is evaluated, each a
random sample too. `seed` decides all of these, and nothing of the training. Data that is missing is downloaded where
that is possible, unless `download` is false; `verify` compares it with what its authors published.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.tasks.datasets import celeba as celeba_data
from qafel.tasks.datasets import cifar10 as cifar10_data
from qafel.tasks.datasets.download import download_if_missing
from qafel.tasks.datasets.files import data_folder
from qafel.tasks.datasets.partition import Partition, by_user, split
from qafel.tasks.datasets.samples import FederatedData, Samples, Subset
from qafel.tasks.datasets.shakespeare import VOCABULARY, Source, load_shakespeare
from qafel.tasks.neural.networks import CharacterLstm, Cnn, Normalise, as_numbers
from qafel.tasks.neural.runtime import Precision
from qafel.tasks.neural.task import TorchTask


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
    settings = _settings(locals())
    if download:
        download_if_missing("cifar10", settings["data"])
    found = cifar10_data.load_cifar10(settings["data"], verify)
    return TorchTask(
        "cifar10",
        partial(Cnn, len(cifar10_data.CLASSES), dropout),
        found.train,
        _some(found.test, test_samples, seed),
        _divide(found, partition, clients, max_samples, seed),
        prepare=Normalise(cifar10_data.MEAN, cifar10_data.STD),
        device=device,
        rebuild=partial(cifar10, **settings),
    )


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
    """CelebA with the four-layer network: 29,282 parameters."""
    settings = _settings(locals())
    found = celeba_data.load_celeba(settings["data"], source, attribute, held_out, seed)
    return TorchTask(
        "celeba",
        partial(Cnn, 2, dropout),
        found.train,
        _some(found.test, test_samples, seed),
        _divide(found, partition, clients, max_samples, seed),
        prepare=Normalise(celeba_data.MEAN, celeba_data.STD),
        device=device,
        rebuild=partial(celeba, **settings),
    )


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

    All windows held out, a third of a million, would take a quarter of an hour to evaluate: a sample is the default.
    """
    settings = _settings(locals())
    if download:
        download_if_missing("shakespeare", settings["data"])
    found = load_shakespeare(settings["data"], source, train_fraction, verify)
    return TorchTask(
        "shakespeare",
        partial(CharacterLstm, len(VOCABULARY)),
        found.train,
        _some(found.test, test_samples, seed),
        _divide(found, partition, clients, max_samples, seed),
        prepare=as_numbers,
        precision=precision,
        device=device,
        rebuild=partial(shakespeare, **settings),
    )


def _settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a task, with the folder made definite: another process may have another environment."""
    return {**arguments, "data": data_folder(arguments["data"])}


def _some(samples: Samples, count: int | None, seed: int) -> Samples:
    """A random sample of the samples, in their order; all of them where fewer are there."""
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
