"""FedAdam: Adam as the server's step. Reddi et al., ICLR 2021.

With D = −Δ̄: m ← β₁m + (1 − β₁)D, v ← β₂v + (1 − β₂)D², x ← x + η_g m/(√v + ε). m⁰ = 0, v⁰ = ε², no bias correction.
"""

from __future__ import annotations

from typing import final

import numpy as np

from qafel.algorithm.algorithm import Algorithm
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import HIDDEN_STATE
from qafel.algorithm.parts import Direction, ServerRule
from qafel.algorithm.server_rules import is_number, moved
from qafel.errors import require
from qafel.params import Vector


@final
class Adam(ServerRule):
    """Adam on −Δ̄.

    lr                     η_g
    beta1, beta2, epsilon  β₁, β₂ and ε; a small ε makes steps of equal size in all coordinates
    compensated            keep what float32 rounds off x, as in `SGD`: adaptive steps can be far below x
    """

    def __init__(
        self, lr: float, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-3, compensated: bool = True
    ) -> None:
        betas = beta1, beta2
        require(is_number(lr) and lr > 0, "the server learning rate is positive", lr)
        require(all(is_number(it) and 0 <= it < 1 for it in betas), "beta1 and beta2 lie in [0, 1)", betas)
        require(is_number(epsilon) and epsilon > 0, "epsilon is positive", epsilon)
        require(isinstance(compensated, bool), "compensated is true or false", compensated)
        self.lr, self.beta1, self.beta2, self.epsilon, self.compensated = lr, beta1, beta2, epsilon, compensated

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        self.mean: Vector = np.zeros(size, np.float32)
        self.square: Vector = np.full(size, self.epsilon**2, np.float32)
        self.rounded: Vector = np.zeros(size if self.compensated else 0, np.float32)

    def step_(self, model: Vector, direction: Direction) -> Vector:
        beta1, beta2 = np.float32(self.beta1), np.float32(self.beta2)
        with np.errstate(all="ignore"):  # the server checks whether all is finite
            update: Vector = -direction.update(model)
            self.mean = beta1 * self.mean + (np.float32(1) - beta1) * update
            self.square = beta2 * self.square + (np.float32(1) - beta2) * update * update
            root: Vector = np.sqrt(self.square)
            step: Vector = np.float32(self.lr) * self.mean / (root + np.float32(self.epsilon))
            return moved(model, step, self.rounded) if self.compensated else model + step


FEDADAM = Preset("FedBuff's buffer, Adam at the server", {**HIDDEN_STATE, "server_rule": "adam"}, {"server_lr": 0.01})
