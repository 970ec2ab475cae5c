"""Specs and data that stand for the family: for the table, the benchmark and the tests."""

from __future__ import annotations

from typing import Final

import numpy as np

from qafel.params import Vector
from qafel.rng import Stream

SHOWN: Final = (
    "none",
    "qsgd:8",
    "qsgd:4",
    "qsgd:4+zstd",
    "qsgd:4,bucket=256",
    "qsgd:2",
    "scaled:qsgd:4",
    "dithered:4",
    "rotated:4",
    "rotated:2",
    "affine:8",
    "affine:4",
    "sign",
    "top_k:0.01",
    "top_k:0.1",
    "top_k:0.1,values=qsgd:4",
    "rand_k:0.1",
    "qsgd:4,norm=l2,bucket=none",
)


def gaussian(size: int) -> Vector:
    """Independent standard normal coordinates, always the same."""
    return Stream.named(0, "gaussian sample").generator().standard_normal(size, dtype=np.float32)


def heavy_tailed(size: int) -> Vector:
    """Student's t with 3 degrees of freedom, always the same."""
    return Stream.named(0, "heavy-tailed sample").generator().standard_t(3, size).astype(np.float32)
