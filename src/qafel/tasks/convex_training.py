"""What the convex tasks share: full-batch steps, and nothing where a term is left out."""

from __future__ import annotations

import math

import numpy as np

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError
from qafel.params import Vector
from qafel.rng import Stream

NOTHING = np.empty(0, np.float32)
NO_NOISE = np.empty((0, 0), np.float32)


def steps_of(local: LocalTraining, task: str) -> int:
    """How many full-batch steps: an epoch is one."""
    if local.batch_size is not None:
        raise ConfigError(f"{task} trains on all of a client's data at once: leave algorithm.batch_size out")
    return local.steps or local.epochs or 1


def gradient_noise(
    steps: int, size: int, sigma: float, stream: Stream
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Gaussian noise for each step's gradient with E‖noise‖² = σ²; empty where σ is zero."""
    if not sigma:
        return NO_NOISE
    noise = stream.generator().standard_normal((steps, size), dtype=np.float32)
    noise *= np.float32(sigma / np.sqrt(size))
    return noise


def unit_vector(size: int, stream: Stream) -> Vector:
    """A direction drawn uniformly."""
    direction = stream.generator().standard_normal(size)
    length = math.sqrt(np.add.reduce(direction * direction))  # not BLAS's, whose sum depends on the number of threads
    return (direction / length).astype(np.float32)
