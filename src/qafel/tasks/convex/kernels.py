"""Compiled loops of gradient descent on logistic and quadratic losses.

The loops over the data use contiguous memory without a reduction, so they vectorise in plain IEEE arithmetic. The
result does not depend on the vector width of the machine.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from qafel.compiled import KERNEL


@njit(**KERNEL)
def descend(y, start, gradient, lr, proximal, clip_norm, correction):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take one step y ← y − η(clip(g + μ(y − y₀)) + correction).

    A clipping norm of zero does not clip. An empty `correction` adds nothing.
    """
    if proximal:
        for j in range(y.size):
            gradient[j] += proximal * (y[j] - start[j])
    clipped_lr = lr
    if clip_norm:
        square = 0.0
        for j in range(y.size):
            square += np.float64(gradient[j]) ** 2
        if square > clip_norm**2:
            clipped_lr = np.float32(lr * (clip_norm / math.sqrt(square)))
    for j in range(y.size):
        y[j] -= clipped_lr * gradient[j]
    if correction.size:
        for j in range(y.size):
            y[j] -= lr * correction[j]


@njit(**KERNEL)
def train_logistic(  # type: ignore[no-untyped-def]  # pragma: no cover
    rows, columns, targets, start, linear, noise, lr, steps, l2, proximal, clip_norm, correction
):
    """Take P full-batch steps on mean logistic loss + λ/2‖y‖² + ⟨linear, y⟩, with `noise[p]` added to gradient p.

    `columns` is `rows` transposed, both contiguous. An empty `linear`, `noise` or `correction` adds nothing.
    """
    n, d = rows.shape
    y = start.copy()
    residual = np.empty(n, np.float32)
    gradient = np.empty(d, np.float32)
    scale = np.float32(1.0 / n)
    one = np.float32(1.0)
    for p in range(steps):
        residual[:] = 0
        for j in range(d):
            weight = y[j]
            column = columns[j]
            for i in range(n):
                residual[i] += column[i] * weight
        for i in range(n):
            residual[i] = (one / (one + math.exp(-residual[i])) - targets[i]) * scale
        for j in range(d):
            gradient[j] = l2 * y[j]
        if linear.size:
            for j in range(d):
                gradient[j] += linear[j]
        if noise.size:
            for j in range(d):
                gradient[j] += noise[p, j]
        for i in range(n):
            r = residual[i]
            row = rows[i]
            for j in range(d):
                gradient[j] += row[j] * r
        descend(y, start, gradient, lr, proximal, clip_norm, correction)
    return y


@njit(**KERNEL)
def train_quadratic(  # type: ignore[no-untyped-def]  # pragma: no cover
    eigenvalues, shift, start, noise, lr, steps, weight_decay, proximal, clip_norm, correction
):
    """Take P steps with the gradient Ay − shift + λy + noise[p], A diagonal."""
    d = start.size
    y = start.copy()
    gradient = np.empty(d, np.float32)
    for p in range(steps):
        for j in range(d):
            gradient[j] = eigenvalues[j] * y[j] - shift[j] + weight_decay * y[j]
        if noise.size:
            for j in range(d):
                gradient[j] += noise[p, j]
        descend(y, start, gradient, lr, proximal, clip_norm, correction)
    return y


@njit(**KERNEL)
def mean_loss(columns, targets, model, l2):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the mean logistic loss + λ/2 ‖x‖², in float64."""
    d, n = columns.shape
    margin = np.zeros(n, np.float64)
    for j in range(d):
        weight = np.float64(model[j])
        column = columns[j]
        for i in range(n):
            margin[i] += column[i] * weight
    total = 0.0
    for i in range(n):
        z = margin[i]
        # log(1 + eᶻ) − yz, without overflow for large |z|.
        total += max(z, 0.0) + math.log1p(math.exp(-abs(z))) - targets[i] * z
    square = 0.0
    for j in range(d):
        square += np.float64(model[j]) ** 2
    return total / n + 0.5 * l2 * square


@njit(**KERNEL)
def mean_loss_of_ones(ones, targets, model, l2):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return `mean_loss` for binary rows, given by the columns of their ones. The last weight is the intercept."""
    n, count = ones.shape
    weights = model.astype(np.float64)
    total = 0.0
    for i in range(n):
        z = weights[weights.size - 1]
        for k in range(count):
            z += weights[ones[i, k]]
        total += max(z, 0.0) + math.log1p(math.exp(-abs(z))) - targets[i] * z
    return total / n + 0.5 * l2 * (weights * weights).sum()
