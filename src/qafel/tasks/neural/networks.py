"""The paper's convolutional network, for CIFAR-10 and CelebA."""

from __future__ import annotations

from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qafel.errors import ConfigError
from qafel.tasks.neural.blocks import first_block, norm_relu_pool

# Dropout whose random numbers come from a generator that the trainer hands in.


@final
class Dropout(nn.Module):
    """Zero each value with probability `rate` and scale the others by 1/(1 − rate), in training only.

    `torch.nn.Dropout` draws from torch's global state; this one draws from `generator`, which the trainer sets from the
    client's random stream.
    """

    generator: torch.Generator | None

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ConfigError(f"a dropout rate lies in [0, 1); got {rate}")
        self.rate = rate
        self.generator = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * kept.div_(1 - self.rate)


@final
class Cnn(nn.Module):
    """Four 3×3 convolutions of 32 channels, one shared GroupNorm, dropout, and a linear layer, for 32×32 images.

    Each convolution (padding 2) is followed by the same GroupNorm(32, 32), ReLU and 2×2 max-pooling:
    32 → 34 → 17 → 19 → 9 → 11 → 5 → 7 → 3, so 288 features remain. 31,594 parameters for 10 classes, 29,282 for 2.
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
        x = first_block(images, self.conv1, self.norm)
        for conv in (self.conv2, self.conv3, self.conv4):
            x = norm_relu_pool(conv(x), self.norm)
        scores: Tensor = self.linear(self.dropout(x.flatten(1)))
        return scores


# The paper's recurrent network, for Shakespeare's characters.


@final
class CharacterLstm(nn.Module):
    """Embedding of 8, two LSTM layers of 256, and a linear layer on the last position: the next character's scores.

    819,920 parameters for a vocabulary of 80.
    """

    def __init__(self, vocabulary: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        scores: Tensor = self.linear(states[:, -1])
        return scores


# Images as bytes, made into normalised tensors.


@final
class Normalise:
    """(x/255 − mean)/std of each channel, from bytes."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        channels = (1, len(mean), 1, 1)
        centre, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self._gain = (1 / (255 * spread)).float().view(channels)
        self._shift = (-centre / spread).float().view(channels)

    def __call__(self, images: NDArray[Any], device: torch.device) -> Tensor:
        x = torch.from_numpy(images).to(device)
        return torch.addcmul(self._shift.to(device), x.float(), self._gain.to(device))


# Characters as bytes, made into class numbers for an embedding.


def as_numbers(characters: NDArray[Any], device: torch.device) -> Tensor:
    """The characters as 64-bit numbers, which embeddings take."""
    return torch.from_numpy(characters).to(device).long()
