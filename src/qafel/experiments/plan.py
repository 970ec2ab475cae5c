"""Which runs an entry needs: a configuration each, under a name that says how it differs from its recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from qafel.config import Config, load_recipe

CHEAP_TASKS = ("mushrooms", "quadratic", "logistic")
"""Tasks of which several runs go at once, one in each process."""

COST = {"cifar10": 80.0, "celeba": 100.0, "shakespeare": 6000.0}
"""Roughly how much longer an upload takes than one of a cheap task."""


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


@final
@dataclass(frozen=True, slots=True)
class Planned:
    """One run: what it is called in tables and figures, where it stands in the sweep, and its configuration."""

    method: str
    config: Config
    at: Mapping[str, float | str] = field(default_factory=dict)
    """The values of what the entry varies, such as the concurrency."""

    @property
    def folder(self) -> str:
        return f"{self.config.name}-seed{self.config.seed}"

    @property
    def cheap(self) -> bool:
        return self.config.task.name in CHEAP_TASKS

    @property
    def work(self) -> float:
        """How much there is to do, to be held against other runs: its uploads, as far as its limits tell, and cost."""
        stop, timing = self.config.stop, self.config.timing
        limits = (
            stop.uploads,
            stop.server_steps and stop.server_steps * self.config.algorithm.buffer_size,
            stop.virtual_time and stop.virtual_time * timing.rate,
        )
        uploads = min((float(limit) for limit in limits if limit is not None), default=1.0)
        return uploads * COST.get(self.config.task.name, 1.0)


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
