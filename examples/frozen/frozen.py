"""A frozen backbone with a head to train: six classes of CIFAR-10 for the backbone, the other four for the clients."""

import os
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from qafel import TorchTask, split
from qafel.tasks.datasets.cifar10 import MEAN, STD, load_cifar10
from qafel.tasks.datasets.files import data_folder

BACKBONE_CLASSES, CLIENT_CLASSES = range(6), range(6, 10)
FEATURES = 512


def backbone():
    """Return three convolutions with BatchNorm, for images of 16×16 pixels."""
    layers = []
    for before, after in ((3, 16), (16, 32), (32, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def model(path):
    """Return the pretrained backbone, and a new head."""
    body = backbone()
    body.load_state_dict(torch.load(path, weights_only=True))
    return nn.Sequential(body, nn.Linear(FEATURES, len(CLIENT_CLASSES)))


def prepare(images, device):
    """Normalise the images and average squares of two pixels."""
    x = torch.from_numpy(images).to(device).float() / 255
    mean, std = (torch.tensor(part, device=device).view(1, 3, 1, 1) for part in (MEAN, STD))
    return avg_pool2d((x - mean) / std, 2)


def of_classes(samples, classes, count=None):
    """Return the first images of these classes, and their labels from zero."""
    labels = np.asarray(samples.labels)
    rows = np.flatnonzero(np.isin(labels, classes))[:count]
    images, labels = samples.batch(rows)
    return images, labels - classes[0]


def cifar10(backbone="backbone.pt", clients=50, partition="dirichlet:3", samples=None, test_samples=1000):
    """Return the task. Clients train the head only; its first layer, the backbone, is in the file `backbone`."""
    found = load_cifar10(data_folder())
    train = of_classes(found.train, CLIENT_CLASSES, samples)
    return TorchTask(
        "cifar10-frozen",
        partial(model, os.path.abspath(backbone)),
        train,
        of_classes(found.test, CLIENT_CLASSES, test_samples),
        split(partition, train[1], clients, seed=0),
        trainable=["1.*"],
        buffers="hold",
        prepare=prepare,
        evaluation_batch=250,
    )
