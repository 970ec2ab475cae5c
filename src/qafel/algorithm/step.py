"""The arithmetic of the server's step: compiled, which loads Numba, so only a server imports this; or in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from qafel.params import Vector
from qafel.quantizers import kernels

__all__ = ["step"]


def _one_pass(following, model, total, mixed, divisor, memory, velocity, momentum, lr):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One pass, because NumPy's many small operations would cost a step more than ten small updates' decoding."""
    for j in range(model.size):
        update = (mixed * model[j] - total[j] if mixed else total[j]) / divisor
        if memory.size:
            update += memory[j]
        if velocity.size:
            update += velocity[j] * momentum
            velocity[j] = update
        following[j] = model[j] - lr * update


def in_numpy(
    following: Vector, model: Vector, total: Vector, mixed: Any, divisor: Any, memory: Vector, velocity: Vector,
    momentum: Any, lr: Any,
) -> None:  # fmt: skip
    """The same, to the bit, without Numba."""
    with np.errstate(all="ignore"):  # whoever asked looks whether all is finite
        update = (mixed * model - total if mixed else total) / divisor
        if memory.size:
            update += memory
        if velocity.size:
            update += velocity * momentum
            velocity[:] = update
        following[:] = model - lr * update


step: Any = in_numpy
if kernels.are_compiled():
    from numba import njit

    from qafel.compiled import KERNEL

    step = njit(**KERNEL)(_one_pass)
