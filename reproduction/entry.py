"""One figure or table of the paper: the runs to make, and functions of these runs that decide its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Literal, NamedTuple, TypeAlias, final

from qafel.config import Config
from qafel.drawing.chart import Panel
from qafel.errors import ConfigError
from qafel.search import RunSpec
from reproduction.comparison import EntryRuns, NotComparable
from reproduction.display import Table
from reproduction.published import load_published
from reproduction.store import Store


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """How much of an entry to run."""

    seeds: tuple[int, ...] = (0, 1, 2)
    quick: bool = False
    all_methods: bool = False
    """Run every method of the task, not only those of the paper's figure."""
    family: str | None = None
    """The first part of the runs' names, if it is not the task."""
    uploads: int | None = None
    """Where runs end, unless their configuration ends them earlier."""
    exact_seeds: bool = False
    """The user stated the number of seeds, so no entry adds any."""

    def more_seeds(self, count: int) -> Extent:
        """The same with `count` further seeds, unless it is quick or has exact seeds."""
        last = self.seeds[-1] + 1
        unchanged = self.quick or self.exact_seeds
        return self if unchanged else replace(self, seeds=(*self.seeds, *range(last, last + count)))


@final
@dataclass(frozen=True, slots=True)
class Change:
    """Settings that differ from the published ones, and a tag for the run's name."""

    tag: str
    settings: tuple[str, ...]


EVERY_100 = Change("every100", ('evaluation.unit="uploads"', "evaluation.every=100"))
"""Evaluate a mushrooms run a thousand times: enough for a figure, in a fraction of the time."""


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
"""The changes of a quick run, by task. All entries use the same ones, so that they share runs."""


def uploads_limit(uploads: int, *settings: str) -> Change:
    """End a run after this number of uploads, even if it has not met its target; with further `settings`."""
    return Change(f"u{uploads}", (f"stop.uploads={uploads}", *settings))


def configuration(recipe: str, seed: int, *changes: Change) -> Config:
    """A published configuration with this seed. `changes` add their tags to its name."""
    if not changes:
        return load_published(recipe, (), seed)
    name = "-".join((recipe, *(change.tag for change in changes)))
    settings = [setting for change in changes for setting in change.settings]
    return load_published(recipe, [*settings, f'name="{name}"'], seed)


def repeated(extent: Extent, task: str, method: str, recipe: str, *changes: Change, **at: float | str) -> list[RunSpec]:
    """A run of `recipe` with `changes` for each seed of `extent`; `at` is its place in a sweep."""
    short = [QUICK[task]] if extent.quick else []
    short += [uploads_limit(extent.uploads)] if extent.uploads else []
    return [RunSpec(method, configuration(recipe, seed, *changes, *short), at) for seed in extent.seeds]


def mushrooms(extent: Extent, methods: Mapping[str, tuple[str, Sequence[Change]]]) -> list[RunSpec]:
    """Runs on mushrooms for every seed of `extent`; `methods` gives the recipe and the changes of each method."""
    return [
        run
        for method, (recipe, changes) in methods.items()
        for run in repeated(extent, "mushrooms", method, recipe, *changes, EVERY_100)
    ]


Outcome: TypeAlias = Literal["pass", "by construction", "fail", "undecided", "not comparable"]
"""By construction: the configuration implies it, so no run could refute it. Undecided: more seeds are needed. Not
comparable: the runs that the claim is about are missing, or differ from the published ones.
"""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for a claim, and the figures that decide it."""

    result: Outcome
    because: str
    brief: str = ""
    """The same in a few words, for the summary."""

    @staticmethod
    def of(holds: bool | None, because: str, brief: str = "") -> Verdict:
        """Pass if the claim `holds`, fail if not, undecided if None. `because` states the figures."""
        return Verdict("undecided" if holds is None else "pass" if holds else "fail", because, brief)

    @staticmethod
    def none(because: str) -> Verdict:
        """The runs cannot decide the claim."""
        return Verdict("not comparable", because)

    def __str__(self) -> str:
        return f"{self.result}, because {self.because}" if self.result == "not comparable" else self.result


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A published statement, its place in the paper, and the function of runs that decides it."""

    where: str
    text: str
    check: Callable[[EntryRuns], Verdict]
    quick_suffices: bool = False
    """A quick run can decide it."""
    by_construction: bool = False
    """It follows from the configuration."""
    cut_suffices: bool = False
    """Shortened runs can decide it."""
    key: bool = False
    """The summary lists it."""

    def verdict(self, measured: EntryRuns) -> Verdict:
        """Decide the claim by an entry's runs."""
        if measured.quick and not self.quick_suffices:
            return Verdict.none("this was a quick run")
        if measured.cut and not (self.cut_suffices or self.quick_suffices):
            return Verdict.none("these runs were shortened")
        try:
            found = self.check(measured)
        except NotComparable as error:
            return Verdict.none(str(error))
        return replace(found, result="by construction") if self.by_construction and found.result == "pass" else found


