"""Many runs: sweeps, tuning and planning.

runner     makes runs in worker processes; skips finished runs, resumes interrupted ones, reports failures
grid       the runs of a sweep: recipes × seeds × settings
sweeps     `qafel sweep`: makes the runs, a report and a table
space      the settings that a search varies
trial      one trial of a search: its runs, its objective, its outcome
study      the Optuna study that proposes trials
tuning     `qafel tune`: the search loop
result     the trials in order, and sentences about them
page       trials.csv, best.toml and index.html
planning   `qafel plan`: quantizers and K for a budget
"""

from qafel.search.result import Tuning
from qafel.search.runner import RunSpec, Watcher, make_runs, perform, unfinished
from qafel.search.space import Choices, Range, Search, default_search, parse_search
from qafel.search.sweeps import Sweep, sweep
from qafel.search.trial import OBJECTIVES, Objective, ObjectiveName, RunOutcome, TrialOutcome
from qafel.search.tuning import tune

__all__ = [
    "OBJECTIVES",
    "Choices",
    "Objective",
    "ObjectiveName",
    "Range",
    "RunOutcome",
    "RunSpec",
    "Search",
    "Sweep",
    "TrialOutcome",
    "Tuning",
    "Watcher",
    "default_search",
    "make_runs",
    "parse_search",
    "perform",
    "sweep",
    "tune",
    "unfinished",
]
