"""One figure or table of the paper: what to run, and small functions of the runs that decide its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, final

from qafel.config import Config, load_recipe
from qafel.drawing.chart import Panel
from qafel.errors import ConfigError, DataError, NotComparable
from qafel.paper.display import Table
from qafel.paper.measured import EntryRuns
from qafel.search.runner import RunSpec, unfinished
from qafel.tasks.datasets.celeba import find_celeba
from qafel.tasks.datasets.files import data_folder


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """How much of an entry to run."""

    seeds: tuple[int, ...] = (0, 1, 2)
    quick: bool = False
    all_methods: bool = False
    """Every recipe of the task, not only those of the paper's figure."""
    family: str | None = None
    """The first part of the recipes' names, where not the task's own."""
    uploads: int | None = None
    """Where runs end, if the recipe does not end them before."""
    just_these: bool = False
    """Whether the number of seeds was asked for, so that no entry adds any."""

    def more_seeds(self, count: int) -> Extent:
        """The same with `count` further seeds, unless it is quick or just these seeds were asked for."""
        last = self.seeds[-1] + 1
        as_it_is = self.quick or self.just_these
        return self if as_it_is else replace(self, seeds=(*self.seeds, *range(last, last + count)))


@final
@dataclass(frozen=True, slots=True)
class Change:
    """Settings that differ from the recipe's, and the tag by which a run's name says so."""

    tag: str
    settings: tuple[str, ...]


EVERY_100 = Change("every100", ('evaluation.unit="uploads"', "evaluation.every=100"))
"""A mushrooms run evaluated a thousand times: enough for a figure, and a fraction of the time."""


def _quick(uploads: int, every: int, samples: int, tests: int) -> Change:
    """A short run of a neural network on a part of its data."""
    limits = f"stop.uploads={uploads}", f"evaluation.every={every}"
    return Change("quick", (*limits, f"task.max_samples={samples}", f"task.test_samples={tests}"))


QUICK = {
    "mushrooms": Change("quick", ("stop.uploads=4_000",)),
    "cifar10": _quick(60, 20, 20, 300),
    "celeba": _quick(60, 20, 20, 300),
    "shakespeare": _quick(20, 10, 8, 64),
}
"""What a quick run leaves out, by task; the same for all entries, so that they share their runs."""


def uploads_limit(uploads: int, *settings: str) -> Change:
    """A run that ends after so many uploads, whether it has met its target or not, with further `settings`."""
    return Change(f"u{uploads}", (f"stop.uploads={uploads}", *settings))


def configuration(recipe: str, seed: int, *changes: Change) -> Config:
    """A recipe with this seed, as it is or with `changes` and a name that lists them."""
    if not changes:
        return load_recipe(recipe, (), seed)
    name = "-".join((recipe, *(change.tag for change in changes)))
    settings = [setting for change in changes for setting in change.settings]
    return load_recipe(recipe, [*settings, f'name="{name}"'], seed)


def repeated(extent: Extent, task: str, method: str, recipe: str, *changes: Change, **at: float | str) -> list[RunSpec]:
    """A run of `recipe` with `changes` for each seed of `extent`, quick if it says so; `at` is the place in a sweep."""
    short = [QUICK[task]] if extent.quick else []
    short += [uploads_limit(extent.uploads)] if extent.uploads else []
    return [RunSpec(method, configuration(recipe, seed, *changes, *short), at) for seed in extent.seeds]


def mushrooms(extent: Extent, methods: Mapping[str, tuple[str, Sequence[Change]]]) -> list[RunSpec]:
    """Runs on mushrooms, once for every seed of `extent`; `methods` gives the recipe and changes of each method."""
    return [
        run
        for method, (recipe, changes) in methods.items()
        for run in repeated(extent, "mushrooms", method, recipe, *changes, EVERY_100)
    ]


Result: TypeAlias = Literal["pass", "by construction", "fail", "undecided", "not comparable"]
"""By construction: it holds because of how the runs are configured, so that no run could have refuted it. Undecided:
the runs are those that the claim is about, but more seeds are needed. Not comparable: they are others, or are missing.
"""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What the measured runs say of a claim, and the figures that decide it."""

    result: Result
    because: str

    @staticmethod
    def of(holds: bool | None, because: str) -> Verdict:
        """Pass if the claim `holds`, else fail; undecided if the seeds do not tell. `because` states the figures."""
        return Verdict("undecided" if holds is None else "pass" if holds else "fail", because)

    @staticmethod
    def none(because: str) -> Verdict:
        """Neither pass nor fail: the runs cannot decide the claim."""
        return Verdict("not comparable", because)

    def __str__(self) -> str:
        return f"{self.result}, because {self.because}" if self.result == "not comparable" else self.result


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A published statement, where it is made, and the function of measured runs that decides it."""

    where: str
    text: str
    check: Callable[[EntryRuns], Verdict]
    quick_suffices: bool = False
    """Whether a quick run can decide it."""
    by_construction: bool = False
    """Whether it follows from the configuration."""
    cut_suffices: bool = False
    """Whether runs that were made to end sooner can decide it."""

    def verdict(self, measured: EntryRuns) -> Verdict:
        """Decide the claim by an entry's runs."""
        if measured.quick and not self.quick_suffices:
            return Verdict.none("this was a quick run")
        if measured.cut and not (self.cut_suffices or self.quick_suffices):
            return Verdict.none("these runs were made to end sooner")
        try:
            found = self.check(measured)
        except NotComparable as error:
            return Verdict.none(str(error))
        return replace(found, result="by construction") if self.by_construction and found.result == "pass" else found