@final
@dataclass(frozen=True)
class Entry:
    """A figure or table of the paper, or an additional one."""

    name: str
    title: str
    paper: str
    """Its place in the paper."""
    time: str
    """Roughly the time of all runs on two cores."""
    plan: Callable[[Extent], Sequence[RunSpec]]
    table: Callable[[EntryRuns], Table]
    panels: Callable[[EntryRuns], Sequence[Panel]]
    claims: tuple[Claim, ...]
    notes: Callable[[EntryRuns], Sequence[str]] = lambda _: ()
    """Remarks below the table."""


@final
class Request(NamedTuple):
    """The options of `python -m reproduction`, except for the entry."""

    seeds: int | None = None
    """How many; None: three, or one for quick runs."""
    quick: bool = False
    all_methods: bool = False
    family: str | None = None
    only: Sequence[str] = ()
    """Patterns of run names; empty: all runs."""
    finished: bool = False
    """Make no run; use those that are finished."""
    uploads: int | None = None
    """Where runs end at the latest."""

    def plans(self, entries: Mapping[str, Entry], store: Store) -> dict[str, list[RunSpec]]:
        """The runs of each entry by its name, without entries that have none."""
        plans = {name: self._plan(entry) for name, entry in entries.items()}
        listed = " ".join(entries) if len(entries) == 1 else "all"
        if not any(plans.values()):
            raise ConfigError(f"--only {' '.join(self.only)} matches no run of {listed}.")
        if self.finished:
            plans = {name: store.finished(plan) for name, plan in plans.items()}
            if not any(plans.values()):
                raise ConfigError(f"No run of {listed} is finished in {store.runs}. Leave out --finished.")
        return {name: plan for name, plan in plans.items() if plan}

    def all_runs(self, entries: Mapping[str, Entry]) -> list[RunSpec]:
        """The runs of all entries, finished or not."""
        return [run for entry in entries.values() for run in self._plan(entry)]

    def _plan(self, entry: Entry) -> list[RunSpec]:
        seeds = tuple(range(self.seeds or (1 if self.quick else 3)))
        extent = Extent(seeds, self.quick, self.all_methods, self.family, self.uploads, self.seeds is not None)
        runs = entry.plan(extent)
        if self.family and not any(run.config.name.startswith(f"{self.family}-") for run in runs):
            raise ConfigError(f"{entry.name} does not take --family.")
        return [run for run in runs if not self.only or any(fnmatch(run.config.name, name) for name in self.only)]

    def command(self, entry: str) -> str:
        """The command line of this request."""
        parts = [f"--seeds {self.seeds}" if self.seeds else "", "--quick" if self.quick else ""]
        parts += ["--all-methods" if self.all_methods else "", f"--family {self.family}" if self.family else ""]
        parts += [f"--uploads {self.uploads}" if self.uploads else ""]
        parts += [*(f"--only '{pattern}'" for pattern in self.only), "--finished" if self.finished else ""]
        return " ".join(("python -m reproduction", entry, *(part for part in parts if part)))


def why_missing(runs: Sequence[RunSpec]) -> str | None:
    """Why some of `runs` cannot be made: PyTorch or data is missing; None if all can.

    Downloads data now if its authors allow that.
    """
    tasks = {run.config.task.name: run.config.task for run in runs if not run.cheap}
    return next((reason for task in tasks.values() if (reason := task.missing(fetch=True))), None)
