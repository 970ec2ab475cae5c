"""What to choose under a budget: `qafel plan`.

updates    how long clients train, and how many updates are expected by a time
forecast   a fleet and the bytes of its messages; when server steps come; bytes and time of a run
curves     a metric's course by uploads: carried on, and slowed down by noise
pilot      short runs of the user's own task, and what quantizers do to its updates
plan       every pair of quantizers and K predicted, the best checked, one recommended
explain    what cannot be said, and why it says the rest; all of it as plain values
"""

from qafel.search.planning.explain import caveats, column, plan_json, reasons
from qafel.search.planning.forecast import Fleet, Forecast, MessageSizes, affordable_steps, forecast
from qafel.search.planning.pilot import Candidates, Pair
from qafel.search.planning.plan import (
    Plan,
    PlanRequest,
    Prediction,
    Range,
    checked_candidates,
    default_candidates,
    make_plan,
)
from qafel.search.planning.updates import DurationLaw

__all__ = [
    "Candidates",
    "DurationLaw",
    "Fleet",
    "Forecast",
    "MessageSizes",
    "Pair",
    "Plan",
    "PlanRequest",
    "Prediction",
    "Range",
    "affordable_steps",
    "caveats",
    "checked_candidates",
    "column",
    "default_candidates",
    "forecast",
    "make_plan",
    "plan_json",
    "reasons",
]
