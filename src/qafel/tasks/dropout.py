"""Dropout whose random numbers come from a generator that the trainer hands in."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from qafel.errors import ConfigError


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
