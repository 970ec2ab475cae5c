"""Many runs: sweeps, tuning and planning.

runner     Makes runs in worker processes. Skips finished runs, resumes interrupted ones, reports failures.
grid       The runs of a sweep: recipes × seeds × settings.
sweeps     `qafel sweep`: the runs, a report and a table.
space      The settings that a search varies.
trial      One trial of a search: its runs, its objective, its outcome.
study      The Optuna study that proposes and prunes trials.
tuning     `qafel tune`: the search loop.
result     The trials in order, and sentences about them.
page       The files trials.csv, best.toml and index.html.
planning   `qafel plan`: a race of quantizers and K for a budget.
courses    The metric by uploads, and its extrapolation.
plan_text  A plan in words and as JSON.
"""

from qafel.search.courses import Interval
from qafel.search.plan_text import plan_json
from qafel.search.planning import BudgetPlan, Candidates, Pair, PlanRequest, Prediction, default_candidates, make_plan
from qafel.search.result import Tuning
from qafel.search.runner import RunSpec, Watcher, make_runs, perform, unfinished
from qafel.search.space import Choices, Range, Search, default_search, parse_search
from qafel.search.sweeps import Sweep, sweep
from qafel.search.trial import OBJECTIVES, Objective, ObjectiveName, RunOutcome, Trial
from qafel.search.tuning import tune

__all__ = [
    "OBJECTIVES",
    "BudgetPlan",
    "Candidates",
    "Choices",
    "Interval",
    "Objective",
    "ObjectiveName",
    "Pair",
    "PlanRequest",
    "Prediction",
    "Range",
    "RunOutcome",
    "RunSpec",
    "Search",
    "Sweep",
    "Trial",
    "Tuning",
    "Watcher",
    "default_candidates",
    "default_search",
    "make_plan",
    "make_runs",
    "parse_search",
    "perform",
    "plan_json",
    "sweep",
    "tune",
    "unfinished",
]
