"""What a sweep runs: every recipe with every seed and every combination of values of settings.

algorithm.client_lr=0.5,1,2                                  three values
algorithm.client_quantizer=top_k:0.5,round=down,qsgd:4       two: `key=…` belongs to the value before it
task.arguments={a = 1, b = 2}                                one: so does what stands in quotes, brackets or braces
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
"""A recipe's name, a TOML file, or what such a file says as a table."""
Settings: TypeAlias = Mapping[str, Sequence[str]]
"""The values of each setting, by its path, as `--set` takes them: TOML, or text where it is not."""

_LONGEST = 120  # letters of a name; folders of many file systems end at 255 bytes


def parse_seeds(text: str) -> list[int]:
    """The seeds of `--seeds`: 5 is 0 to 4, and 3,7,9 are those; a single one is 7, with its comma."""
    parts = [part.strip() for part in text.split(",")]
    listed = [part for part in parts if part]
    if not listed or not all(re.fullmatch(r"[+-]?\d+", part) for part in listed):
        raise ConfigError(f"`seeds` are how many (5: seeds 0 to 4) or which (3,7,9), got {text!r}")
    if len(parts) > 1:
        return list(dict.fromkeys(map(int, listed)))
    if (count := int(listed[0])) < 1:
        raise ConfigError(f"`seeds` are 1 or more, or a list such as 3,7,9; got {text!r}")
    return list(range(count))


def parse_settings(texts: Iterable[str]) -> Settings:
    """What `--set A.B=C` and `--set A.B=1,2,3` say; a setting that is given again has those values, too."""
    found: dict[str, list[str]] = {}
    for text in texts:
        path, equals, values = (part.strip() for part in text.partition("="))
        split = split_list(values)
        if not equals or not path or not all(split):
            raise ConfigError(f"a setting is section.key=value or section.key=a,b,c, got {text!r}")
        found[path] = list(dict.fromkeys([*found.get(path, ()), *split]))
    return found


def as_settings(values: Mapping[str, object]) -> Settings:
    """Python's values as `--set` takes them; a list or a tuple holds several values."""
    return {
        path: [_toml(path, one) for one in (several if isinstance(several, list | tuple) else (several,))]
        for path, several in values.items()
    }


def _toml(path: str, value: Any) -> str:
    try:
        return tomli_w.dumps({"v": value.item() if hasattr(value, "item") else value}).removeprefix("v = ").strip()
    except TypeError:
        raise ConfigError(f"{path} takes numbers, text or truth values, got {value!r}") from None


def grid(recipes: Sequence[Recipe], seeds: Sequence[int], settings: Settings) -> list[RunSpec]:
    """Every recipe with every combination of the settings' values and every seed.

    A mistake in any of them is a `ConfigError`. A run's name is its recipe's, with the values of what varies.
    """
    if "seed" in settings:
        raise ConfigError("a sweep's seeds are given as such: leave the setting seed out, and say `seeds`")
    recipes = [recipe for place, recipe in enumerate(recipes) if recipe not in recipes[:place]]
    if empty := [path for path, values in settings.items() if not values]:
        raise ConfigError(f"{empty[0]} is given no value")
    if not recipes or not seeds:
        raise ConfigError("a sweep takes at least one recipe and one seed")
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
    """A name for each recipe: its own; if others share it, that of its file."""
    first = {path: values[0] for path, values in settings.items()}
    names = [_load(recipe, first, 0, {}).name for recipe in recipes]
    shared = Counter(names)
    names = [
        name if shared[name] == 1 or isinstance(recipe, Mapping) else Path(recipe).stem
        for name, recipe in zip(names, recipes, strict=True)
    ]
    if doubled := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"several recipes are called {doubled[0]!r}: give each a name of its own")
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
    """The last part of a setting's path; all of it, if another one ends alike."""
    last = path.rpartition(".")[2]
    return path if sum(other.rpartition(".")[2] == last for other in varied) > 1 else last


def _short(name: str) -> str:
    """A name that is a folder's, too: without letters that some file system or shell minds, and not too long."""
    plain = re.sub(r"[^\w.+=-]+", "-", name.replace('"', "")).strip("-")
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 9]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _shown(value: Any) -> Any:
    """A setting's value in a table: an own part with arguments as it would be called."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def require_sound(runs: Iterable[RunSpec]) -> list[str]:
    """Begin a run of each kind, without writing anything, so that a mistake in any of them shows before the first one.

    Kinds differ by more than the seed. Returns the warnings of their quantizers, each once.
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
            if run.cheap:  # what a task thinks of the settings of local training shows when it trains
                simulation.begin()
                simulation.advance()
        except UserError as error:
            kind = PartFailed if isinstance(error, PartFailed) else ConfigError
            raise kind(f"{run.folder}: {error}") from error.__cause__
        except Exception:  # the run itself will say it, and the others are made
            continue
        warnings |= dict.fromkeys(quantizer_warnings(algorithm, task.layout.size))
    return list(warnings)