@final
@dataclass(frozen=True)
class Entry:
    """An entry of `qafel paper`."""

    name: str
    title: str
    paper: str
    """Where it is in the paper."""
    time: str
    """Roughly how long a full run takes, on two cores."""
    plan: Callable[[Extent], Sequence[RunSpec]]
    table: Callable[[EntryRuns], Table]
    panels: Callable[[EntryRuns], Sequence[Panel]]
    claims: tuple[Claim, ...]
    notes: Callable[[EntryRuns], Sequence[str]] = lambda _: ()
    """What a reader should know that the table does not say."""


@final
class Request(NamedTuple):
    """What `qafel paper` was asked to reproduce, apart from the entry."""

    seeds: int | None = None
    """How many; None: three, or one of a quick run."""
    quick: bool = False
    all_methods: bool = False
    family: str | None = None
    only: Sequence[str] = ()
    """Patterns of names of runs; empty: all runs."""
    finished: bool = False
    """Whether to run nothing, and use the runs that are finished."""
    uploads: int | None = None
    """Where runs end at the latest."""

    def plans(self, entries: Mapping[str, Entry], runs: Path) -> dict[str, list[RunSpec]]:
        """The runs of each entry, by its name; an entry without any is left out. Finished runs lie in `runs`."""
        plans = {name: self._plan(entry) for name, entry in entries.items()}
        listed = " ".join(entries) if len(entries) == 1 else "all"
        if not any(plans.values()):
            raise ConfigError(f"--only {' '.join(self.only)}: no run of {listed} has such a name")
        if self.finished:
            todo = {run.folder for run in unfinished([run for plan in plans.values() for run in plan], runs)}
            plans = {name: [run for run in plan if run.folder not in todo] for name, plan in plans.items()}
            if not any(plans.values()):
                raise ConfigError(f"no run of {listed} is finished in {runs}: leave out --finished")
        return {name: plan for name, plan in plans.items() if plan}

    def all_runs(self, entries: Mapping[str, Entry]) -> list[RunSpec]:
        """The runs of all entries, finished or not."""
        return [run for entry in entries.values() for run in self._plan(entry)]

    def _plan(self, entry: Entry) -> list[RunSpec]:
        seeds = tuple(range(self.seeds or (1 if self.quick else 3)))
        extent = Extent(seeds, self.quick, self.all_methods, self.family, self.uploads, self.seeds is not None)
        runs = entry.plan(extent)
        if self.family and not any(run.config.name.startswith(f"{self.family}-") for run in runs):
            raise ConfigError(f"{entry.name} takes no --family: its recipes are always the same")
        return [run for run in runs if not self.only or any(fnmatch(run.config.name, name) for name in self.only)]

    def command(self, entry: str) -> str:
        """The command that an entry's results state."""
        parts = [f"--seeds {self.seeds}" if self.seeds else "", "--quick" if self.quick else ""]
        parts += ["--all-methods" if self.all_methods else "", f"--family {self.family}" if self.family else ""]
        parts += [f"--uploads {self.uploads}" if self.uploads else ""]
        parts += [*(f"--only '{pattern}'" for pattern in self.only), "--finished" if self.finished else ""]
        return " ".join(("qafel paper", entry, *(part for part in parts if part)))


def celeba_is_there() -> bool:
    """Whether all that the reader needs lies in the data folder, as published or as LEAF prepares it."""
    try:
        return bool(find_celeba(data_folder()))
    except DataError:
        return False


def why_missing(runs: Sequence[RunSpec]) -> str | None:
    """Why some of `runs` cannot be made: no torch, or data that is not there and cannot be downloaded; None if all can.

    Data that its authors let programs download is downloaded now.
    """
    tasks = {run.config.task.name: run.config.task for run in runs if not run.cheap}
    return next((reason for task in tasks.values() if (reason := task.missing(fetch=True))), None)
