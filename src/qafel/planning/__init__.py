"""What a budget affords, before anything is run: `qafel plan`.

fleet      how long clients train; how fast their updates come and how stale they are
renewal    how many updates have come by a time
forecast   bytes of the two messages, when server steps come, bytes and time of a run
plan       what is planned for; which quantizers, K and step sizes the budget affords
explain    why, in sentences; what to make of it; all of it as plain values
"""

from qafel.planning.explain import plan_json, reasons
from qafel.planning.fleet import DurationLaw, Fleet
from qafel.planning.forecast import Exchange, Forecast, affordable_steps, forecast
from qafel.planning.plan import Choice, Demand, Plan, make_plan

__all__ = [
    "Choice",
    "Demand",
    "DurationLaw",
    "Exchange",
    "Fleet",
    "Forecast",
    "Plan",
    "affordable_steps",
    "forecast",
    "make_plan",
    "plan_json",
    "reasons",
]
