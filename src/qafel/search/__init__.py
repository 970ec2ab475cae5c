"""Many runs: sweeps, tuning and planning.

runner     Makes runs in worker processes. Skips finished runs, resumes interrupted ones, reports failures.
sweeps     `qafel sweep`: recipes × seeds × settings, with a report and a table.
space      The settings that a search varies.
trials     The trials of a search: their runs, their objective, their outcomes.
tuning     `qafel tune`: the search loop, and the Optuna study that proposes and prunes trials.
page       A search in words, and the files trials.csv, best.toml and index.html.
planning   `qafel plan`: a race of quantizers and K for a budget.
courses    The metric by uploads, and its extrapolation.
"""

from typing import TYPE_CHECKING

from qafel.lazy import lazily
from qafel.search.planning import (
    BudgetPlan,
    Candidates,
    Pair,
    PlanRequest,
    Prediction,
    default_candidates,
    make_plan,
    plan_json,
)
from qafel.search.runner import RunSpec, Watcher, make_runs, perform, unfinished
from qafel.search.space import Choices, Range, Search, default_search, parse_search
from qafel.search.sweeps import Sweep, sweep
from qafel.search.trials import Objective, ObjectiveName, RunOutcome, Trial, Tuning

if TYPE_CHECKING:
    from qafel.search.tuning import tune

__getattr__, __dir__ = lazily(__name__, {"tune": "qafel.search.tuning:tune"})  # needs Optuna, an optional extra

__all__ = [
    "BudgetPlan",
    "Candidates",
    "Choices",
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
