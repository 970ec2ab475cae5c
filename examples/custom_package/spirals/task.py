"""A task: a small network classifies points on three spirals."""

import numpy as np
from torch import nn

from qafel import TorchTask, split


def network():
    return nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 3))


def points(count, generator):
    """Points in the plane and the number of each point's spiral."""
    spiral = generator.integers(3, size=count)
    radius = np.sqrt(generator.random(count))
    angle = 3.5 * radius + spiral * 2 * np.pi / 3 + generator.normal(scale=0.12, size=count)
    places = 2 * radius * (np.cos(angle), np.sin(angle))
    return places.T.astype(np.float32), spiral


def spirals(clients=20, partition="dirichlet:1", data_seed=0):
    """Each client holds about a hundred points, unequally divided among the spirals."""
    generator = np.random.default_rng(data_seed)
    (places, labels), test = points(2000, generator), points(1000, generator)
    return TorchTask("spirals", network, (places, labels), test, split(partition, labels, clients, seed=data_seed))
