"""Whether a find holds: the best trials again, with seeds that the search has not seen.

The least of many noisy figures is lucky, and step sizes at the edge of stability reach a target by chance. So the best
trials are run again in order, each setting once, until none is left whose score in the search is below the best mean on
unseen seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from qafel.tuning.outcome import Outcome
from qafel.tuning.trial import Trial

CANDIDATES = 8
"""So many trials are checked at most."""


def check_best(trials: Iterable[Trial], run: Callable[[Trial, float], Outcome]) -> dict[int, Outcome]:
    """Outcomes on unseen seeds by trial number; `run` takes a trial and what a seed may cost on average."""
    found: dict[int, Outcome] = {}
    for trial in _distinct(sorted((trial for trial in trials if trial.good), key=lambda trial: trial.score))[
        :CANDIDATES
    ]:
        best = least(found)
        if trial.score >= best:
            break
        found[trial.number] = run(trial, best)
    return found


def _distinct(trials: Iterable[Trial]) -> list[Trial]:
    """The first trial of each setting."""
    first: dict[tuple[object, ...], Trial] = {}
    for trial in trials:
        first.setdefault(tuple(trial.settings.items()), trial)
    return list(first.values())


def least(checks: Mapping[int, Outcome]) -> float:
    """The best mean on unseen seeds that was measured, so far."""
    held = (check.score for check in checks.values() if check.good)
    return min(held, default=float("inf"))


def best_checked(trials: Iterable[Trial], checks: Mapping[int, Outcome]) -> Trial | None:
    """The trial that did best on unseen seeds; where none was checked, the one that did best in the search."""
    good = [trial for trial in trials if trial.good]
    if checked := [trial for trial in good if trial.number in checks]:
        return min(checked, key=lambda trial: (checks[trial.number].score, trial.score))
    return min(good, key=lambda trial: trial.score, default=None)
