"""The search itself: an Optuna study in a journal, which a killed search goes on from.

Trial n is drawn by a sampler with a seed of its own, (seed, "tune", n), from the trials that are done. So a search that
was killed draws, when it goes on, what it would have drawn; with one worker it is the same search to the bit.

No setting is tried twice. A draw that repeats one is put aside (for Optuna it failed, so that the sampler does not
count it either); if all settings can be counted, one that was not tried is drawn blindly in its place.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from qafel.errors import DataError, OutputError
from qafel.files import Lock, write_atomically
from qafel.rng import Stream
from qafel.tuning.search import Choices, Range, Search, Settings, Value, all_settings
from qafel.tuning.trial import Trial, TrialOutcome, best_of

STARTUP_TRIALS = 8
"""Drawn blindly, before the search has anything to go by."""

FEWEST_FOR_IMPORTANCE = 12

MOST_REPEATS = 20
"""So many in a row, and there is nothing new to be found."""

_NOTHING = "nothing"


@final
@dataclass(frozen=True)
class SearchFolder:
    """The folder `path` of one search; `setup` is all that the search's results follow from."""

    path: Path
    setup: Mapping[str, Any]

    @contextmanager
    def alone(self) -> Iterator[Self]:
        """A context in which no other process searches in the folder, and the folder holds no other search."""
        busy = OutputError(f"a search goes on in {self.path}: wait for its end, or choose another --out")
        with Lock(self.path / ".lock", busy):
            self._refuse_another_search()
            yield self

    def trial(self, number: int) -> Path:
        """Where a trial's runs are."""
        return self.path / "trials" / f"{number:04d}"

    @property
    def journal(self) -> Path:
        return self.path / "study.journal"

    def _refuse_another_search(self) -> None:
        path = self.path / "search.json"
        if not path.exists():
            if self.journal.exists():
                raise DataError(f"{path} is missing, so what was searched there is unknown: choose another --out")
            write_atomically(path, (json.dumps(self.setup, indent=2, ensure_ascii=False) + "\n").encode())
            return
        try:
            there = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): choose another --out") from None
        before, now = _flat(there), _flat(json.loads(json.dumps(self.setup)))
        for key in [*now, *before]:
            if before.get(key, _NOTHING) != now.get(key, _NOTHING):
                raise OutputError(
                    f"{self.path} holds another search ({key}: {before.get(key, _NOTHING)} there, "
                    f"{now.get(key, _NOTHING)} here): choose another --out"
                )


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{before}{key} ") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


@final
class Study:
    """All trials of a search, and the next one."""

    def __init__(self, folder: SearchFolder, search: Search, own: Settings | None, seed: int) -> None:
        """Open the study in the `folder`, or begin it, with the recipe's `own` settings if the `search` holds them."""
        self._search, self._own, self._seed = search, own, seed
        self._seeds = folder.setup["seeds"]
        self._cuts_off = folder.setup["target"] is not None
        self._all = all_settings(search)
        self._under_way: dict[int, optuna.Trial] = {}
        try:
            self._study = _open(folder.journal)
            self.finished()
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise DataError(
                f"{folder.journal} is damaged ({error}): choose another --out, or restore the file; "
                f"the runs under {folder.path / 'trials'} can still be read"
            ) from None
        if not self._frozen() and own is not None:
            self._study.enqueue_trial(dict(own))

    def finished(self) -> tuple[Trial, ...]:
        """All trials that have an outcome."""
        return tuple(self._trial(trial) for trial in self._frozen() if trial.state == TrialState.COMPLETE)

    def next(self) -> Trial | None:
        """A trial to run: one that was interrupted, as it was; else a new one. None if there is nothing new."""
        begun = [self._trial(self._frozen()[number]) for number in self._under_way]
        tried = {_key(trial.settings) for trial in (*self.finished(), *begun)}
        for _ in range(MOST_REPEATS):
            untried = None if self._all is None else [there for there in self._all if _key(there) not in tried]
            if untried == []:
                return None
            number, handle = self._draw(untried)
            if _key(self._trial(self._frozen()[number]).settings) not in tried:
                return self._begin(number, handle)
            self._study.tell(handle, state=TrialState.FAIL)
        return None

    def _draw(self, untried: list[Settings] | None) -> tuple[int, optuna.Trial]:
        trials = self._frozen()
        interrupted = self._interrupted()
        number = interrupted.number if interrupted else self._next_number()
        words = Stream.named(self._seed, "tune", number=number).words
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
        return number, handle

    def _begin(self, number: int, handle: optuna.Trial) -> Trial:
        if "allowance" not in handle.user_attrs:
            best = best_of(self.finished()) if self._cuts_off else None
            handle.set_user_attr("allowance", None if best is None else best.score * self._seeds)
        self._under_way[number] = handle
        return self._trial(self._frozen()[number])

    def finish(self, number: int, outcome: TrialOutcome) -> Trial:
        """Write down what came of a trial."""
        handle = self._under_way.pop(number)
        handle.set_user_attr("outcome", outcome.to_json())
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

    def _frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _interrupted(self) -> FrozenTrial | None:
        running = (trial for trial in self._frozen() if trial.state == TrialState.RUNNING)
        return next((trial for trial in running if trial.number not in self._under_way), None)

    def _next_number(self) -> int:
        trials = self._frozen()
        return next((trial.number for trial in trials if trial.state == TrialState.WAITING), len(trials))

    def _trial(self, trial: FrozenTrial) -> Trial:
        settings: dict[str, Value] = {}
        for path in self._search.keys() & trial.params.keys():
            drawn = trial.params[path]
            is_own = self._own is not None and drawn == self._own[path]
            settings[path] = drawn if is_own else self._search[path].tidy(drawn)
        allowance = trial.user_attrs.get("allowance")
        outcome = trial.user_attrs.get("outcome") if trial.state == TrialState.COMPLETE else None
        return Trial(
            trial.number,
            {path: settings[path] for path in self._search if path in settings},
            math.inf if allowance is None else allowance,
            None if outcome is None else TrialOutcome.from_json(outcome),
        )


def _open(path: Path) -> optuna.Study:
    """Open the journal. A kill may have left half a line, and a lock that no one holds: the folder is ours."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.exists():
        with path.open("rb+") as file:
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)
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
