"""Server rules: from x and Δ̄ to the next x. Algorithm 1, line 9."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from qafel.algorithm.parts import Direction, ServerRule
from qafel.errors import require
from qafel.params import Vector
from qafel.quantizers import kernels

if TYPE_CHECKING:
    from qafel.algorithm.algorithm import Algorithm

NOTHING: Final = np.empty(0, np.float32)


@final
class SGD(ServerRule):
    """v ← βv + Δ̄, x ← x − η_g v. Equation (2).

    lr           η_g
    momentum     β
    compensated  keep what float32 rounds off x in one more vector (Kahan), so that steps far below x still move it
    """

    def __init__(self, lr: float, momentum: float = 0.0, compensated: bool = False) -> None:
        require(is_number(lr) and lr > 0, "the server learning rate is positive", lr)
        require(is_number(momentum) and 0 <= momentum < 1, "server momentum lies in [0, 1)", momentum)
        require(isinstance(compensated, bool), "compensated is true or false", compensated)
        self.lr, self.momentum, self.compensated = lr, momentum, compensated

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        self.velocity: Vector = np.zeros(size if self.momentum else 0, np.float32)
        self.rounded: Vector = np.zeros(size if self.compensated else 0, np.float32)
        """What the last steps should have added to x, and rounding left out."""

    def step_(self, model: Vector, direction: Direction) -> Vector:
        total, divisor, mixed, memory, *_ = direction
        following = np.empty(model.size, np.float32)
        step_kernel()(
            following, model, total, np.float32(mixed), np.float32(divisor), NOTHING if memory is None else memory,
            self.velocity, np.float32(self.momentum), np.float32(self.lr), self.rounded,
        )  # fmt: skip
        return following


def moved(model: Vector, step: Vector, rounded: Vector) -> Vector:
    """X + step, compensated: `rounded` holds what was lost before, and then what is lost now."""
    step = step + rounded
    following: Vector = model + step
    rounded[:] = step - (following - model)
    return following


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@cache
def step_kernel() -> Any:
    """The arithmetic of the step: compiled, which loads Numba, so when there is a server; or in NumPy."""
    if not kernels.are_compiled():
        return step_in_numpy
    from numba import njit  # noqa: PLC0415

    from qafel.compiled import KERNEL  # noqa: PLC0415

    return njit(**KERNEL)(_one_pass)


def _one_pass(following, model, total, mixed, divisor, memory, velocity, momentum, lr, rounded):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One pass, because NumPy's many small operations would cost a step more than ten small updates' decoding."""
    for j in range(model.size):
        update = (mixed * model[j] - total[j] if mixed else total[j]) / divisor
        if memory.size:
            update += memory[j]
        if velocity.size:
            update += velocity[j] * momentum
            velocity[j] = update
        if rounded.size:
            step = rounded[j] - lr * update
            following[j] = model[j] + step
            rounded[j] = step - (following[j] - model[j])
        else:
            following[j] = model[j] - lr * update


def step_in_numpy(
    following: Vector, model: Vector, total: Vector, mixed: Any, divisor: Any, memory: Vector, velocity: Vector,
    momentum: Any, lr: Any, rounded: Vector,
) -> None:  # fmt: skip
    """`_one_pass`, to the bit, without Numba."""
    with np.errstate(all="ignore"):  # the caller checks whether all is finite
        update = (mixed * model - total if mixed else total) / divisor
        if memory.size:
            update += memory
        if velocity.size:
            update += velocity * momentum
            velocity[:] = update
        following[:] = moved(model, -lr * update, rounded) if rounded.size else model - lr * update
