"""What a budget affords, before anything is run: `qafel plan`.

updates    how long clients train, and how many updates are expected by a time
forecast   a fleet and the bytes of its messages; when server steps come; bytes and time of a run
plan       what is planned for; which quantizers, K and step sizes the budget affords
explain    why, in sentences; all of it as plain values
"""

from qafel.planning.explain import plan_json, reasons
from qafel.planning.forecast import Fleet, Forecast, MessageSizes, affordable_steps, forecast
from qafel.planning.plan import BudgetPlan, Choice, PlanRequest, make_plan
from qafel.planning.updates import DurationLaw

__all__ = [
    "BudgetPlan",
    "Choice",
    "DurationLaw",
    "Fleet",
    "Forecast",
    "MessageSizes",
    "PlanRequest",
    "affordable_steps",
    "forecast",
    "make_plan",
    "plan_json",
    "reasons",
]
