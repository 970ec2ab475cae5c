"""Search settings of a recipe for the least cost of reaching its target.

The search runs trials until there are enough. Then the best of them run again on unseen seeds. An Optuna study proposes
trials, prunes them and keeps them in a journal.

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
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, final

from qafel.config import Config
from qafel.errors import ConfigError, DataError, OutputError, QafelError, UserError
from qafel.files import Lock, read_regular
from qafel.lazy import require_installed
from qafel.rng import Stream
from qafel.runs.directory import by_path
from qafel.runs.progress import Row
from qafel.search.runner import Ended, Runner
from qafel.search.space import Choices, Range, Search, Settings, all_settings, check_search, default_search
from qafel.search.trials import (
    OBJECTIVES,
    Objective,
    ObjectiveName,
    RunOutcome,
    SearchProgress,
    Trial,
    TrialWork,
    Tuning,
    best_of,
    next_to_check,
    run_trial,
)
from qafel.simulator.executors import ExecutorName
from qafel.workers import worker_count

require_installed("a search", "tune", optuna="Optuna")
import optuna  # noqa: E402
from optuna.storages import JournalStorage  # noqa: E402
from optuna.storages.journal import JournalFileBackend  # noqa: E402
from optuna.trial import FrozenTrial, TrialState  # noqa: E402

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

FEW = 5
"""The search ends if this many trials failed and no trial did not."""

SAVE_EVERY_S = 30.0

JOURNAL = "study.journal"
_NAME = "tune"
_OUTCOME = ("state", "score", "gap", "runs", "error")
_JOURNAL_BYTES = 1 << 30

Watch: TypeAlias = Callable[[SearchProgress], None]
Save: TypeAlias = Callable[[Tuning], object]


def tune(
    config: Config,
    search: Search | None = None,
    *,
    objective: ObjectiveName = "uploads",
    target: float | None = None,
    trials: int = 30,
    seconds: float | None = None,
    seeds: int = 1,
    check: int = 5,
    out: Path | None = None,
    workers: int = 1,
    executor: ExecutorName = "inline",
    watch: Watch | None = None,
    progress: Callable[[Row], None] | None = None,
    save: Save | None = None,
) -> Tuning:
    """Search settings for the least cost. Resumes a search that is in the folder.

    Trial 0 has the recipe's settings if the search space contains them. A trial that raises an error fails, and the
    search continues. The search ends if trial 0 fails or all trials fail.

    config      The recipe.
    search      The settings to vary. By default the learning rates that the method leaves open.
    objective   The cost to minimise.
    target      The metric to reach. By default the recipe's.
    trials      The number of trials, including those in the folder.
    seconds     Start no trial after this time.
    seeds       The number of runs of each trial. Their seeds start at the configuration's.
    check       The number of unseen seeds. The best trials run again with them at the end.
    out         The folder. By default tune/NAME.
    workers     The number of trials that run in parallel.
    executor    The executor of the clients of a trial.
    watch       Called when a trial starts or ends.
    progress    Called with every row, if there is one worker.
    save        Called with the results from time to time and at the end, also after an error.
    """
    worker_count(workers)
    search = default_search(config) if search is None else search
    check_search(config, search)
    begun = _begin(config, search, objective, target, seeds, out)

    def hear(_: Trial, row: Row) -> None:
        if progress is not None and workers == 1:
            progress(row)

    with open_study(begun) as study, Runner(workers, hear) as runner:
        loop = _SearchLoop(study, runner, executor, watch, save)
        return loop.run(trials, math.inf if seconds is None else seconds, check)


def _begin(
    config: Config, search: Search, name: ObjectiveName, target: float | None, seeds: int, out: Path | None
) -> Tuning:
    """A search before its first trial."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    if name == "metric":
        if target is not None:
            raise ConfigError("The objective metric takes no target. Leave out `target` or choose another objective.")
    elif (target := config.evaluation.target if target is None else target) is None:
        raise ConfigError(f"The objective {name} needs a `target`: set it, or evaluation.target in the recipe.")
    else:
        aimed = config.model_dump(exclude_none=True)
        aimed["evaluation"]["target"] = float(target)
        config = Config.from_dict(aimed)
    task = config.task.make()
    objective = Objective(name, target, task.metric_goal, task.metric_name)
    return Tuning(out or Path("tune") / config.name, config, search, objective, seeds, layout=task.layout)


