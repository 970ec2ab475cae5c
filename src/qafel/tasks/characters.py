"""Characters as bytes, made into class numbers for an embedding."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def as_numbers(characters: NDArray[Any], device: torch.device) -> Tensor:
    """The characters as 64-bit numbers, which embeddings take."""
    return torch.from_numpy(characters).to(device).long()
