"""Compiled loops of logistic regression.

Both loops over the data run along contiguous memory without a reduction, so that they vectorise in plain IEEE
arithmetic: the result does not depend on the width of the machine's vectors.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def train(rows, columns, targets, start, lr, steps, l2):  # type: ignore[no-untyped-def]  # pragma: no cover
    """P full-batch steps y ← y − η(∇loss + λy). `columns` is `rows` transposed, both contiguous."""
    n, d = rows.shape
    y = start.copy()
    residual = np.empty(n, np.float32)
    gradient = np.empty(d, np.float32)
    scale = np.float32(1.0 / n)
    one = np.float32(1.0)
    for _ in range(steps):
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
        for i in range(n):
            r = residual[i]
            row = rows[i]
            for j in range(d):
                gradient[j] += row[j] * r
        for j in range(d):
            y[j] -= lr * gradient[j]
    return y


@njit(cache=True, nogil=True, error_model="numpy")
def mean_loss(columns, targets, model, l2):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Mean logistic loss + λ/2 ‖x‖², in float64."""
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


@njit(cache=True, nogil=True, error_model="numpy")
def accuracy(columns, targets, model):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The share of rows on the right side of the plane."""
    d, n = columns.shape
    margin = np.zeros(n, np.float64)
    for j in range(d):
        weight = np.float64(model[j])
        column = columns[j]
        for i in range(n):
            margin[i] += column[i] * weight
    right = 0
    for i in range(n):
        right += (margin[i] > 0) == (targets[i] > 0.5)
    return right / n
