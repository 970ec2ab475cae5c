"""A search and what came of it: the best trials checked, in order, and in sentences for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, final

from qafel.config import Config
from qafel.params import Layout
from qafel.search.space import SECTION, Search, Settings, own_settings, with_settings
from qafel.search.trial import Objective, Trial, TrialOutcome, best_of
from qafel.text import counted

CANDIDATES = 8
"""So many trials are checked at most."""


def check_best(
    trials: Iterable[Trial], run: Callable[[Trial, float], TrialOutcome], checks: MutableMapping[int, TrialOutcome]
) -> None:
    """Run the best of the `trials` again with seeds that the search has not seen; add their outcomes to `checks`.

    The least of many noisy figures is lucky, and step sizes at the edge of stability reach a target by chance. So the
    best trials are run again in order, each setting once, until none is left whose score in the search is below the
    best mean on unseen seeds. `run` takes a trial and what a seed may cost on average.
    """
    candidates: dict[tuple[object, ...], Trial] = {}  # the first trial of each setting
    for trial in sorted((trial for trial in trials if trial.good), key=lambda trial: trial.score):
        candidates.setdefault(tuple(trial.settings.items()), trial)
    for trial in list(candidates.values())[:CANDIDATES]:
        best = min((check.score for check in checks.values() if check.good), default=math.inf)
        if trial.score >= best:
            break
        checks[trial.number] = run(trial, best)


@final
@dataclass(frozen=True)
class SearchProgress:
    """A trial begins or has ended: which, and how far the search is."""

    trial: Trial
    best: Trial | None
    done: int
    objective: Objective
    checked: int | None = None
    """While a trial is checked: how many unseen seeds are done."""


Watch: TypeAlias = Callable[[SearchProgress], None]


@final
@dataclass(frozen=True)
class Tuning:
    """A search and what came of it, so far or in the end."""

    out: Path
    config: Config
    search: Search
    objective: Objective
    seeds: int
    trials: tuple[Trial, ...] = ()
    checks: Mapping[int, TrialOutcome] = field(default_factory=dict)
    """What the best trials did on seeds that the search has not seen."""
    importance: Mapping[str, float] = field(default_factory=dict)
    layout: Layout | None = None
    exhausted: bool = False
    """Whether it ended because there was nothing new to try."""

    @property
    def best(self) -> Trial | None:
        """The best on unseen seeds, or if none was checked in the search, of the good trials; None if none is good."""
        checked = [trial for trial in self.trials if trial.good and trial.number in self.checks]
        unseen_first = min(checked, key=lambda trial: (self.checks[trial.number].score, trial.score), default=None)
        return unseen_first or best_of(self.trials)

    @property
    def own(self) -> Settings | None:
        """The recipe's own settings, which trial 0 tries; None if the search does not hold them."""
        return own_settings(self.config, self.search)

    @property
    def tuned(self) -> Config | None:
        """The recipe with the best settings; where it stops is the recipe's own business. None if no trial is good."""
        if (best := self.best) is None:
            return None
        return with_settings(self.config, best.settings).model_copy(update={"name": f"{self.config.name}-tuned"})


Save: TypeAlias = Callable[[Tuning], object]


def short(path: str) -> str:
    """algorithm.client_lr → client_lr, task.arguments.size → task.size"""
    return path.removeprefix(SECTION).replace(".arguments.", ".")


def ranked(tuning: Tuning) -> list[Trial]:
    """The best, then measured trials, then estimates, then the lost; each kind by its score."""
    best = tuning.best
    return sorted(tuning.trials, key=lambda trial: (trial is not best, not trial.good, trial.score, trial.number))


def figure(tuning: Tuning, trial: Trial) -> str:
    """A trial's score for people, with ≈ before an estimate."""
    if trial.lost:
        return "–"
    return f"{'' if trial.good else '≈ '}{tuning.objective.text(trial.score)}"


def unseen(tuning: Tuning, trial: Trial) -> str:
    """What the trial did on unseen seeds; empty if it was not run with any."""
    check = tuning.checks.get(trial.number)
    if check is None:
        return ""
    return tuning.objective.text(check.score) if check.good else check.state


def lead_sentence(tuning: Tuning) -> str:
    """What was found, in a sentence."""
    objective, best = tuning.objective, tuning.best
    label = objective.label[0].upper() + objective.label[1:]
    count = f"{counted(len(tuning.trials), 'trial')}{_remarks(tuning)}"
    seeds = "" if tuning.seeds == 1 else f" of {tuning.seeds} seeds each"
    if best is None:
        return f"{label}: none of {count}{seeds} came that far."
    settings = ", ".join(f"{short(path)} = {value}" for path, value in best.settings.items())
    found = f"{label}: {objective.text(best.score)} with {settings}; found in {count}{seeds}"
    return f"{found}{_comparison(tuning, best)}{_on_unseen_seeds(tuning, best)}."


def failures(tuning: Tuning) -> list[str]:
    """Why trials failed: each reason once, with the trials it ended."""
    numbers: dict[str, list[str]] = {}
    for trial in tuning.trials:
        if trial.state == "failed":
            numbers.setdefault(trial.outcome.error, []).append(str(trial.number))
    return [
        f"trial{'' if len(those) == 1 else 's'} {', '.join(those)} failed: {error}" for error, those in numbers.items()
    ]


def _remarks(tuning: Tuning) -> str:
    """What else there is to say of how many trials there were."""
    failed = sum(trial.state == "failed" for trial in tuning.trials)
    remarks = [f"{failed} failed"] if failed else []
    remarks += ["there is nothing else to try"] if tuning.exhausted else []
    return f" ({'; '.join(remarks)})" if remarks else ""


def _on_unseen_seeds(tuning: Tuning, best: Trial) -> str:
    check = tuning.checks.get(best.number)
    if check is None:
        return ""
    if check.good:
        return f"; on {counted(len(check.runs), 'unseen seed')} {tuning.objective.text(check.score)}"
    return f"; but on unseen seeds it {check.state}, like all that were tried: search with more seeds"


def _comparison(tuning: Tuning, best: Trial) -> str:
    """How much less the best needs than the recipe's own settings; empty if that cannot be said."""
    own = next((trial for trial in tuning.trials if trial.number == 0), None)
    if own is None or tuning.own is None or best.number == 0:
        return ""
    text = tuning.objective.text
    if not own.good:
        return f" (with the recipe's own settings it {own.state})"
    if tuning.objective.name == "metric":
        return f" (the recipe's own settings give {text(own.score)})"
    return f", {best.score / own.score:.3g} times what the recipe's own settings take ({text(own.score)})"
