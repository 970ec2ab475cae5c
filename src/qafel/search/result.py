"""The results of a search: the check of its best trials, their order, and sentences about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, final

from qafel.config import Config
from qafel.params import Layout
from qafel.search.space import SECTION, Search, Settings, recipe_settings, with_settings
from qafel.search.trial import FARTHEST, Objective, Trial, best_of
from qafel.text import counted

CANDIDATES = 8
"""The largest number of trials that are checked."""


def next_to_check(trials: Iterable[Trial], checks: Mapping[int, Trial], started: Container[int]) -> Trial | None:
    """The next trial to run again with unseen seeds. None if there is none left.

    The least of many noisy costs is a lucky one. So the best trials run again in order, each setting once, until no
    remaining trial has a score below the best mean on unseen seeds.

    checks    The trials that were checked, by number, with their outcomes on unseen seeds.
    started   The numbers of the trials that were checked or are being checked.
    """
    candidates: dict[tuple[object, ...], Trial] = {}  # the first trial of each setting
    for trial in sorted((trial for trial in trials if trial.good), key=lambda trial: trial.score):
        candidates.setdefault(tuple(trial.settings.items()), trial)
    best = min((check.score for check in checks.values() if check.good), default=math.inf)
    left = (trial for trial in list(candidates.values())[:CANDIDATES] if trial.number not in started)
    return next((trial for trial in left if trial.score < best), None)


@final
@dataclass(frozen=True)
class SearchProgress:
    """The trial that starts or ended, and the progress of the search."""

    trial: Trial
    best: Trial | None
    done: int
    objective: Objective
    checking: bool = False
    """Whether the trial runs again with unseen seeds."""


Watch: TypeAlias = Callable[[SearchProgress], None]


@final
@dataclass(frozen=True)
class Tuning:
    """A search and its results so far."""

    out: Path
    config: Config
    search: Search
    objective: Objective
    seeds: int
    trials: tuple[Trial, ...] = ()
    checks: Mapping[int, Trial] = field(default_factory=dict)
    """The best trials by number, with their outcomes on unseen seeds."""
    importance: Mapping[str, float] = field(default_factory=dict)
    layout: Layout | None = None
    exhausted: bool = False
    """Whether the search ended because it had tried everything."""

    @property
    def best(self) -> Trial | None:
        """The best trial on unseen seeds, or in the search if none was checked. None if no trial is good."""
        checked = [trial for trial in self.trials if trial.good and trial.number in self.checks]
        unseen_first = min(checked, key=lambda trial: (self.checks[trial.number].score, trial.score), default=None)
        return unseen_first or best_of(self.trials)

    @property
    def recipe_settings(self) -> Settings | None:
        """The recipe's settings, which trial 0 tries. None if the search space does not contain them."""
        return recipe_settings(self.config, self.search)

    @property
    def tuned(self) -> Config | None:
        """The recipe with the best settings and the recipe's limits. None if no trial is good."""
        if (best := self.best) is None:
            return None
        return with_settings(self.config, best.settings).model_copy(update={"name": f"{self.config.name}-tuned"})


Save: TypeAlias = Callable[[Tuning], object]


def short(path: str) -> str:
    """algorithm.client_lr → client_lr, task.arguments.size → task.size"""
    return path.removeprefix(SECTION).replace(".arguments.", ".")


def ranked(tuning: Tuning) -> list[Trial]:
    """The trials: the best one, then the good ones by score, then the others by the way that was left."""
    best = tuning.best
    return sorted(tuning.trials, key=lambda trial: (trial is not best, trial.score, trial.gap, trial.number))


def figure(tuning: Tuning, trial: Trial) -> str:
    """A trial's score for people, or the share of the way to the target that was left."""
    if trial.good:
        return tuning.objective.text(trial.score)
    return f"{trial.gap:.0%} left" if 0 < trial.gap < FARTHEST else "–"


def unseen(tuning: Tuning, trial: Trial) -> str:
    """The trial's score on unseen seeds; empty if it was not checked."""
    check = tuning.checks.get(trial.number)
    if check is None:
        return ""
    return tuning.objective.text(check.score) if check.good else check.state


def best_trials(tuning: Tuning, count: int) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table of the best trials, as text."""
    head = ["trial", *map(short, tuning.search), tuning.objective.name, "unseen", "outcome"]
    rows = [
        [*map(str, (one.number, *one.settings.values())), figure(tuning, one), unseen(tuning, one), one.state]
        for one in ranked(tuning)[:count]
    ]
    return head, rows


def lead_sentence(tuning: Tuning) -> str:
    """The result in a sentence."""
    objective, best = tuning.objective, tuning.best
    label = objective.label[0].upper() + objective.label[1:]
    count = f"{counted(len(tuning.trials), 'trial')}{_remarks(tuning)}"
    seeds = "" if tuning.seeds == 1 else f" of {tuning.seeds} seeds each"
    if best is None:
        return f"{label}: none of {count}{seeds} reached it."
    settings = ", ".join(f"{short(path)} = {value}" for path, value in best.settings.items())
    found = f"{label}: {objective.text(best.score)} with {settings}; found in {count}{seeds}"
    return f"{found}{_comparison(tuning, best)}{_on_unseen_seeds(tuning, best)}."


def failures(tuning: Tuning) -> list[str]:
    """The errors of failed trials, each once, with the numbers of the trials."""
    numbers: dict[str, list[str]] = {}
    for trial in tuning.trials:
        if trial.state == "failed":
            numbers.setdefault(trial.error, []).append(str(trial.number))
    return [
        f"trial{'' if len(those) == 1 else 's'} {', '.join(those)} failed: {error}" for error, those in numbers.items()
    ]


def _remarks(tuning: Tuning) -> str:
    """How many trials failed, and whether all settings were tried."""
    failed = sum(trial.state == "failed" for trial in tuning.trials)
    remarks = [f"{failed} failed"] if failed else []
    remarks += ["all settings were tried"] if tuning.exhausted else []
    return f" ({'; '.join(remarks)})" if remarks else ""


def _on_unseen_seeds(tuning: Tuning, best: Trial) -> str:
    check = tuning.checks.get(best.number)
    if check is None:
        return ""
    if check.good:
        return f"; on {counted(len(check.runs), 'unseen seed')} {tuning.objective.text(check.score)}"
    return f"; but on unseen seeds it {check.state}, like all checked trials: search with more seeds"


def _comparison(tuning: Tuning, best: Trial) -> str:
    """The best trial compared with the recipe's settings; empty if the search does not contain them."""
    first = next((trial for trial in tuning.trials if trial.number == 0), None)
    if first is None or tuning.recipe_settings is None or best.number == 0:
        return ""
    text = tuning.objective.text
    if not first.good:
        return f" (with the recipe's settings it {first.state})"
    if tuning.objective.name == "metric":
        return f" (the recipe's settings give {text(first.score)})"
    return f", {best.score / first.score:.3g} times what the recipe's settings take ({text(first.score)})"
