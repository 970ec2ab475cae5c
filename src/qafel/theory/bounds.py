"""Theorem 3.1, the bound on the mean squared gradient, and Corollary 3.2, its terms for step sizes that shrink with T.

(1/T) Σ E‖∇f(xᵗ)‖² ≤   4(f(x⁰) − f*) / (T η_g P η_ℓ)                            start
                     + 8L² η_g² P η_ℓ² (1 + ω_c)(τ² + 12/δ_s²) ς² / K           staleness
                     + 80 L² P² η_ℓ² (σ_ℓ² + B)                                 drift
                     + 2L η_g η_ℓ (1 + ω_c) ς² / K                              noise

Here ω_c = 1 − δ_c. The bound holds if clients start from the same model and the step sizes satisfy:

    η_g²(τ² + 12/δ_s²) + (1 + (1 + 2ω_c)/K) η_ℓ η_g L ≤ 1/P     server
    η_ℓ² ≤ 1 / (80 L² P² max(τ, ½))                             staleness
    η_ℓ ≤ 1 / (4L(P + 1))                                       local
    4P η_ℓ² L² (1 + ω_c/K) ≤ 1                                  quantizer

The paper prints other constants, which its proof does not support. It has f(0) − f(xᵀ), 8/δ_s² and σ_ℓ² for ς². In the
conditions it has 1 − δ for 1 + 2ω_c and τ for max(τ, ½), and it lacks the fourth. docs/reproduction-theorem.md
proves this version.

Corollary 3.2: its step sizes η_ℓ = a K⁻¹P^(−1/2)T^(−1/3), η_g = b K T^(−1/6), inserted into Theorem 3.1, give:

    4/(ab) · F* / √(PT)                                          start
    2ab · L (1 + ω_c) ς² / (K √(PT))                             noise
    80a² · L² P (σ_ℓ² + B) / (K² T^(2/3))                        drift
    8a²b² · L² (1 + ω_c)(τ² + 12/δ_s²) ς² / (K T)                staleness

`variance_of_mean` defines ς². The paper prints L² in the noise term and L in the staleness term; the insertion gives
the opposite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final

from qafel.errors import ConfigError, require
from qafel.tasks.convex.synthetic import Constants

SMALLEST, LARGEST = 1e-60, 1e60
"""The allowed magnitudes: squares and products of such numbers are finite."""

ROUNDING = 1e-12
"""Rounding tolerance of a condition, so that the largest step sizes are admissible."""

_GOLDEN = (math.sqrt(5) - 1) / 2
_DECADES = 12.0
_ACCURACY = 1e-5
_MOST_STEPS = 2**60


def require_positive(name: str, value: float) -> None:
    """Raise unless `value` is positive and within the allowed magnitudes."""
    require(SMALLEST <= value <= LARGEST, f"the {name} must be from {SMALLEST:g} to {LARGEST:g}", value)


def require_not_negative(name: str, value: float) -> None:
    """Raise unless `value` is at least zero and within the allowed magnitudes."""
    require(0 <= value <= LARGEST, f"the {name} must be from 0 to {LARGEST:g}", value)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The quantities of a run that do not depend on the problem.

    By default nothing is quantized, as in FedBuff.
    """

    local_steps: int
    """P"""
    buffer_size: int
    """K"""
    server_steps: int
    """T"""
    max_staleness: int = 0
    """τ_max,K, counted in server steps of K updates."""
    client_delta: float = 1.0
    """δ_c = 1 − ω_c of the unbiased Q_c. ω_c > 1 (δ_c < 0) is allowed: the proof uses only the variance, and the
    condition "quantizer" covers this case."""
    server_delta: float = 1.0
    """δ_s in (0, 1]."""

    def __post_init__(self) -> None:
        for name in ("local steps", "buffer size", "server steps"):
            value = getattr(self, name.replace(" ", "_"))
            require(1 <= value <= LARGEST, f"{name} must be from 1 to {LARGEST:g}", value)
        require_not_negative("maximum staleness", self.max_staleness)
        require(-math.inf < self.client_delta <= 1, "δ_c must be finite and at most 1", self.client_delta)
        # With δ_s ≤ 0 the hidden state may diverge from the model.
        require(0 < self.server_delta <= 1, "δ_s of the server's quantizer must be in (0, 1]", self.server_delta)

    def of_length(self, server_steps: int) -> Setting:
        """Return the same run with `server_steps` steps. No update can be staler than T − 1."""
        return replace(self, server_steps=server_steps, max_staleness=min(self.max_staleness, server_steps - 1))

    def unquantized(self) -> Setting:
        """Return the same run of FedBuff: δ_c = δ_s = 1."""
        return replace(self, client_delta=1.0, server_delta=1.0)

    @property
    def client_omega(self) -> float:
        """ω_c = 1 − δ_c: the variance of Q_c relative to ‖x‖²."""
        return 1 - self.client_delta

    @property
    def hidden_state_lag(self) -> float:
        """12/δ_s²: the cost of the distance between x̂ and x, in units of one server step."""
        return 12 / self.server_delta**2

    @property
    def staleness_factor(self) -> float:
        """τ²_max,K + 12/δ_s²: the joint effect of staleness and the server's quantizer."""
        return self.max_staleness**2 + self.hidden_state_lag


