"""The server's step with momentum: v ← βv + Δ̄, x ← x − η_g v."""

from __future__ import annotations

from typing import final

import numpy as np

from qafel.params import Vector


@final
class ServerStep:
    """Learning rate, momentum and, where there is momentum, the velocity. Equation (2)."""

    __slots__ = ("lr", "momentum", "velocity")

    def __init__(self, lr: float, momentum: float, dimension: int) -> None:
        self.lr = np.float32(lr)
        self.momentum = np.float32(momentum)
        self.velocity: Vector | None = np.zeros(dimension, np.float32) if momentum else None

    def apply(self, model: Vector, update: Vector) -> Vector:
        """The next server model, as a new vector."""
        if self.velocity is not None:
            self.velocity *= self.momentum
            self.velocity += update
            update = self.velocity
        return model - self.lr * update
