"""A client's local steps on a convex problem: the settings of a step, and the loops of kernels.py in NumPy.

The loops serve devices without Numba, with the names and arguments of the compiled ones. Their sums have another order,
so a trained model differs in its last digits. Server and clients still agree on x̂, which depends only on the bytes that
clients send.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm import LocalTraining
from qafel.errors import ConfigError
from qafel.params import Vector, require_vector
from qafel.tasks import convex

Array: TypeAlias = NDArray[Any]
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


def descend(
    y: Vector, start: Vector, gradient: Vector, lr: Any, proximal: Any, clip_norm: float, correction: Vector
) -> None:
    """As the kernel of this name."""
    if proximal:
        gradient += proximal * (y - start)
    clipped_lr = lr
    if clip_norm:
        square = float(np.square(gradient, dtype=np.float64).sum())
        if square > clip_norm**2:
            clipped_lr = np.float32(lr * (clip_norm / math.sqrt(square)))
    y -= clipped_lr * gradient
    if correction.size:
        y -= lr * correction


def train_logistic(
    rows: Array, columns: Array, targets: Array, start: Vector, linear: Vector, noise: Array, lr: Any, steps: int,
    l2: Any, proximal: Any, clip_norm: float, correction: Vector,
) -> Vector:  # fmt: skip
    """As the kernel of this name."""
    y, scale = start.copy(), np.float32(1.0 / len(rows))
    for p in range(steps):
        with np.errstate(over="ignore"):  # e^∞: the probability is zero
            residual = ((1 / (1 + np.exp(-(rows @ y))) - targets) * scale).astype(np.float32)
        gradient = l2 * y + residual @ rows
        if linear.size:
            gradient += linear
        if noise.size:
            gradient += noise[p]
        descend(y, start, gradient, lr, proximal, clip_norm, correction)
    return y


def train_quadratic(
    eigenvalues: Vector, shift: Vector, start: Vector, noise: Array, lr: Any, steps: int, weight_decay: Any,
    proximal: Any, clip_norm: float, correction: Vector,
) -> Vector:  # fmt: skip
    """As the kernel of this name."""
    y = start.copy()
    for p in range(steps):
        gradient = eigenvalues * y - shift + weight_decay * y
        if noise.size:
            gradient += noise[p]
        descend(y, start, gradient, lr, proximal, clip_norm, correction)
    return y


def _loss(margin: Array, targets: Array, model: Array, l2: float) -> float:
    mean = float(np.mean(np.logaddexp(0.0, margin) - targets * margin))
    return mean + 0.5 * l2 * float(model @ model)


def mean_loss(columns: Array, targets: Array, model: Vector, l2: float) -> float:
    """As the kernel of this name."""
    wide = model.astype(np.float64)
    return _loss(wide @ columns, targets, wide, l2)


def mean_loss_of_ones(ones: Array, targets: Array, model: Vector, l2: float) -> float:
    """As the kernel of this name."""
    wide = model.astype(np.float64)
    return _loss(wide[-1] + wide[ones].sum(axis=1), targets, wide, l2)
