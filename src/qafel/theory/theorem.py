"""Theorem 3.1: how small the gradient becomes on average, term by term.

(1/T) Σ E‖∇f(xᵗ)‖² ≤   4(f(x⁰) − f*) / (T η_g P η_ℓ)                            start
                     + 8L² η_g² P η_ℓ² (2 − δ_c)(τ² + 8/δ_s²) σ_ℓ² / K          staleness
                     + 80 L² P² η_ℓ² (σ_ℓ² + B)                                 drift
                     + 2L η_g η_ℓ (2 − δ_c) σ_ℓ² / K                            noise

with f(x⁰) − f* where the paper prints f(0) − f(xᵀ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from qafel.tasks.synthetic import Constants
from qafel.theory.setting import Setting, check_constants, check_step_sizes


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """The terms of the bound; `total` is the bound."""

    start: float
    """How far x⁰ is from the optimum: falls with every step."""
    staleness: float
    """Stale updates and the server's quantizer, τ² + 8/δ_s²."""
    drift: float
    """Clients that walk towards their own optima for P steps."""
    noise: float
    """Stochastic gradients and the clients' quantizer, averaged over K updates."""

    @property
    def total(self) -> float:
        return self.start + self.staleness + self.drift + self.noise


def bound(constants: Constants, setting: Setting, client_lr: float, server_lr: float) -> Bound:
    """The right-hand side of Theorem 3.1. It holds only for step sizes that are `admissible`."""
    check_constants(constants)
    check_step_sizes(client_lr, server_lr)
    smoothness, steps, size = constants.smoothness, setting.local_steps, setting.buffer_size
    sigma2 = constants.gradient_noise**2
    sent = (2 - setting.client_delta) * sigma2 / size
    return Bound(
        start=4 * constants.initial_gap / (setting.server_steps * server_lr * steps * client_lr),
        staleness=8 * (smoothness * server_lr * client_lr) ** 2 * steps * setting.staleness_factor * sent,
        drift=80 * (smoothness * steps * client_lr) ** 2 * (sigma2 + constants.heterogeneity),
        noise=2 * smoothness * server_lr * client_lr * sent,
    )


def trivial_bound(constants: Constants) -> float:
    """‖∇f(x⁰)‖² ≤ 2L(f(x⁰) − f*), which smoothness alone gives: a bound above it says nothing."""
    return 2 * constants.smoothness * constants.initial_gap
