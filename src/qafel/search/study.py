"""The search itself: an Optuna study in a journal, which a killed search goes on from.

Trial n is drawn by a sampler with a seed of its own, (seed, "tune", n), from the trials that are done. So a search that
was killed draws, when it goes on, what it would have drawn; with one worker it is the same search to the bit.

No setting is tried twice. A draw that repeats one is put aside (for Optuna it failed, so that the sampler does not
count it either); if all settings can be counted, one that was not tried is drawn blindly in its place.
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
from typing import Any, final

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from pydantic import TypeAdapter

from qafel.errors import DataError, OutputError
from qafel.files import Lock, read_regular, write_atomically
from qafel.rng import Stream
from qafel.runs.directory import by_path
from qafel.search.result import Tuning
from qafel.search.space import Choices, Range, Settings, Value, all_settings
from qafel.search.trial import RUNNING, RunOutcome, Trial, TrialOutcome, best_of

STARTUP_TRIALS = 8
"""Drawn blindly, before the search has anything to go by."""

FEWEST_FOR_IMPORTANCE = 12

MOST_REPEATS = 20
"""So many in a row, and there is nothing new to be found."""

JOURNAL = "study.journal"
_SETUP = TypeAdapter(dict[str, Any])
_SETUP_BYTES, _JOURNAL_BYTES = 1 << 20, 1 << 30


@contextmanager
def open_study(begun: Tuning) -> Iterator[Study]:
    """A context in which no other process searches in the folder of `begun`, which holds no other search."""
    out = begun.out
    with Lock(out / ".lock", OutputError(f"a search goes on in {out}: wait for its end, or choose another `out`")):
        _refuse_another_search(begun)
        yield Study(begun)


def _refuse_another_search(begun: Tuning) -> None:
    """Compare all that the results follow from with what the folder holds; write it, if the folder is new."""
    setup = {
        "config": begun.config.model_dump(exclude_none=True),
        "search": {path: str(dimension) for path, dimension in begun.search.items()},
        "objective": begun.objective.name,
        "target": begun.objective.target,
        "seeds": begun.seeds,
    }
    text, path = json.dumps(setup, indent=2, ensure_ascii=False) + "\n", begun.out / "search.json"
    if not path.exists():
        if (begun.out / JOURNAL).exists():
            raise DataError(f"{path} is missing, so what was searched there is unknown: choose another `out`")
        write_atomically(path, text.encode())
        return
    try:
        there = _SETUP.validate_json(read_regular(path, _SETUP_BYTES))
    except ValueError:
        raise DataError(f"{path} is damaged: choose another `out`") from None
    before, now = by_path(there), by_path(json.loads(text))
    for key in [*now, *before]:
        was, wanted = before.get(key, "nothing"), now.get(key, "nothing")
        if was != wanted:
            raise OutputError(
                f"{begun.out} holds another search ({key}: {was} there, {wanted} here): choose another `out`"
            )


@final
class Study:
    """All trials of a search, and the next one."""

    def __init__(self, begun: Tuning) -> None:
        """Open the study in the folder of `begun`, or begin it, with the recipe's own settings if it searches them."""
        self._begun, self._search, self._own = begun, begun.search, begun.own
        self._all = all_settings(begun.search)
        self._under_way: dict[int, optuna.Trial] = {}
        journal = begun.out / JOURNAL
        try:
            self._study = _open(journal)
            self.finished()
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise DataError(
                f"{journal} is damaged ({error}): choose another `out`, or restore the file; "
                f"the runs under {begun.out / 'trials'} can still be read"
            ) from None
        if not self._frozen() and self._own is not None:
            self._study.enqueue_trial(dict(self._own))

    def finished(self) -> tuple[Trial, ...]:
        """All trials that have an outcome."""
        return tuple(map(self._trial, self._frozen(TrialState.COMPLETE)))

    def next(self) -> Trial | None:
        """A trial to run: one that was interrupted, as it was; else a new one. None if there is nothing new."""
        begun = [self._trial(self._frozen()[number]) for number in self._under_way]
        tried = {_key(trial.settings) for trial in (*self.finished(), *begun)}
        for _ in range(MOST_REPEATS):
            untried = None if self._all is None else [there for there in self._all if _key(there) not in tried]
            if untried == []:
                return None
            handle = self._draw(untried)
            if _key(self._trial(self._frozen()[handle.number]).settings) not in tried:
                return self._begin(handle)
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
            # Optuna has no public way back to a trial that is still running.
            handle = optuna.Trial(self._study, interrupted._trial_id)
        else:
            if untried and trials and trials[-1].state == TrialState.FAIL:
                self._study.enqueue_trial(dict(untried[words[1] % len(untried)]))
            handle = self._study.ask()
        for path, dimension in self._search.items():
            _suggest(handle, path, dimension)
        return handle

    def _begin(self, handle: optuna.Trial) -> Trial:
        if "allowance" not in handle.user_attrs:
            best = best_of(self.finished()) if self._begun.objective.target is not None else None
            handle.set_user_attr("allowance", None if best is None else best.score * self._begun.seeds)
        self._under_way[handle.number] = handle
        return self._trial(self._frozen()[handle.number])

    def finish(self, number: int, outcome: TrialOutcome) -> Trial:
        """Write down what came of a trial."""
        handle = self._under_way.pop(number)
        handle.set_user_attr("outcome", asdict(outcome))
        self._study.tell(handle, outcome.score)
        return self._trial(self._frozen()[number])

    def importance(self) -> dict[str, float]:
        """How much each setting decides on being among the best; empty if there are too few trials to say."""
        if len(self.finished()) < FEWEST_FOR_IMPORTANCE or len(self._search) < 2:
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
                is_own = self._own is not None and drawn == self._own[path]
                settings[path] = drawn if is_own else dimension.tidy(drawn)
        allowance = trial.user_attrs.get("allowance")
        outcome = RUNNING
        if trial.state == TrialState.COMPLETE:
            told = trial.user_attrs["outcome"]
            outcome = TrialOutcome(**{**told, "runs": tuple(RunOutcome(**run) for run in told["runs"])})
        return Trial(trial.number, settings, math.inf if allowance is None else allowance, outcome)


def _open(path: Path) -> optuna.Study:
    """Open the journal. A kill may have left half a line, and a lock that no one holds: the folder is ours."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.exists():
        data = read_regular(path, _JOURNAL_BYTES)
        os.truncate(path, data.rfind(b"\n") + 1)
        for line in data.split(b"\n")[:-1]:
            json.loads(line)  # Optuna would not mind a damaged last line until another one follows
    storage = JournalStorage(JournalFileBackend(str(path)))
    return optuna.create_study(storage=storage, study_name="tune", load_if_exists=True)


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
