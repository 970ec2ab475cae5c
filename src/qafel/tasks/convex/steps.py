"""A client's local steps on a convex problem, by the compiled loops."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError
from qafel.params import Vector, require_vector
from qafel.tasks import convex

Matrix: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Data: TypeAlias = tuple[Matrix, Matrix, Vector]
"""A client's rows, the same transposed, and a target for each row; all contiguous."""
NOTHING = np.empty(0, np.float32)
NO_NOISE = np.empty((0, 0), np.float32)


def logistic_steps(
    data: Data,
    start: Vector,
    local: LocalTraining,
    steps: int,
    l2: float,
    linear: Vector = NOTHING,
    noise: Matrix = NO_NOISE,
) -> Vector:
    """Return the model after `steps` of `train_logistic` from `start` on `data`, with the settings of `local`."""
    trained: Vector = convex.kernels.train_logistic(*data, start, linear, noise, *terms_of(local, start, steps, l2))
    return trained


def terms_of(local: LocalTraining, start: Vector, steps: int, l2: float = 0.0) -> tuple[Any, ...]:
    """Return the last arguments of the loops: η, P, λ + weight decay, μ, the clipping norm (0: none), correction."""
    decay, proximal = np.float32(l2 + local.weight_decay), np.float32(local.proximal)
    correction = NOTHING if local.correction is None else require_vector(local.correction, start.size, "a client rule")
    return np.float32(local.lr), steps, decay, proximal, local.clip_norm or 0.0, correction


def steps_of(local: LocalTraining, task: str) -> int:
    """Return the number of full-batch steps of `local`; an epoch is one step. `task` names the task in errors."""
    if local.batch_size is not None:
        raise ConfigError(f"{task} trains on full batches only: remove algorithm.batch_size")
    return local.steps_for(1)