@final
class _SearchLoop:
    """Runs the trials of a study, then the check of the best ones. The arguments are those of `tune`."""

    def __init__(
        self, study: Study, runner: Runner[Trial], executor: ExecutorName, watch: Watch | None, save: Save | None
    ) -> None:
        self._study, self._begun, self._runner, self._executor = study, study.begun, runner, executor
        self._watch, self._save_to, self._saved_s = watch, save, time.monotonic()
        self._exhausted, self._checks = False, dict[int, Trial]()

    def run(self, trials: int, seconds: float, check: int) -> Tuning:
        """Run `trials` trials, start none after `seconds`, and check the best with `check` unseen seeds."""
        deadline, seeds, checked = time.monotonic() + seconds, self._begun.seeds, set[int]()

        def new_trial() -> Trial | None:
            enough = len(self._study.finished()) + self._runner.busy >= trials
            if enough or self._exhausted or time.monotonic() >= deadline:
                return None
            found = self._study.next()
            self._exhausted = found is None
            return found

        def unchecked() -> Trial | None:
            if (trial := next_to_check(self._study.finished(), self._checks, checked)) is not None:
                checked.add(trial.number)
            return trial

        try:
            self._run_all(new_trial, range(seeds), partial(self._finish, trials))
            if check:
                self._run_all(unchecked, range(seeds, seeds + check), self._finish_check, checking=True)
        except BaseException:
            if self._study.finished():
                with suppress(OSError, QafelError):  # the first error matters more
                    self._save()
            raise
        return self._save()

    def _run_all(
        self,
        following: Callable[[], Trial | None],
        seeds: range,
        finish: Callable[[Trial, Ended], None],
        checking: bool = False,
    ) -> None:
        """Run the trials that `following` returns, until it returns None and all have ended."""
        while True:
            while self._runner.room and (trial := following()) is not None:
                self._start(trial, seeds, prune=not checking)
                self._tell(trial, checking)
            if not self._runner.busy:
                return
            finish(*self._runner.next_ended())
            if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
                self._save()

    def _start(self, trial: Trial, seeds: range, prune: bool) -> None:
        """Start a trial. Its seeds count from the configuration's seed."""
        begun = self._begun
        work = TrialWork(
            trial=trial,
            folder=begun.out / "trials" / f"{trial.number:04d}",
            config=begun.config,
            seeds=tuple(begun.config.seed + seed for seed in seeds),
            objective=begun.objective,
            executor=self._executor,
            executor_workers=self._runner.cores,
            prune=partial(StudyPruner, begun.out / JOURNAL, trial.number) if prune else None,
        )
        self._runner.start(trial, partial(run_trial, work))

    def _finish(self, trials: int, trial: Trial, ended: Ended) -> None:
        """Record the outcome of a trial. Raise an error that is not due to its settings.

        A trial whose error is raised has not ended. The same command starts with it.
        """
        is_recipe = trial.number == 0 and self._begun.recipe_settings is not None
        if ended.error is not None and (is_recipe or isinstance(ended.error, OutputError)):
            raise ended.error
        done: Trial = ended.value or trial.failed(str(ended.error))
        self._study.finish(done)
        self._tell(done)
        finished = self._study.finished()
        if len(finished) >= min(FEW, trials) and all(one.state == "failed" for one in finished):
            kind = UserError if isinstance(ended.error, UserError) else QafelError
            raise kind(f"All {len(finished)} trials failed. The last error: {finished[-1].error}")

    def _finish_check(self, trial: Trial, ended: Ended) -> None:
        if isinstance(ended.error, OutputError):
            raise ended.error
        self._checks[trial.number] = ended.value or trial.failed(str(ended.error))

    def _tell(self, trial: Trial, checking: bool = False) -> None:
        if self._watch is not None:
            done = self._study.finished()
            self._watch(SearchProgress(trial, best_of(done), len(done), self._begun.objective, checking))

    def _save(self) -> Tuning:
        trials, shares = self._study.finished(), self._study.importance()
        checks = dict(self._checks)
        found = replace(self._begun, trials=trials, checks=checks, importance=shares, exhausted=self._exhausted)
        if self._save_to is not None:
            self._save_to(found)
        self._saved_s = time.monotonic()
        return found


@contextmanager
def open_study(begun: Tuning) -> Iterator[Study]:
    """A context with the study of `begun`. No other process can search in its folder meanwhile."""
    out = begun.out
    with Lock(out / ".lock", OutputError(f"Another search is running in {out}. Wait for it or choose another `out`.")):
        yield Study(begun)


