"""Bayesian search of a recipe's settings, for the fewest uploads or bytes to a target: `qafel tune`.

search      which settings, in which ranges or among which choices
budget      whether all trials get the same one
objective   what is to be small, and how near a run came
outcome     what came of a run and of a trial
trial       the recipe with some settings changed, run for every seed
workers     where trials run: here, or in
processes   several others
folder      one search, one folder, one process
study       the Optuna study: which trial comes next
check       the best trials again, with unseen seeds
result      a search and what came of it
loop        trials to workers, until there are enough
tune        all of it: tune(config, search, …)
ranking     trials in order, figures and sentences for people
files       trials.csv and best.toml
axes        what the charts are drawn against
charts      pictures of the search
page        index.html
"""

from qafel.tuning.objective import OBJECTIVES, Objective, ObjectiveName, Outcome, RunOutcome
from qafel.tuning.result import Tuning
from qafel.tuning.search import Choices, Range, Search, default_search, parse_search
from qafel.tuning.tune import tune

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
