"""The paper's convolutional network, for CIFAR-10 and CelebA."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from qafel.tasks.dropout import Dropout
from qafel.tasks.first_block import first_block
from qafel.tasks.norm_pool import norm_relu_pool


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