@final
class Study:
    """The Optuna study of a search."""

    def __init__(self, begun: Tuning) -> None:
        """Open or create the study in the folder of `begun`. Trial 0 has the recipe's settings, if possible."""
        self.begun, self._recipe = begun, begun.recipe_settings
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
        begun = self.begun
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
        tried = {frozenset(trial.settings.items()) for trial in (*self.finished(), *begun)}
        untried = None if self._all is None else [it for it in self._all if frozenset(it.items()) not in tried]
        for _ in range(MOST_REPEATS if untried != [] else 0):
            handle = self._draw(untried)
            trial = self._trial(self._frozen()[handle.number])
            if frozenset(trial.settings.items()) not in tried:
                self._under_way[trial.number] = handle
                return trial
            self._study.tell(handle, state=TrialState.FAIL)
        return None

    def _draw(self, untried: list[Settings] | None) -> optuna.Trial:
        trials, running = self._frozen(), self._frozen(TrialState.RUNNING)
        interrupted = next((trial for trial in running if trial.number not in self._under_way), None)
        following = interrupted or next(iter(self._frozen(TrialState.WAITING)), None)
        number = following.number if following else len(trials)
        words = Stream.named(self.begun.config.seed, "tune", number=number).words
        self._study.sampler = optuna.samplers.TPESampler(seed=words[0] % 2**32, n_startup_trials=STARTUP_TRIALS)
        if interrupted:
            # Optuna offers no public way to a running trial.
            handle = optuna.Trial(self._study, interrupted._trial_id)
        else:
            if untried and trials and trials[-1].state == TrialState.FAIL:
                self._study.enqueue_trial(dict(untried[words[1] % len(untried)]))
            handle = self._study.ask()
        for path, dimension in self.begun.search.items():
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
        if sum(trial.good for trial in self.finished()) < FEWEST_FOR_IMPORTANCE or len(self.begun.search) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shares = optuna.importance.get_param_importances(self._study)
        return {path: share for path, share in shares.items() if math.isfinite(share)}

    def _frozen(self, *states: TrialState) -> list[FrozenTrial]:
        """Optuna's trials in these states, or all."""
        return self._study.get_trials(deepcopy=False, states=states or None)

    def _trial(self, trial: FrozenTrial) -> Trial:
        settings = {}
        for path in filter(trial.params.__contains__, self.begun.search):
            drawn = trial.params[path]
            is_recipe = self._recipe is not None and drawn == self._recipe[path]
            settings[path] = drawn if is_recipe else self.begun.search[path].tidy(drawn)
        outcome: dict[str, Any] = trial.user_attrs.get("outcome", {}) if trial.state.is_finished() else {}
        runs = tuple(RunOutcome(**run) for run in outcome.get("runs", ()))
        return Trial(trial.number, settings, **{**outcome, "runs": runs})


@final
class StudyPruner:
    """Reports a trial's progress to the study in a journal, from any process, and asks its pruner."""

    def __init__(self, journal: Path, number: int) -> None:
        study = optuna.load_study(study_name=_NAME, storage=_storage(journal))
        trials = study.get_trials(deepcopy=False)
        ends = [
            max((step for step, value in trial.intermediate_values.items() if value), default=0)
            for trial in trials
            if trial.state == TrialState.COMPLETE
        ]
        study.pruner = optuna.pruners.MedianPruner(SUCCESSES_TO_PRUNE, max(0, min(ends, default=0) - _WARM_UP))
        frozen = trials[number]
        self._trial, self._last = optuna.Trial(study, frozen._trial_id), frozen.last_step

    def __call__(self, cost: float, value: float | None) -> bool:
        """Report `value`, smaller is better, after the trial has spent `cost`. Returns whether to end the trial.

        None reports that the trial needs no further cost.
        """
        after = None if self._last is None else self._last + 1
        now = math.floor(_STEPS_PER_FACTOR * math.log(1 + cost))
        steps = range(now if after is None else after, now + 1)
        if value is None:
            steps = range(after or 0, (after or 0) + _STEPS_AHEAD)
        for self._last in steps:
            self._trial.report(value or 0.0, self._last)
        return bool(steps) and value is not None and self._trial.should_prune()


def _storage(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def _open(path: Path) -> optuna.Study:
    """Open the journal. Remove half a line and a stale lock, which a killed process may have left."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.exists():
        data = read_regular(path, _JOURNAL_BYTES)
        os.truncate(path, data.rfind(b"\n") + 1)
        for line in data.split(b"\n")[:-1]:
            json.loads(line)  # Optuna reports a damaged last line only when another one follows
    return optuna.create_study(storage=_storage(path), study_name=_NAME, load_if_exists=True)


def _suggest(handle: optuna.Trial, path: str, dimension: Range | Choices) -> None:
    match dimension:
        case Choices(values):
            handle.suggest_categorical(path, values)
        case Range(low, high, log, True):
            handle.suggest_int(path, int(low), int(high), log=log)
        case Range(low, high, log):
            handle.suggest_float(path, low, high, log=log)