def max_staleness(updates: int, buffer_size: int) -> int:
    """Return the staleness in server steps of `buffer_size` updates: τ_max,K ≤ ⌈τ_max,1/K⌉, where `updates` is τ_max,1.

    Section III-A.
    """
    require_not_negative("maximum staleness", updates)
    require(buffer_size >= 1, "the buffer size must be at least 1", buffer_size)
    return -(-updates // buffer_size)


def check_constants(constants: Constants) -> None:
    """Raise unless the constants are finite and not negative, and L > 0."""
    require_positive("smoothness L", constants.smoothness)
    require_not_negative("gradient noise σ_ℓ", constants.gradient_noise)
    require_not_negative("heterogeneity B", constants.heterogeneity)
    require_not_negative("gap f(x⁰) − f*", constants.initial_gap)


def check_step_sizes(client_lr: float, server_lr: float) -> None:
    """Raise unless η_ℓ and η_g are positive and finite."""
    require(0 < client_lr < math.inf, "the client learning rate must be positive", client_lr)
    require(0 < server_lr < math.inf, "the server learning rate must be positive", server_lr)


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """The terms of the bound. `total` is their sum."""

    start: float
    """The distance of x⁰ from the optimum. It decreases with every step."""
    staleness: float
    """Stale updates and the server's quantizer, τ² + 12/δ_s²."""
    drift: float
    """The drift of clients towards their own optima during P steps."""
    noise: float
    """Stochastic gradients, random clients and their quantizer, averaged over K updates."""

    @property
    def total(self) -> float:
        return self.start + self.staleness + self.drift + self.noise


def bound(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> Bound:
    """Return the right-hand side of Theorem 3.1. It holds only for `admissible` step sizes.

    client_lr, server_lr   η_ℓ and η_g
    """
    check_constants(constants)
    check_step_sizes(client_lr, server_lr)
    smoothness, steps = constants.smoothness, setting.local_steps
    sigma2, sent = constants.gradient_noise**2, variance_of_mean(constants, setting)
    return Bound(
        start=4 * constants.initial_gap / (setting.server_steps * server_lr * steps * client_lr),
        staleness=8 * (smoothness * server_lr * client_lr) ** 2 * steps * setting.staleness_factor * sent,
        drift=80 * (smoothness * steps * client_lr) ** 2 * (sigma2 + constants.heterogeneity),
        noise=2 * smoothness * server_lr * client_lr * sent,
    )


def variance_of_mean(constants: Constants, setting: Setting) -> float:
    """Return (1 + ω_c)ς²/K: the variance of K averaged updates per local step, in units of η_ℓ².

    ς² = (1 + 3θ)σ_ℓ² + 2(1 + θ)/(1 − θ)·PB with θ = (P − 1)/(8(P + 1)). θ accounts for noise that affects later steps
    of an update. B accounts for the random choice of clients in the buffer.
    """
    steps = setting.local_steps
    theta = (steps - 1) / (8 * (steps + 1))
    drawn = 2 * (1 + theta) / (1 - theta) * steps * constants.heterogeneity
    noise = (1 + 3 * theta) * constants.gradient_noise**2
    return (1 + setting.client_omega) * (noise + drawn) / setting.buffer_size


def trivial_bound(constants: Constants) -> float:
    """Return 2L(f(x⁰) − f*) ≥ ‖∇f(x⁰)‖², which smoothness alone gives. A larger bound is useless."""
    return 2 * constants.smoothness * constants.initial_gap


@final
@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of Theorem 3.1: left ≤ right."""

    name: Literal["server", "staleness", "local", "quantizer"]
    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left <= self.right * (1 + ROUNDING)

    @property
    def excess(self) -> float:
        """left/right: above 1, the factor of the violation."""
        return self.left / self.right

    def __str__(self) -> str:
        return f"{_STATEMENTS[self.name]}: {self.left:.4g} ≤ {self.right:.4g}"


_STATEMENTS = {
    "server": "η_g²(τ² + 12/δ_s²) + (1 + (1 + 2ω_c)/K) η_ℓ η_g L ≤ 1/P",
    "staleness": "η_ℓ² ≤ 1/(80 L² P² max(τ, ½))",
    "local": "η_ℓ ≤ 1/(4L(P + 1))",
    "quantizer": "4P η_ℓ² L² (1 + ω_c/K) ≤ 1",
}


def conditions(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> tuple[Condition, ...]:
    """Return the four conditions of Theorem 3.1 with the values of both sides."""
    check_constants(constants)
    check_step_sizes(client_lr, server_lr)
    staleness, local, quantizer = _client_limits(constants, setting)
    server = server_lr**2 * setting.staleness_factor + _cross(constants, setting) * client_lr * server_lr
    return (
        Condition("server", server, 1 / setting.local_steps),
        Condition("staleness", client_lr**2, staleness**2),
        Condition("local", client_lr, local),
        Condition("quantizer", (client_lr / quantizer) ** 2, 1.0),
    )


def _client_limits(constants: Constants, setting: Setting) -> tuple[float, float, float]:
    """Return the largest η_ℓ by each condition on η_ℓ alone: staleness, local, quantizer."""
    smoothness, steps = constants.smoothness, setting.local_steps
    return (
        1 / (math.sqrt(80 * max(setting.max_staleness, 0.5)) * smoothness * steps),
        1 / (4 * smoothness * (steps + 1)),
        1 / (2 * smoothness * math.sqrt(steps * (1 + setting.client_omega / setting.buffer_size))),
    )


def admissible(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> bool:
    """Return whether Theorem 3.1 holds for these step sizes."""
    return all(condition.holds for condition in conditions(constants, setting, client_lr, server_lr))


def require_admissible(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> None:
    """Raise `ConfigError` unless Theorem 3.1 holds. The error lists each violated condition with its factor."""
    failing = [it for it in conditions(constants, setting, client_lr, server_lr) if not it.holds]
    if failing:
        listed = "; ".join(f"{it} fails by a factor of {it.excess:.3g}" for it in failing)
        raise ConfigError(
            f"Theorem 3.1 does not hold for η_ℓ = {client_lr:g}, η_g = {server_lr:g}: {listed}. "
            f"The largest η_ℓ is {largest_client_lr(constants, setting):.4g}"
        )


def largest_client_lr(constants: Constants, setting: Setting, server_lr: float | None = None) -> float:
    """Return the largest admissible η_ℓ; without η_g, by the conditions on η_ℓ alone. Zero: η_g is too large."""
    check_constants(constants)
    alone = min(_client_limits(constants, setting))
    if server_lr is None:
        return alone
    check_step_sizes(alone, server_lr)
    room = 1 / setting.local_steps - server_lr**2 * setting.staleness_factor
    return min(alone, max(0.0, room) / (_cross(constants, setting) * server_lr))


def largest_server_lr(constants: Constants, setting: Setting, client_lr: float) -> float:
    """Return the largest admissible η_g for this η_ℓ: the positive root of aη² + bη = 1/P."""
    check_constants(constants)
    check_step_sizes(client_lr, 1.0)
    b = _cross(constants, setting) * client_lr
    c = 1 / setting.local_steps
    return 2 * c / (b + math.sqrt(b * b + 4 * setting.staleness_factor * c))


def _cross(constants: Constants, setting: Setting) -> float:
    """(1 + (1 + 2ω_c)/K) L."""
    return (1 + (1 + 2 * setting.client_omega) / setting.buffer_size) * constants.smoothness


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
    """Return the corollary's four terms: the theorem's at its step sizes, with the factors a and b.

    They are a bound if T is at least `large_enough_horizon`.
    """
    sizes = corollary_step_sizes(setting, client_factor, server_factor)
    return bound(constants, setting, sizes.client_lr, sizes.server_lr)


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
    """Return the admissible η_ℓ and η_g with the smallest bound of Theorem 3.1.

    The bound and every condition are sums of exponentials of linear functions in log η_ℓ and log η_g. Both are convex
    and the minimum is unique. A one-dimensional search over η_ℓ, with the best η_g for each, finds it.
    """
    check_constants(constants)
    if constants.initial_gap == 0:
        raise ConfigError("f(x⁰) − f* = 0: x⁰ is optimal, and smaller step sizes always lower the bound")
    most = math.log(largest_client_lr(constants, setting))
    low, high = most - _DECADES * math.log(10), most

    def value(log_lr: float) -> float:
        client_lr = math.exp(log_lr)
        return bound(constants, setting, client_lr, _best_server_lr(constants, setting, client_lr)).total

    while high - low > _ACCURACY:  # golden sections
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if value(left) <= value(right) else (left, high)
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
