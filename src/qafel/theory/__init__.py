"""The paper's theory as functions. They predict a run before it starts.

theorem     the setting of a run, Theorem 3.1's bound term by term, and its conditions on step sizes
corollary   Corollary 3.2's terms with their constants, and the step sizes with the smallest bound
estimate    L, σ_ℓ and B from a task

The constants of a problem are `qafel.tasks.convex.synthetic.Constants`.
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
