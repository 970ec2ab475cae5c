"""Bayesian search of a recipe's settings, for the fewest uploads or bytes to a target: `qafel tune`.

search   which settings, in which ranges or among which choices
trial    the objective; the recipe with some settings changed, run for every seed; what came of it
study    the Optuna study in its folder: which trial comes next
result   the best trials checked with unseen seeds; trials in order, and sentences for people
tune     all of it: trials to worker processes until there are enough
page     trials.csv, best.toml and index.html
"""

from qafel.tuning.result import Tuning
from qafel.tuning.search import Choices, Range, Search, default_search, parse_search
from qafel.tuning.trial import OBJECTIVES, Objective, ObjectiveName, RunOutcome, TrialOutcome
from qafel.tuning.tune import tune

__all__ = [
    "OBJECTIVES",
    "Choices",
    "Objective",
    "ObjectiveName",
    "Range",
    "RunOutcome",
    "Search",
    "TrialOutcome",
    "Tuning",
    "default_search",
    "parse_search",
    "tune",
]
