"""The paper's theory as functions: ask before you run.

setting      what is chosen: P, K, T, δ_c, δ_s, τ_max; the problem's own constants are `qafel.tasks.synthetic.Constants`
theorem      Theorem 3.1's bound, term by term
conditions   for which step sizes it holds, and the largest of them
corollary    Corollary 3.2's terms with their constants
best         the step sizes with the least bound
estimate     L, σ_ℓ and B from a task
fleet        how fast updates come and how stale they are
forecast     bytes and time of a run before it is run
plan         which quantizers, K and step sizes a budget affords
reasons      why, in sentences
plan_json    all of it as plain values
"""

from qafel.tasks.synthetic import Constants
from qafel.theory.best import best_bound, best_step_sizes, steps_to_reach
from qafel.theory.conditions import (
    Condition,
    admissible,
    conditions,
    largest_client_lr,
    largest_server_lr,
    require_admissible,
)
from qafel.theory.corollary import StepSizes, corollary, corollary_step_sizes, large_enough_horizon
from qafel.theory.estimate import (
    estimate_constants,
    estimate_gradient_noise,
    estimate_heterogeneity,
    estimate_smoothness,
    gradient,
)
from qafel.theory.fleet import DurationLaw, Fleet
from qafel.theory.forecast import Exchange, Forecast, affordable_steps, forecast
from qafel.theory.plan import Choice, Demand, Plan, make_plan
from qafel.theory.plan_json import plan_json
from qafel.theory.reasons import reasons
from qafel.theory.setting import Setting, max_staleness
from qafel.theory.theorem import Bound, bound, trivial_bound

__all__ = [
    "Bound",
    "Choice",
    "Condition",
    "Constants",
    "Demand",
    "DurationLaw",
    "Exchange",
    "Fleet",
    "Forecast",
    "Plan",
    "Setting",
    "StepSizes",
    "admissible",
    "affordable_steps",
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
    "forecast",
    "gradient",
    "large_enough_horizon",
    "largest_client_lr",
    "largest_server_lr",
    "make_plan",
    "max_staleness",
    "plan_json",
    "reasons",
    "require_admissible",
    "steps_to_reach",
    "trivial_bound",
]
