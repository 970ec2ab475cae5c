"""The paper's theory as functions: ask before you run.

theorem      what is chosen (P, K, T, δ_c, δ_s, τ_max), Theorem 3.1's bound term by term, for which step sizes it holds
corollary    Corollary 3.2's terms with their constants, and the step sizes with the least bound
estimate     L, σ_ℓ and B from a task

The problem's own constants are `qafel.tasks.convex.synthetic.Constants`.
"""

from qafel.tasks.convex.synthetic import Constants
from qafel.theory.corollary import (
    StepSizes,
    best_bound,
    best_step_sizes,
    corollary,
    corollary_step_sizes,
    large_enough_horizon,
    steps_to_reach,
)
from qafel.theory.estimate import (
    estimate_constants,
    estimate_gradient_noise,
    estimate_heterogeneity,
    estimate_smoothness,
    sampled_clients,
)
from qafel.theory.theorem import (
    Bound,
    Condition,
    Setting,
    admissible,
    bound,
    conditions,
    largest_client_lr,
    largest_server_lr,
    max_staleness,
    require_admissible,
    trivial_bound,
)

__all__ = [
    "Bound",
    "Condition",
    "Constants",
    "Setting",
    "StepSizes",
    "admissible",
    "best_bound",
    "best_step_sizes",
    "bound",
    "conditions",
    "corollary",
    "corollary_step_sizes",
    "estimate_constants",
    "estimate_gradient_noise",
    "estimate_heterogeneity",
    "estimate_smoothness",
    "large_enough_horizon",
    "largest_client_lr",
    "largest_server_lr",
    "max_staleness",
    "require_admissible",
    "sampled_clients",
    "steps_to_reach",
    "trivial_bound",
]
