"""ResNet-20 with BatchNorm on CIFAR-10, as a task."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, pad, relu

from qafel import TorchTask, split
from qafel.tasks.datasets.cifar10 import MEAN, STD, load_cifar10
from qafel.tasks.datasets.files import data_folder


class Block(nn.Module):
    """Two convolutions and a shortcut, which drops every second pixel and adds channels of zeros."""

    def __init__(self, before, after):
        super().__init__()
        self.stride, self.added = after // before, after - before
        self.conv1 = nn.Conv2d(before, after, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x):
        y = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        shortcut = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return relu(y + shortcut)


class ResNet20(nn.Module):
    """The network of He et al., 2016, for CIFAR-10. It has 269,722 parameters."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*map(Block, widths, widths[1:]))
        self.linear = nn.Linear(64, 10)

    def forward(self, images):
        x = self.blocks(relu(self.norm(self.conv(images))))
        return self.linear(x.mean(dim=(2, 3)))


class Scaled:
    """Normalise the images and average squares of `size` pixels."""

    def __init__(self, size):
        self.size = size

    def __call__(self, images, device):
        x = torch.from_numpy(images).to(device).float() / 255
        mean, std = (torch.tensor(part, device=device).view(1, 3, 1, 1) for part in (MEAN, STD))
        return avg_pool2d((x - mean) / std, self.size)


def flip(images):
    """Mirror each image with probability 1/2."""
    mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    return torch.where(mirrored, images.flip(3), images)


def cifar10(clients=100, partition="dirichlet:3", pixels=32, buffers="recompute", test_samples=10_000, data_seed=0):
    """Return the task. `pixels` is the side of the images, 32, 16 or 8."""
    found = load_cifar10(data_folder())
    held = split(partition, found.train.labels, clients, seed=data_seed)
    test = found.test.batch(np.arange(test_samples))
    return TorchTask(
        *("cifar10-resnet20", ResNet20, found.train, test, held),
        buffers=buffers,
        transform=flip,
        prepare=Scaled(32 // pixels),
        evaluation_batch=250,
    )
