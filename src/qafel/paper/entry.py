"""One figure or table of the paper: what to run, and small functions of what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from qafel.config import Config, load_recipe
from qafel.drawing.chart import Panel
from qafel.errors import DataError
from qafel.paper.measured import Measured, Missing
from qafel.paper.tables import Table
from qafel.sweeps.run import Planned
from qafel.tasks.datasets.celeba import find_celeba
from qafel.tasks.datasets.files import data_folder

# Which runs an entry needs: a configuration each, under a name that says how it differs from its recipe.


@final
@dataclass(frozen=True, slots=True)
class Scale:
    """How much of an entry to run."""

    seeds: tuple[int, ...] = (0, 1, 2)
    quick: bool = False
    all_methods: bool = False
    """Every recipe of the task, not only those of the paper's figure."""
    family: str | None = None
    """The first part of the recipes' names, where not the task's own."""


@final
@dataclass(frozen=True, slots=True)
class Change:
    """Settings that differ from the recipe's, and the tag by which a run's name says so."""

    tag: str
    settings: tuple[str, ...]


EVERY_100 = Change("every100", ('evaluation.unit="uploads"', "evaluation.every=100"))
"""A mushrooms run evaluated a thousand times: enough for a figure, and a fraction of the time."""


QUICK = {
    "mushrooms": Change("quick", ("stop.uploads=4_000",)),
    "cifar10": Change(
        "quick", ("stop.uploads=60", "evaluation.every=20", "task.max_samples=20", "task.test_samples=300")
    ),
    "celeba": Change(
        "quick", ("stop.uploads=60", "evaluation.every=20", "task.max_samples=20", "task.test_samples=300")
    ),
    "shakespeare": Change(
        "quick", ("stop.uploads=20", "evaluation.every=10", "task.max_samples=8", "task.test_samples=64")
    ),
}
"""What a quick run leaves out, by task; the same for all entries, so that they share their runs."""


def configuration(recipe: str, seed: int, *changes: Change) -> Config:
    """A recipe as it is, or with changes and a name that lists them."""
    if not changes:
        return load_recipe(recipe, (), seed)
    name = "-".join((recipe, *(change.tag for change in changes)))
    settings = [setting for change in changes for setting in change.settings]
    return load_recipe(recipe, [*settings, f'name="{name}"'], seed)


def mushrooms(scale: Scale, methods: Mapping[str, tuple[str, Sequence[Change]]]) -> list[Planned]:
    """Runs on mushrooms: method to recipe and changes, once for every seed."""
    quick = (QUICK["mushrooms"],) if scale.quick else ()
    return [
        Planned(method, configuration(recipe, seed, *changes, EVERY_100, *quick))
        for method, (recipe, changes) in methods.items()
        for seed in scale.seeds
    ]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What the measured runs say of a claim, and the figures that decide it."""

    result: Literal["pass", "fail", "not comparable"]
    because: str

    @staticmethod
    def of(holds: bool, because: str) -> Verdict:
        return Verdict("pass" if holds else "fail", because)

    @staticmethod
    def none(because: str) -> Verdict:
        return Verdict("not comparable", because)

    def __str__(self) -> str:
        return f"{self.result}, because {self.because}" if self.result == "not comparable" else self.result


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A published statement, where it is made, and the function of measured runs that decides it."""

    where: str
    text: str
    check: Callable[[Measured], Verdict]
    quick_suffices: bool = False
    """Whether a quick run can decide it."""

    def verdict(self, measured: Measured) -> Verdict:
        if measured.quick and not self.quick_suffices:
            return Verdict.none("this was a quick run")
        try:
            return self.check(measured)
        except Missing as error:
            return Verdict.none(str(error))


def _nothing(measured: Measured) -> tuple[str, ...]:
    return ()


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
    plan: Callable[[Scale], Sequence[Planned]]
    table: Callable[[Measured], Table]
    panels: Callable[[Measured], Sequence[Panel]]
    claims: tuple[Claim, ...]
    notes: Callable[[Measured], Sequence[str]] = _nothing
    """What a reader should know that the table does not say."""
    seeds: int = 3


def celeba_is_there() -> bool:
    """Whether all that the reader needs lies in the data folder, as published or as LEAF prepares it."""
    try:
        return bool(find_celeba(data_folder()))
    except DataError:
        return False


def why_missing(runs: Sequence[Planned]) -> str | None:
    """Why some of `runs` cannot be made: no torch, or data that is not there and cannot be downloaded; None if all can.

    Data that its authors let programs download is downloaded now.
    """
    tasks = {run.config.task.name: run.config.task for run in runs if not run.cheap}
    return next((reason for task in tasks.values() if (reason := task.missing(fetch=True))), None)
