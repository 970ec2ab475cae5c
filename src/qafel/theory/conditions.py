"""For which step sizes Theorem 3.1 holds.

    η_g²(τ² + 8/δ_s²) + (1 + (1 − δ)/K) η_ℓ η_g L ≤ 1/P         server
    η_ℓ² ≤ 1 / (80 L² P² τ)                                     staleness
    η_ℓ ≤ 1 / (4L(P + 1))                                       local

The theorem prints δ_s for the δ of the first line; its own Corollary (appendix) has δ_c there. We take the smaller of
the two, which is right whichever was meant. With τ = 0 the second is no condition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

from qafel.errors import ConfigError
from qafel.tasks.synthetic import Constants
from qafel.theory.setting import Setting, check_constants, check_step_sizes

ROUNDING = 1e-12
"""What floating-point arithmetic may add to a left-hand side: the largest step sizes are admissible themselves."""


@final
@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: left ≤ right."""

    name: Literal["server", "staleness", "local"]
    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left <= self.right * (1 + ROUNDING)

    @property
    def excess(self) -> float:
        """left/right: above one, by how much it fails."""
        return self.left / self.right

    def __str__(self) -> str:
        return f"{_STATEMENTS[self.name]}: {self.left:.4g} ≤ {self.right:.4g}"


_STATEMENTS = {
    "server": "η_g²(τ² + 8/δ_s²) + (1 + (1 − δ)/K) η_ℓ η_g L ≤ 1/P",
    "staleness": "η_ℓ² ≤ 1/(80 L² P² τ)",
    "local": "η_ℓ ≤ 1/(4L(P + 1))",
}


def conditions(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> tuple[Condition, ...]:
    """The three conditions of Theorem 3.1 with both sides worked out."""
    check_constants(constants)
    check_step_sizes(client_lr, server_lr)
    smoothness, steps = constants.smoothness, setting.local_steps
    return (
        Condition(
            "server",
            server_lr**2 * setting.staleness_factor + _cross(constants, setting) * client_lr * server_lr,
            1 / steps,
        ),
        Condition("staleness", client_lr**2, _divided(1, 80 * (smoothness * steps) ** 2 * setting.max_staleness)),
        Condition("local", client_lr, 1 / (4 * smoothness * (steps + 1))),
    )


def admissible(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> bool:
    return all(condition.holds for condition in conditions(constants, setting, client_lr, server_lr))


def require_admissible(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> None:
    """Raise, naming each condition that fails and by what factor, unless Theorem 3.1 holds for these step sizes."""
    failing = [it for it in conditions(constants, setting, client_lr, server_lr) if not it.holds]
    if failing:
        listed = "; ".join(f"{it} fails by a factor of {it.excess:.3g}" for it in failing)
        raise ConfigError(
            f"Theorem 3.1 says nothing for η_ℓ = {client_lr:g}, η_g = {server_lr:g}: {listed}. "
            f"The largest η_ℓ is {largest_client_lr(constants, setting):.4g}"
        )


def largest_client_lr(constants: Constants, setting: Setting, server_lr: float | None = None) -> float:
    """The largest admissible η_ℓ; without η_g, what the two conditions on η_ℓ alone allow. Zero: η_g is too large."""
    check_constants(constants)
    smoothness, steps = constants.smoothness, setting.local_steps
    local = 1 / (4 * smoothness * (steps + 1))
    stale = _divided(1, math.sqrt(80 * setting.max_staleness) * smoothness * steps)
    if server_lr is None:
        return min(local, stale)
    check_step_sizes(local, server_lr)
    room = 1 / steps - server_lr**2 * setting.staleness_factor
    return min(local, stale, max(0.0, room) / (_cross(constants, setting) * server_lr))


def largest_server_lr(constants: Constants, setting: Setting, client_lr: float) -> float:
    """The largest η_g that is admissible with this η_ℓ: the positive root of aη² + bη = 1/P."""
    check_constants(constants)
    check_step_sizes(client_lr, 1.0)
    b = _cross(constants, setting) * client_lr
    c = 1 / setting.local_steps
    return 2 * c / (b + math.sqrt(b * b + 4 * setting.staleness_factor * c))


def _cross(constants: Constants, setting: Setting) -> float:
    """(1 + (1 − δ)/K) L."""
    delta = min(setting.client_delta, setting.server_delta)
    return (1 + (1 - delta) / setting.buffer_size) * constants.smoothness


def _divided(one: float, by: float) -> float:
    return one / by if by else math.inf
