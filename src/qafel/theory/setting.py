"""What is chosen or given apart from the problem: P, K, T, the quantizers' δ and the staleness."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from qafel.tasks.synthetic import Constants
from qafel.theory.checks import LARGEST, require, require_not_negative, require_positive


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run as the theory sees it. The defaults of both δ are FedBuff's: nothing is quantized."""

    local_steps: int
    """P"""
    buffer_size: int
    """K"""
    server_steps: int
    """T"""
    max_staleness: int = 0
    """τ_max,K, counted in server steps of K updates."""
    client_delta: float = 1.0
    """δ_c = 1 − ω_c of the unbiased Q_c. The proof uses its variance alone, so that ω_c > 1 (δ_c < 0) is allowed."""
    server_delta: float = 1.0
    """δ_s in (0, 1]."""

    def __post_init__(self) -> None:
        for name, value in (
            ("local steps", self.local_steps),
            ("buffer size", self.buffer_size),
            ("server steps", self.server_steps),
        ):
            require(1 <= value <= LARGEST, f"the number of {name} is at least one, and at most {LARGEST:g}", value)
        require_not_negative("maximum staleness", self.max_staleness)
        require(
            math.isfinite(self.client_delta) and self.client_delta <= 1,
            "δ_c is at most one, and finite",
            self.client_delta,
        )
        require(
            0 < self.server_delta <= 1,
            "the server's quantizer needs δ_s in (0, 1], or the hidden state may run away from the model",
            self.server_delta,
        )

    def of_length(self, server_steps: int) -> Setting:
        """The same run, so many steps long: no update can be staler than the steps before it, τ ≤ T − 1."""
        return replace(self, server_steps=server_steps, max_staleness=min(self.max_staleness, server_steps - 1))

    def unquantized(self) -> Setting:
        """The same run of FedBuff: δ_c = δ_s = 1."""
        return replace(self, client_delta=1.0, server_delta=1.0)

    @property
    def staleness_factor(self) -> float:
        """τ²_max,K + 8/δ_s²: how staleness and the server's quantizer enter, always together."""
        return self.max_staleness**2 + 8 / self.server_delta**2


def max_staleness(updates: int, buffer_size: int) -> int:
    """The staleness in server steps, τ_max,K ≤ ⌈τ_max,1/K⌉, where `updates` is τ_max,1. Section III-A."""
    require_not_negative("maximum staleness", updates)
    require(buffer_size >= 1, "the buffer holds at least one update", buffer_size)
    return -(-updates // buffer_size)


def check_constants(constants: Constants) -> None:
    """Raise unless they are constants of some problem: finite, not negative, and L > 0."""
    require_positive("smoothness L", constants.smoothness)
    for name, value in (
        ("gradient noise σ_ℓ", constants.gradient_noise),
        ("heterogeneity B", constants.heterogeneity),
        ("gap f(x⁰) − f*", constants.initial_gap),
    ):
        require_not_negative(name, value)


def check_step_sizes(client_lr: float, server_lr: float) -> None:
    require(0 < client_lr < math.inf, "the client learning rate is positive", client_lr)
    require(0 < server_lr < math.inf, "the server learning rate is positive", server_lr)
