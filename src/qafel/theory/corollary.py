"""Corollary 3.2 with constants: the terms of the bound for step sizes that shrink with T.

The corollary's step sizes η_ℓ = a K⁻¹P^(−1/2)T^(−1/3), η_g = b K T^(−1/6), inserted into Theorem 3.1, give:

    4/(ab) · F* / √(PT)                                          start
    2ab · L (1 + ω_c) ς² / (K √(PT))                             noise
    80a² · L² P (σ_ℓ² + B) / (K² T^(2/3))                        drift
    8a²b² · L² (1 + ω_c)(τ² + 12/δ_s²) ς² / (K T)                staleness

`variance_of_mean` defines ς². The paper prints L² in the noise term and L in the staleness term; the insertion gives
the opposite.

The bound and every condition are sums of exponentials of linear functions in log η_ℓ and log η_g. Both are convex and
the minimum is unique. A one-dimensional search over η_ℓ, with the best η_g for each, finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from qafel.errors import ConfigError
from qafel.tasks.convex.synthetic import Constants
from qafel.theory.theorem import (
    Bound,
    Setting,
    admissible,
    bound,
    check_constants,
    check_step_sizes,
    largest_client_lr,
    largest_server_lr,
    variance_of_mean,
)

_GOLDEN = (math.sqrt(5) - 1) / 2
_DECADES = 12.0
_ACCURACY = 1e-5
_MOST_STEPS = 2**60


@final
@dataclass(frozen=True, slots=True)
class StepSizes:
    """η_ℓ and η_g."""

    client_lr: float
    server_lr: float


def corollary_step_sizes(setting: Setting, client_factor: float = 1.0, server_factor: float = 1.0) -> StepSizes:
    """η_ℓ = a K⁻¹P^(−1/2)T^(−1/3) and η_g = b K T^(−1/6); a is `client_factor`, b is `server_factor`."""
    check_step_sizes(client_factor, server_factor)
    size, steps, horizon = setting.buffer_size, setting.local_steps, setting.server_steps
    return StepSizes(
        client_factor / (size * math.sqrt(steps) * math.cbrt(horizon)), server_factor * size * horizon ** (-1 / 6)
    )


def corollary(constants: Constants, setting: Setting, client_factor: float = 1.0, server_factor: float = 1.0) -> Bound:
    """Return the corollary's four terms for step sizes with the factors a and b.

    They are a bound if T is at least `large_enough_horizon`.
    """
    check_constants(constants)
    check_step_sizes(client_factor, server_factor)
    steps, size, horizon = setting.local_steps, setting.buffer_size, setting.server_steps
    smoothness, sigma2, both = constants.smoothness, constants.gradient_noise**2, client_factor * server_factor
    sent = variance_of_mean(constants, setting)
    root, drift = math.sqrt(steps * horizon), 80 * (client_factor * smoothness / size) ** 2 * steps
    return Bound(
        start=4 / both * constants.initial_gap / root,
        staleness=8 * (both * smoothness) ** 2 * sent * setting.staleness_factor / horizon,
        drift=drift * (sigma2 + constants.heterogeneity) / math.cbrt(horizon) ** 2,
        noise=2 * both * smoothness * sent / root,
    )


def large_enough_horizon(
    constants: Constants, setting: Setting, client_factor: float = 1.0, server_factor: float = 1.0
) -> int:
    """Return the smallest T with admissible corollary step sizes. It ignores the T of `setting`."""

    def suits(horizon: int) -> bool:
        longer = replace(setting, server_steps=horizon)
        sizes = corollary_step_sizes(longer, client_factor, server_factor)
        return admissible(constants, longer, sizes.client_lr, sizes.server_lr)

    return _smallest(suits)


def _smallest(holds: Callable[[int], bool], digits: int = 1000) -> int:
    """Return the smallest number where `holds` is true, to `digits` binary digits, by doubling and bisection."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high >> digits):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def best_step_sizes(constants: Constants, setting: Setting) -> StepSizes:
    """Return the admissible η_ℓ and η_g with the smallest bound of Theorem 3.1."""
    check_constants(constants)
    if constants.initial_gap == 0:
        raise ConfigError("f(x⁰) − f* = 0: x⁰ is optimal, and smaller step sizes always lower the bound")
    most = math.log(largest_client_lr(constants, setting))
    low, high = most - _DECADES * math.log(10), most

    def value(log_lr: float) -> float:
        client_lr = math.exp(log_lr)
        return bound(constants, setting, client_lr, _best_server_lr(constants, setting, client_lr)).total

    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = value(left), value(right)
    while high - low > _ACCURACY:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = value(right)
    client_lr = math.exp(high if value(high) <= value(low) else low)
    return StepSizes(client_lr, _best_server_lr(constants, setting, client_lr))


def best_bound(constants: Constants, setting: Setting) -> Bound:
    """Return Theorem 3.1's bound at its best step sizes."""
    sizes = best_step_sizes(constants, setting)
    return bound(constants, setting, sizes.client_lr, sizes.server_lr)


def steps_to_reach(constants: Constants, setting: Setting, target: float) -> int:
    """Return the fewest server steps T whose best bound is at most `target`. It ignores the T of `setting`.

    The staleness of a run of T steps is at most T − 1, so the bound may first grow with T. The search doubles T from 1.
    """
    if target <= 0:
        raise ConfigError(f"the target must be positive, as the bound is for every T; got {target:g}")

    def reached(steps: int) -> bool:
        if steps > _MOST_STEPS:
            raise ConfigError(f"a bound of {target:g} needs more than 2^60 server steps: choose a larger target")
        return best_bound(constants, setting.of_length(steps)).total <= target

    return _smallest(reached, digits=20)


def _best_server_lr(constants: Constants, setting: Setting, client_lr: float) -> float:
    """Return the admissible η that minimizes s/η + nη + qη²: the root of 2qη³ + nη² = s, or the largest η."""
    unit = bound(constants, setting, client_lr, 1.0)
    most = largest_server_lr(constants, setting, client_lr)

    def slope(server_lr: float) -> float:
        return (2 * unit.staleness * server_lr + unit.noise) * server_lr**2 - unit.start

    if slope(most) <= 0:
        return most
    # Newton's method from above on a convex increasing function decreases to the root.
    server_lr = most
    for _ in range(100):
        step = slope(server_lr) / ((6 * unit.staleness * server_lr + 2 * unit.noise) * server_lr)
        server_lr -= step
        if step <= 1e-13 * server_lr:
            break
    return server_lr
