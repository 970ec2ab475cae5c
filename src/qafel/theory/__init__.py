"""The paper's theory as functions. They predict a run before it starts.

bounds     the setting of a run; Theorem 3.1 and Corollary 3.2, term by term; admissible and best step sizes
estimate   L, σ_ℓ and B from a task

The constants of a problem are `qafel.tasks.convex.synthetic.Constants`.
"""

from qafel.tasks.convex.synthetic import Constants
from qafel.theory.bounds import (
    Bound,
    Condition,
    Setting,
    StepSizes,
    admissible,
    best_bound,
    best_step_sizes,
    bound,
    conditions,
    corollary,
    corollary_step_sizes,
    large_enough_horizon,
    largest_client_lr,
    largest_server_lr,
    max_staleness,
    require_admissible,
    steps_to_reach,
    trivial_bound,
)
from qafel.theory.estimate import (
    estimate_constants,
    estimate_gradient_noise,
    estimate_heterogeneity,
    estimate_smoothness,
    sampled_clients,
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
