"""The Optuna study of a search: it proposes trials, prunes them and keeps them in a journal.

The sampler of trial n has the seed (seed, "tune", n). So a resumed search proposes the trials that it would have
proposed without the interruption; with one worker the search is the same to the bit.

No setting is tried twice. A proposal that repeats one is marked as failed, so that the sampler ignores it. If all
settings can be counted, a random untried one takes its place.

Trials report their progress to Optuna's `MedianPruner`. It ends a trial that has more of the way left than the median
of the successful trials had at the same cost.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import final

import optuna
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from qafel.errors import DataError, OutputError
from qafel.files import Lock, read_regular
from qafel.rng import Stream
from qafel.runs.directory import by_path
from qafel.search.result import Tuning
from qafel.search.space import Choices, Range, Settings, Value, all_settings
from qafel.search.trial import RunOutcome, Trial

STARTUP_TRIALS = 8
"""The number of random trials before the sampler learns from results."""

SUCCESSES_TO_PRUNE = 2
"""The pruner waits for this many successful trials."""

_STEPS_PER_FACTOR = 2.5
"""Reports of a trial while its cost grows by a factor e."""
_WARM_UP = 3
"""The pruner waits until this many steps before the end of the cheapest success, a third of its cost."""
_STEPS_AHEAD = 25
"""A successful trial reports for this many further steps that nothing is left."""

FEWEST_FOR_IMPORTANCE = 5
"""Good trials that PED-ANOVA needs."""

MOST_REPEATS = 20
"""After this many repetitions in a row there is nothing new to try."""

JOURNAL = "study.journal"
_NAME = "tune"
_OUTCOME = ("state", "score", "gap", "runs", "error")
_JOURNAL_BYTES = 1 << 30


@contextmanager
def open_study(begun: Tuning) -> Iterator[Study]:
    """A context with the study of `begun`. No other process can search in its folder meanwhile."""
    out = begun.out
    with Lock(out / ".lock", OutputError(f"Another search is running in {out}. Wait for it or choose another `out`.")):
        yield Study(begun)


@final
class Study:
    """The trials of a search."""

    def __init__(self, begun: Tuning) -> None:
        """Open or create the study in the folder of `begun`. Trial 0 has the recipe's settings, if possible."""
        self._begun, self._search, self._recipe = begun, begun.search, begun.recipe_settings
        self._all = all_settings(begun.search)
        self._under_way: dict[int, optuna.Trial] = {}
        journal = begun.out / JOURNAL
        try:
            self._study = _open(journal)
            self._refuse_another_search()
            self.finished()
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise DataError(
                f"{journal} is damaged ({error}). Choose another `out` or restore the file. The runs in "
                f"{begun.out / 'trials'} can still be read."
            ) from None
        if not self._frozen() and self._recipe is not None:
            self._study.enqueue_trial(dict(self._recipe))

    def _refuse_another_search(self) -> None:
        """Raise if the journal holds a search with other settings. A new journal gets the settings."""
        begun = self._begun
        setup = {
            "config": begun.config.model_dump(exclude_none=True),
            "search": {path: str(dimension) for path, dimension in begun.search.items()},
            "objective": begun.objective.name,
            "target": begun.objective.target,
            "seeds": begun.seeds,
        }
        if not self._study.user_attrs and not self._frozen():
            self._study.set_user_attr("setup", setup)
        before, now = by_path(self._study.user_attrs["setup"]), by_path(json.loads(json.dumps(setup)))
        for key in [*now, *before]:
            if (was := before.get(key, "nothing")) != (wanted := now.get(key, "nothing")):
                where = f"({key}: {was} there, {wanted} here)"
                raise OutputError(f"{begun.out} holds another search {where}. Choose another `out`.")

    def finished(self) -> tuple[Trial, ...]:
        """All trials that have ended."""
        ended = self._frozen(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return tuple(self._trial(trial) for trial in ended if "outcome" in trial.user_attrs)

    def next(self) -> Trial | None:
        """The next trial to run: an interrupted one, or a new one. None if there is nothing new to try."""
        begun = [self._trial(self._frozen()[number]) for number in self._under_way]
        tried = {_key(trial.settings) for trial in (*self.finished(), *begun)}
        for _ in range(MOST_REPEATS):
            untried = None if self._all is None else [there for there in self._all if _key(there) not in tried]
            if untried == []:
                return None
            handle = self._draw(untried)
            if _key(self._trial(self._frozen()[handle.number]).settings) not in tried:
                self._under_way[handle.number] = handle
                return self._trial(self._frozen()[handle.number])
            self._study.tell(handle, state=TrialState.FAIL)
        return None

    def _draw(self, untried: list[Settings] | None) -> optuna.Trial:
        trials, running = self._frozen(), self._frozen(TrialState.RUNNING)
        interrupted = next((trial for trial in running if trial.number not in self._under_way), None)
        following = interrupted or next(iter(self._frozen(TrialState.WAITING)), None)
        number = following.number if following else len(trials)
        words = Stream.named(self._begun.config.seed, "tune", number=number).words
        self._study.sampler = TPESampler(seed=words[0] % 2**32, n_startup_trials=STARTUP_TRIALS)
        if interrupted:
            # Optuna offers no public way to a running trial.
            handle = optuna.Trial(self._study, interrupted._trial_id)
        else:
            if untried and trials and trials[-1].state == TrialState.FAIL:
                self._study.enqueue_trial(dict(untried[words[1] % len(untried)]))
            handle = self._study.ask()
        for path, dimension in self._search.items():
            _suggest(handle, path, dimension)
        return handle

    def finish(self, trial: Trial) -> None:
        """Record the outcome of a trial."""
        handle = self._under_way.pop(trial.number)
        handle.set_user_attr("outcome", {name: value for name, value in asdict(trial).items() if name in _OUTCOME})
        if trial.good:
            self._study.tell(handle, trial.score)
        else:
            self._study.tell(handle, state=TrialState.FAIL if trial.state == "failed" else TrialState.PRUNED)

    def importance(self) -> dict[str, float]:
        """The share of each setting in being among the best (PED-ANOVA); empty if there are too few good trials."""
        if sum(trial.good for trial in self.finished()) < FEWEST_FOR_IMPORTANCE or len(self._search) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shares = optuna.importance.get_param_importances(self._study)
        return {path: share for path, share in shares.items() if math.isfinite(share)}

    def _frozen(self, *states: TrialState) -> list[FrozenTrial]:
        """Optuna's trials in these states, or all."""
        return self._study.get_trials(deepcopy=False, states=states or None)

    def _trial(self, trial: FrozenTrial) -> Trial:
        settings: dict[str, Value] = {}
        for path, dimension in self._search.items():
            if path in trial.params:
                drawn = trial.params[path]
                is_recipe = self._recipe is not None and drawn == self._recipe[path]
                settings[path] = drawn if is_recipe else dimension.tidy(drawn)
        outcome = dict(trial.user_attrs.get("outcome", {})) if trial.state.is_finished() else {}
        outcome["runs"] = tuple(RunOutcome(**run) for run in outcome.get("runs", ()))
        return Trial(trial.number, settings, **outcome)


@final
class StudyPruner:
    """Reports a trial's progress to the study in a journal, from any process, and asks its pruner."""

    def __init__(self, journal: Path, number: int) -> None:
        study = optuna.load_study(study_name=_NAME, storage=JournalStorage(JournalFileBackend(str(journal))))
        trials = study.get_trials(deepcopy=False)
        ends = [
            max((step for step, value in trial.intermediate_values.items() if value), default=0)
            for trial in trials
            if trial.state == TrialState.COMPLETE
        ]
        warm_up = max(0, min(ends, default=0) - _WARM_UP)
        study.pruner = MedianPruner(SUCCESSES_TO_PRUNE, warm_up)
        frozen = trials[number]
        self._trial, self._last = optuna.Trial(study, frozen._trial_id), frozen.last_step

    def hopeless(self, cost: float, value: float) -> bool:
        """Report `value`, smaller is better, after the trial has spent `cost`. Returns whether to end the trial."""
        step = math.floor(_STEPS_PER_FACTOR * math.log(1 + cost))
        steps = range(step if self._last is None else self._last + 1, step + 1)
        self._report(value, steps)
        return bool(steps) and self._trial.should_prune()

    def succeeded(self) -> None:
        """Report that the trial needs no further cost."""
        after = 0 if self._last is None else self._last + 1
        self._report(0.0, range(after, after + _STEPS_AHEAD))

    def _report(self, value: float, steps: range) -> None:
        for step in steps:
            self._trial.report(value, step)
        self._last = steps[-1] if steps else self._last


def _open(path: Path) -> optuna.Study:
    """Open the journal. Remove half a line and a stale lock, which a killed process may have left."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.exists():
        data = read_regular(path, _JOURNAL_BYTES)
        os.truncate(path, data.rfind(b"\n") + 1)
        for line in data.split(b"\n")[:-1]:
            json.loads(line)  # Optuna reports a damaged last line only when another one follows
    storage = JournalStorage(JournalFileBackend(str(path)))
    return optuna.create_study(storage=storage, study_name=_NAME, load_if_exists=True)


def _key(settings: Settings) -> tuple[tuple[str, Value], ...]:
    return tuple(settings.items())


def _suggest(handle: optuna.Trial, path: str, dimension: Range | Choices) -> None:
    match dimension:
        case Choices(values):
            handle.suggest_categorical(path, values)
        case Range(low, high, log, True):
            handle.suggest_int(path, int(low), int(high), log=log)
        case Range(low, high, log):
            handle.suggest_float(path, low, high, log=log)
