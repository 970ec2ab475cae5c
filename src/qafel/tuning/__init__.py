"""Bayesian search of a recipe's settings, for the fewest uploads or bytes to a target: `qafel tune`.

search      which settings, in which ranges or among which choices
objective   what is to be small, and what came of a run and of a trial
trial       the recipe with some settings changed, run for every seed
workers     where trials run
folder      one search, one folder, one process
study       the Optuna study: which trial comes next
check       the best trials again, with unseen seeds
tune        all of it: tune(config, search, …)
ranking     trials in order, figures and sentences for people
files       trials.csv and best.toml
charts      pictures of the search
page        index.html
"""

from qafel.tuning.objective import OBJECTIVES, Objective, ObjectiveName, Outcome, RunOutcome
from qafel.tuning.search import Choices, Range, Search, default_search, parse_search
from qafel.tuning.tune import Tuning, tune

__all__ = [
    "OBJECTIVES",
    "Choices",
    "Objective",
    "ObjectiveName",
    "Outcome",
    "Range",
    "RunOutcome",
    "Search",
    "Tuning",
    "default_search",
    "parse_search",
    "tune",
]
