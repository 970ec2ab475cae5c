"""The runs of a sweep: every recipe with every seed and every combination of settings.

algorithm.client_lr=0.5,1,2                                  Three values.
algorithm.client_quantizer=top_k:0.5,round=down,qsgd:4       Two values: `key=…` belongs to the value before it.
task.arguments={a = 1, b = 2}                                One value: quotes and brackets protect commas.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias

import tomli_w

from qafel.config import Config, load_recipe
from qafel.errors import ConfigError, PartFailed, UserError
from qafel.search.runner import RunSpec
from qafel.simulator.api import quantizer_warnings
from qafel.simulator.simulation import Simulation
from qafel.tasks.protocol import Task
from qafel.text import split_list

Recipe: TypeAlias = str | Path | Mapping[str, Any]
"""A recipe's name, a TOML file, or the content of such a file as a table."""
Settings: TypeAlias = Mapping[str, Sequence[str]]
"""The values of each setting by its path, as in `--set`: TOML or plain text."""

_LONGEST = 120  # letters of a name; folders of many file systems end at 255 bytes


def parse_seeds(text: str) -> list[int]:
    """The seeds of `--seeds`: "5" means 0 to 4, "3,7,9" a list, and "7," a single seed."""
    try:
        listed = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        listed = []
    return seeds_of(listed if "," in text or not listed else listed[0])


def seeds_of(seeds: object) -> list[int]:
    """The list of seeds that a number of seeds, or a list of them, means."""
    if isinstance(seeds, int) and seeds > 0:
        return list(range(seeds))
    listed = list(seeds) if isinstance(seeds, Iterable) else []
    if listed and all(isinstance(seed, Integral) for seed in listed):
        return list(dict.fromkeys(map(int, listed)))
    raise ConfigError(f"`seeds` must be a number (5: seeds 0 to 4) or a list (3,7,9); got {seeds!r}.")


def parse_settings(texts: Iterable[str]) -> Settings:
    """The values of `--set A.B=C` and `--set A.B=1,2,3`. A repeated setting has all values."""
    found: dict[str, list[str]] = {}
    for text in texts:
        path, equals, values = (part.strip() for part in text.partition("="))
        split = split_list(values)
        if not equals or not path or not all(split):
            raise ConfigError(f"A setting must be section.key=value or section.key=a,b,c; got {text!r}.")
        found[path] = list(dict.fromkeys([*found.get(path, ()), *split]))
    return found


def as_settings(values: Mapping[str, object]) -> Settings:
    """Python values as `--set` takes them. A list or tuple holds several values."""
    return {
        path: [_toml(path, one) for one in (several if isinstance(several, list | tuple) else (several,))]
        for path, several in values.items()
    }


def _toml(path: str, value: Any) -> str:
    try:
        return tomli_w.dumps({"v": value.item() if hasattr(value, "item") else value}).removeprefix("v = ").strip()
    except TypeError:
        raise ConfigError(f"{path} takes numbers, text or booleans; got {value!r}.") from None


def grid(recipes: Sequence[Recipe], seeds: Sequence[int], settings: Settings) -> list[RunSpec]:
    """Every recipe with every combination of settings and every seed. Raises `ConfigError` for a mistake in any.

    The name of a run is the recipe's name with the values that vary.
    """
    if "seed" in settings:
        raise ConfigError("Set the seeds of a sweep by `seeds`, not by the setting seed.")
    recipes = [recipe for place, recipe in enumerate(recipes) if recipe not in recipes[:place]]
    if empty := [path for path, values in settings.items() if not values]:
        raise ConfigError(f"{empty[0]} needs at least one value.")
    if not recipes or not seeds:
        raise ConfigError("A sweep needs at least one recipe and one seed.")
    runs: list[RunSpec] = []
    for base, recipe in zip(_names(recipes, settings), recipes, strict=True):
        for values in itertools.product(*settings.values()):
            chosen = dict(zip(settings, values, strict=True))
            varied = {path: value for path, value in chosen.items() if len(settings[path]) > 1}
            config = _load(recipe, chosen, seeds[0], varied)
            name = _short("-".join((base, *(f"{_key(path, varied)}={value}" for path, value in varied.items()))))
            if any(run.config.name == name for run in runs):
                name = f"{name}-{_digest(repr((base, varied)))}"
            at = {path: _shown(config.value(path)) for path in varied}
            runs += [RunSpec(base, config.model_copy(update={"name": name, "seed": seed}), at) for seed in seeds]
    return runs


def _names(recipes: Sequence[Recipe], settings: Settings) -> list[str]:
    """A name for each recipe: the name of its file if several recipes share a name."""
    first = {path: values[0] for path, values in settings.items()}
    names = [_load(recipe, first, 0, {}).name for recipe in recipes]
    shared = Counter(names)
    names = [
        name if shared[name] == 1 or isinstance(recipe, Mapping) else Path(recipe).stem
        for name, recipe in zip(names, recipes, strict=True)
    ]
    if doubled := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"Several recipes have the name {doubled[0]!r}. Give each a different `name`.")
    return names


def _load(recipe: Recipe, settings: Mapping[str, str], seed: int, varied: Mapping[str, str]) -> Config:
    overrides = [f"{path}={value}" for path, value in settings.items()]
    try:
        if isinstance(recipe, Mapping):
            return Config.from_toml(tomli_w.dumps(recipe), "the recipe", overrides, seed)
        return load_recipe(str(recipe), overrides, seed)
    except ConfigError as error:
        raise ConfigError(f"{error}{_where(varied)}") from None


def _where(varied: Mapping[str, object]) -> str:
    return f" (at {', '.join(f'{path}={value}' for path, value in varied.items())})" if varied else ""


def _key(path: str, varied: Mapping[str, str]) -> str:
    """The last part of a setting's path; the whole path if another one has the same last part."""
    last = path.rpartition(".")[2]
    return path if sum(other.rpartition(".")[2] == last for other in varied) > 1 else last


def _short(name: str) -> str:
    """The name as a folder name: short, and without special characters."""
    plain = re.sub(r"[^\w.+=-]+", "-", name.replace('"', "")).strip("-")
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 9]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _shown(value: Any) -> Any:
    """A setting's value for a table. A custom part appears as its call."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def require_sound(runs: Iterable[RunSpec]) -> list[str]:
    """Start one run of each configuration without writing anything, so that mistakes show before the sweep begins.

    Returns the warnings about quantizers, each once.
    """
    warnings: dict[str, None] = {}
    task: Task | None = None
    made: Config | None = None
    kinds: dict[str, RunSpec] = {}
    for run in runs:
        kinds.setdefault(run.config.name, run)
    for run in kinds.values():
        config = run.config
        try:
            if task is None or made is None or made.task != config.task:
                task, made = None, config  # one in memory at a time
                task = config.task.make()
            algorithm, start = config.algorithm.compose(task.layout), config.initial_model(task)
            simulation = Simulation(task, algorithm, config.timing, config.seed, start=start)
            if run.cheap:  # some mistakes show only when a client trains
                simulation.begin()
                simulation.advance()
        except UserError as error:
            kind = PartFailed if isinstance(error, PartFailed) else ConfigError
            raise kind(f"{run.folder}: {error}") from error.__cause__
        except Exception:  # the run itself will fail, and the others continue
            continue
        warnings |= dict.fromkeys(quantizer_warnings(algorithm, task.layout.size))
    return list(warnings)
