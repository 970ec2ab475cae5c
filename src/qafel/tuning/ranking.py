"""A search's trials in order, and how the best compares with the recipe as it was."""

from __future__ import annotations

from qafel.tuning.result import Tuning
from qafel.tuning.search import SECTION
from qafel.tuning.trial import Trial


def short(path: str) -> str:
    """algorithm.client_lr → client_lr"""
    return path.removeprefix(SECTION)


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
    """What the trial did on unseen seeds; nothing where it was not run with any."""
    check = tuning.checks.get(trial.number)
    if check is None:
        return ""
    return tuning.objective.text(check.score) if check.good else check.state


def unseen_value(tuning: Tuning, trial: Trial) -> float | None:
    check = tuning.checks.get(trial.number)
    if check is None or not check.good:
        return None
    return tuning.objective.shown(check.score)


def lead_sentence(tuning: Tuning) -> str:
    """What was found, in a sentence."""
    objective, best = tuning.objective, tuning.best
    label = objective.label[0].upper() + objective.label[1:]
    count = f"{len(tuning.trials)} trial{'' if len(tuning.trials) == 1 else 's'}{_remarks(tuning)}"
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
        if trial.outcome is not None and trial.state == "failed":
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
        return f"; on {len(check.runs)} unseen seeds {tuning.objective.text(check.score)}"
    return f"; but on unseen seeds it {check.state}, like all that were tried: search with more --seeds"


def _comparison(tuning: Tuning, best: Trial) -> str:
    """How much less the best needs than the recipe's own settings; nothing where that cannot be said."""
    own = next((trial for trial in tuning.trials if trial.number == 0), None)
    if own is None or not tuning.starts_with_own or best.number == 0:
        return ""
    text = tuning.objective.text
    if not own.good:
        return f" (with the recipe's own settings it {own.state})"
    if tuning.objective.name == "metric":
        return f" (the recipe's own settings give {text(own.score)})"
    return f", {best.score / own.score:.3g} times what the recipe's own settings take ({text(own.score)})"
