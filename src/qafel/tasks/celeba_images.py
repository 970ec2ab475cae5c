"""Portraits of any size, brought to 32×32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError

SIDE = 32
_SUFFIXES = (".jpg", ".jpeg", ".png")


def require_folder(folder: Path) -> Path:
    """The folder itself, if it is there."""
    if not folder.is_dir():
        raise DataError(
            f"CelebA: {folder} is missing; put the images there, or set QAFEL_DATA to the folder that holds celeba"
        )
    return folder


def find_images(folder: Path) -> dict[str, Path]:
    """The images of a folder by their names without suffix."""
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in _SUFFIXES}


def read_images(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """All images as (number, 3, 32, 32)."""
    images = np.empty((len(paths), 3, SIDE, SIDE), np.uint8)
    for row, path in zip(images, paths, strict=True):
        row[...] = _read(path).transpose(2, 0, 1)
    return images


def _read(path: Path) -> NDArray[np.uint8]:
    """Resize so that the shorter side is 32, then keep the middle."""
    from PIL import Image  # noqa: PLC0415 — only those who build the cache need it

    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"CelebA: {path} is damaged ({error}): delete it, or put it there again") from None
    scale = SIDE / min(image.size)
    width, height = (max(SIDE, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.uint8)
