"""What anyone would write: the paper's models trained by PyTorch's own layers and optimizer, to be measured against."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qafel.tasks.lstm import CharacterLstm


@final
class PlainCnn(nn.Module):
    """The four-layer network of `Cnn`, from torch's layers."""

    def __init__(self, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=2)
        self.conv4 = nn.Conv2d(32, 32, 3, padding=2)
        self.norm = nn.GroupNorm(32, 32)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(288, classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = self.pool(self.relu(self.norm(conv(x))))
        scores: Tensor = self.linear(self.dropout(x.flatten(1)))
        return scores


def plain_cnn_loop(batch_size: int) -> Callable[[int], float]:
    """Steps on one batch of random images; a call makes so many and tells the seconds of one."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 3, 32, 32, generator=generator)
    return _loop(PlainCnn(10), images, torch.randint(0, 10, (batch_size,), generator=generator))


def plain_lstm_loop(batch_size: int) -> Callable[[int], float]:
    """Steps on one batch of random text."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 80, (batch_size, 81), generator=generator)
    return _loop(CharacterLstm(), text[:, :-1].contiguous(), text[:, -1].contiguous())


def _loop(module: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[int], float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def train(count: int) -> float:
        begin = time.process_time()
        for _ in range(count):
            optimizer.zero_grad()
            cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return (time.process_time() - begin) / count

    return train
