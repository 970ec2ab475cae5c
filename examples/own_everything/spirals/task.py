"""The task: points on three spirals, and a small network that says which."""

import numpy as np
from torch import nn

from qafel import TorchTask, split


def network():
    return nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 3))


def points(count, generator):
    """Points in the plane, and the number of the spiral that each lies on."""
    spiral = generator.integers(3, size=count)
    radius = np.sqrt(generator.random(count))
    angle = 3.5 * radius + spiral * 2 * np.pi / 3 + generator.normal(scale=0.12, size=count)
    places = 2 * radius * (np.cos(angle), np.sin(angle))
    return places.T.astype(np.float32), spiral


def spirals(clients=20, partition="dirichlet:1", data_seed=0):
    """A client holds a hundred points or so, more of one spiral than of the others."""
    generator = np.random.default_rng(data_seed)
    (places, labels), test = points(2000, generator), points(1000, generator)
    return TorchTask("spirals", network, (places, labels), test, split(partition, labels, clients, seed=data_seed))
