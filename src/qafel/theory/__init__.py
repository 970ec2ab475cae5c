"""The paper's theory as functions: ask before you run.

setting      what is chosen: P, K, T, δ_c, δ_s, τ_max; the problem's own constants are `qafel.tasks.synthetic.Constants`
theorem      Theorem 3.1's bound, term by term
conditions   for which step sizes it holds, and the largest of them
corollary    Corollary 3.2's terms with their constants
best         the step sizes with the least bound
estimate     L, σ_ℓ and B from a task
durations    how long clients train
fleet        how fast updates come and how stale they are
renewal      how many updates have come by a time
exchange     the bytes of an upload and a broadcast
timetable    when server steps come
forecast     bytes and time of a run before it is run
demand       what is to be planned for, out of which candidates
plan         which quantizers, K and step sizes a budget affords
reasons      why, in sentences; caveats: what to make of it
plan_json    all of it as plain values
quantities   budgets and rates from text; checks: what a number may be
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
from qafel.theory.demand import Demand
from qafel.theory.durations import DurationLaw
from qafel.theory.estimate import (
    estimate_constants,
    estimate_gradient_noise,
    estimate_heterogeneity,
    estimate_smoothness,
    gradient,
    sampled_clients,
)
from qafel.theory.exchange import Exchange
from qafel.theory.fleet import Fleet
from qafel.theory.forecast import Forecast, affordable_steps, forecast
from qafel.theory.plan import Choice, Plan, make_plan
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
    "sampled_clients",
    "steps_to_reach",
    "trivial_bound",
]
