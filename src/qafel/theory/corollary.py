"""Corollary 3.2: the order of each term for step sizes that shrink with T, here with its constant.

The corollary's step sizes η_ℓ = a K⁻¹P^(−1/2)T^(−1/3), η_g = b K T^(−1/6), inserted into Theorem 3.1, give

    4/(ab) · F* / √(PT)                                          start
    2ab · L (2 − δ_c) σ_ℓ² / (K √(PT))                           noise
    80a² · L² P (σ_ℓ² + B) / (K² T^(2/3))                        drift
    8a²b² · L² (2 − δ_c)(τ² + 8/δ_s²) σ_ℓ² / (K T)               staleness

The paper prints L² in the noise and L in the staleness term: the insertion gives them the other way round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from qafel.tasks.synthetic import Constants
from qafel.theory.conditions import admissible
from qafel.theory.setting import Setting, check_constants, check_step_sizes
from qafel.theory.theorem import Bound


@final
@dataclass(frozen=True, slots=True)
class StepSizes:
    """η_ℓ and η_g."""

    client_lr: float
    server_lr: float


def corollary_step_sizes(setting: Setting, client_factor: float = 1.0, server_factor: float = 1.0) -> StepSizes:
    """η_ℓ = a K⁻¹P^(−1/2)T^(−1/3) and η_g = b K T^(−1/6), with a and b the two factors."""
    check_step_sizes(client_factor, server_factor)
    size, steps, horizon = setting.buffer_size, setting.local_steps, setting.server_steps
    return StepSizes(
        client_factor / (size * math.sqrt(steps) * math.cbrt(horizon)), server_factor * size * horizon ** (-1 / 6)
    )


def corollary(constants: Constants, setting: Setting, client_factor: float = 1.0, server_factor: float = 1.0) -> Bound:
    """The corollary's four terms with their constants. They bound a run from `large_enough_horizon` on."""
    check_constants(constants)
    check_step_sizes(client_factor, server_factor)
    smoothness, steps, size, horizon = (
        constants.smoothness,
        setting.local_steps,
        setting.buffer_size,
        setting.server_steps,
    )
    sigma2, both = constants.gradient_noise**2, client_factor * server_factor
    sent = (2 - setting.client_delta) * sigma2 / size
    root = math.sqrt(steps * horizon)
    return Bound(
        start=4 / both * constants.initial_gap / root,
        staleness=8 * (both * smoothness) ** 2 * sent * setting.staleness_factor / horizon,
        drift=80
        * (client_factor * smoothness / size) ** 2
        * steps
        * (sigma2 + constants.heterogeneity)
        / math.cbrt(horizon) ** 2,
        noise=2 * both * smoothness * sent / root,
    )


def large_enough_horizon(
    constants: Constants, setting: Setting, client_factor: float = 1.0, server_factor: float = 1.0
) -> int:
    """The smallest T from which on the corollary's step sizes are admissible; the setting's own T plays no part."""

    def suits(horizon: int) -> bool:
        longer = replace(setting, server_steps=horizon)
        sizes = corollary_step_sizes(longer, client_factor, server_factor)
        return admissible(constants, longer, sizes.client_lr, sizes.server_lr)

    high = 1
    while not suits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suits(middle) else (middle, high)
    return high
