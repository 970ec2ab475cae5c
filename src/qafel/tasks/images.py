"""Images as bytes, made into normalised tensors."""

from __future__ import annotations

from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor


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
