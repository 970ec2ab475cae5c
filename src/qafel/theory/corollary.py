"""Corollary 3.2: the order of each term for step sizes that shrink with T, here with its constant.

The corollary's step sizes η_ℓ = a K⁻¹P^(−1/2)T^(−1/3), η_g = b K T^(−1/6), inserted into Theorem 3.1, give

    4/(ab) · F* / √(PT)                                          start
    2ab · L (1 + ω_c) ς² / (K √(PT))                             noise
    80a² · L² P (σ_ℓ² + B) / (K² T^(2/3))                        drift
    8a²b² · L² (1 + ω_c)(τ² + 12/δ_s²) ς² / (K T)                staleness

with ς² as `variance_of_mean` says. The paper prints L² in the noise and L in the staleness term: the insertion gives
them the other way round.

The step sizes with the least bound: in log η_ℓ and log η_g the bound is a sum of exponentials of linear functions, and
so is every condition. Both are convex, the best is unique, and a one-dimensional search over η_ℓ with the best η_g for
each finds it.
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
    """The corollary's four terms with their constants, for step sizes with the factors a and b.

    They bound a run from `large_enough_horizon` on.
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
    """The smallest T from which on the corollary's step sizes are admissible; the T of `setting` is not used."""

    def suits(horizon: int) -> bool:
        longer = replace(setting, server_steps=horizon)
        sizes = corollary_step_sizes(longer, client_factor, server_factor)
        return admissible(constants, longer, sizes.client_lr, sizes.server_lr)

    return _smallest(suits)


def _smallest(holds: Callable[[int], bool], digits: int = 1000) -> int:
    """The smallest number for which `holds` is true, to so many binary digits, by doubling and bisection."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high >> digits):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def best_step_sizes(constants: Constants, setting: Setting) -> StepSizes:
    """The admissible η_ℓ and η_g that make Theorem 3.1's bound smallest."""
    check_constants(constants)
    if constants.initial_gap == 0:
        raise ConfigError("x⁰ is optimal, f(x⁰) − f* = 0: there is nothing to step towards")
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
    """Theorem 3.1's bound at its best step sizes."""
    sizes = best_step_sizes(constants, setting)
    return bound(constants, setting, sizes.client_lr, sizes.server_lr)


def steps_to_reach(constants: Constants, setting: Setting, target: float) -> int:
    """The fewest server steps T whose best bound is at most `target`; the T of `setting` is not used.

    A run of T steps is at most T − 1 stale, so that the bound need not fall with T at first: T is doubled from one.
    """
    if target <= 0:
        raise ConfigError(f"the bound is positive for every T: no number of steps brings it to {target:g}")

    def reached(steps: int) -> bool:
        if steps > _MOST_STEPS:
            raise ConfigError(f"more than 2^60 server steps would be needed for a bound of {target:g}")
        return best_bound(constants, setting.of_length(steps)).total <= target

    return _smallest(reached, digits=20)


def _best_server_lr(constants: Constants, setting: Setting, client_lr: float) -> float:
    """The minimum of s/η + nη + qη² over admissible η: the root of 2qη³ + nη² = s, or the largest there is."""
    unit = bound(constants, setting, client_lr, 1.0)
    most = largest_server_lr(constants, setting, client_lr)

    def slope(server_lr: float) -> float:
        return (2 * unit.staleness * server_lr + unit.noise) * server_lr**2 - unit.start

    if slope(most) <= 0:
        return most
    # Newton's steps from above on a convex increasing function fall to the root and never pass it.
    server_lr = most
    for _ in range(100):
        step = slope(server_lr) / ((6 * unit.staleness * server_lr + 2 * unit.noise) * server_lr)
        server_lr -= step
        if step <= 1e-13 * server_lr:
            break
    return server_lr
