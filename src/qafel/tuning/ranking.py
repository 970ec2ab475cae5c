"""A search's trials in order, and how the best compares with the recipe as it was."""

from __future__ import annotations

from qafel.tuning.files import short
from qafel.tuning.trial import Trial
from qafel.tuning.tune import Tuning


def ranked(tuning: Tuning) -> list[Trial]:
    """Measured trials first, then estimates, then the lost; each kind by its score."""
    return sorted(tuning.trials, key=lambda trial: (not trial.good, trial.score, trial.number))


def figure(tuning: Tuning, trial: Trial) -> str:
    """A trial's score for people, with ≈ before an estimate."""
    if trial.lost:
        return "–"
    return f"{'' if trial.good else '≈ '}{tuning.objective.text(trial.score)}"


def lead_sentence(tuning: Tuning) -> str:
    """What was found, in a sentence."""
    objective, best = tuning.objective, tuning.best
    label = objective.label[0].upper() + objective.label[1:]
    count = f"{len(tuning.trials)} trial{'' if len(tuning.trials) == 1 else 's'}"
    seeds = "" if tuning.seeds == 1 else f" of {tuning.seeds} seeds each"
    if best is None:
        return f"{label}: none of {count}{seeds} came that far."
    settings = ", ".join(f"{short(path)} = {value}" for path, value in best.settings.items())
    found = f"{label}: {objective.text(best.score)} with {settings}"
    return f"{found}; the best of {count}{seeds}{_comparison(tuning, best)}."


def _comparison(tuning: Tuning, best: Trial) -> str:
    """How much less the best needs than the recipe's own settings; nothing where that cannot be said."""
    own = tuning.trials[0]
    if not tuning.starts_with_own or best.number == own.number:
        return ""
    text = tuning.objective.text
    if not own.good:
        return f"; with the recipe's own settings it {own.state}"
    if tuning.objective.name == "metric":
        return f"; the recipe's own settings give {text(own.score)}"
    return f", {best.score / own.score:.3g} times what the recipe's own settings take ({text(own.score)})"
