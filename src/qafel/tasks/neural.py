"""The paper's neural tasks: real data, the published models, plain keyword settings."""

from __future__ import annotations

import os
from functools import partial

from qafel.rng import Stream
from qafel.tasks.cifar10_data import CLASSES, MEAN, STD, load_cifar10
from qafel.tasks.cnn import Cnn
from qafel.tasks.data_folder import data_folder
from qafel.tasks.images import Normalise
from qafel.tasks.partition import split
from qafel.tasks.torch_task import TorchTask


def cifar10(
    *,
    clients: int = 5000,
    partition: str = "power:0.1",
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    dropout: float = 0.1,
    device: str = "cpu",
    verify: bool = True,
) -> TorchTask:
    """CIFAR-10 with the four-layer network: 31,594 parameters.

    The published runs have 5,000 clients with sizes from a power law; the paper's text says `dirichlet-sizes:0.1`.
    """
    found = load_cifar10(data_folder(data), verify)
    return TorchTask(
        "cifar10",
        partial(Cnn, len(CLASSES), dropout),
        found.train,
        found.test,
        split(partition, found.train.labels, clients, Stream.named(seed, "partition")),
        prepare=Normalise(MEAN, STD),
        device=device,
        rebuild=partial(
            cifar10,
            clients=clients,
            partition=partition,
            seed=seed,
            data=data_folder(data),
            dropout=dropout,
            device=device,
            verify=verify,
        ),
    )
