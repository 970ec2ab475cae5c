"""The search space: settings of the algorithm, each in a range or among choices.

algorithm.client_lr=1e-3:10:log                     From 1e-3 to 10, on a logarithmic scale.
algorithm.buffer_size=4:32                          Whole numbers, because the setting is one.
algorithm.client_quantizer=qsgd:2,qsgd:4,none       One of three choices.
algorithm.server_quantizer=top_k:0.1,values=qsgd:4,qsgd:4    Two choices: `key=…` belongs to the spec before it.
algorithm.client_quantizer.bits=2:8                 An argument of a custom part.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, final, get_args

from qafel.config import Config
from qafel.config.sections import put, read_value
from qafel.errors import ConfigError
from qafel.text import split_list

Value: TypeAlias = bool | int | float | str
Settings: TypeAlias = Mapping[str, Value]

SECTION = "algorithm."
LEARNING_RATES = ("algorithm.client_lr", "algorithm.server_lr")
BUFFER_SIZE = "algorithm.buffer_size"

COUNTABLE = 10_000
"""Larger spaces are not enumerated."""

DECADES = 2
"""Decades to either side of the recipe's learning rate in the default space."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::(log|linear))?")


@final
@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included. `whole`: integers only."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"A range must go from a number to a larger one; got {self}.")
        if self.log and self.low <= 0:
            raise ConfigError(f"A logarithmic range must begin above zero; got {self}.")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}{':log' if self.log else ''}"

    @property
    def corners(self) -> tuple[Value, ...]:
        """The values whose validity implies that of all."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    @property
    def all_values(self) -> Sequence[Value] | None:
        """All values. None if they cannot be enumerated."""
        return range(int(self.low), int(self.high) + 1) if self.whole else None

    def tidy(self, value: float) -> Value:
        """The value with four significant digits, for readable recipes."""
        return int(value) if self.whole else min(self.high, max(self.low, float(f"{value:.4g}")))


@final
@dataclass(frozen=True)
class Choices:
    """One of some values."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(set(map(str, self.values))) != len(self.values) or not self.values:
            raise ConfigError(f"Choices must be different values; got {self}.")

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ",".join(map(str, self.values))

    @property
    def corners(self) -> tuple[Value, ...]:
        return self.values

    @property
    def all_values(self) -> Sequence[Value]:
        return self.values

    def tidy(self, value: Value) -> Value:
        return value


Search: TypeAlias = Mapping[str, Range | Choices]
"""Ranges and choices by the path of a setting."""


def parse_search(texts: Iterable[str], config: Config) -> Search:
    """The space of `--search PATH=LOW:HIGH[:log]` and `--search PATH=A,B,C`; by default the learning rates."""
    search: dict[str, Range | Choices] = {}
    for text in texts:
        path, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            raise ConfigError(f"A `search` must be section.key=low:high[:log] or section.key=a,b,c; got {text!r}.")
        if path in search:
            raise ConfigError(f"{path} is given twice. Give it once.")
        field = type(config.algorithm).model_fields.get(path.removeprefix(SECTION))
        is_float = isinstance(recipe_value(config, path), float) or (field and float in get_args(field.annotation))
        search[path] = _dimension(values, whole=not is_float)
    search = search or dict(default_search(config))
    check_search(config, search)
    return search


def default_search(config: Config) -> Search:
    """The learning rates that the method leaves open, two decades to either side of the recipe's values."""
    search = {}
    for path in LEARNING_RATES:
        start = float(recipe_value(config, path))
        around = Range(start / 10**DECADES, start * 10**DECADES, log=True)
        with suppress(ConfigError):
            check_search(config, {path: around})
            search[path] = around
    return search


def check_search(config: Config, search: Search) -> None:
    """Raise a ConfigError if the space contains values that the configuration does not allow."""
    if not search:
        raise ConfigError(f"{config.algorithm.method} leaves no learning rate open. Give settings to `search`.")
    for path, dimension in search.items():
        for value in dimension.corners:
            with_settings(config, {path: value}, f"the search {path}={dimension}")


def with_settings(config: Config, settings: Settings, source: str = "the search") -> Config:
    """The configuration with some settings of its algorithm changed."""
    data = config.model_dump(exclude_none=True)
    for path, value in settings.items():
        recipe_value(config, path)
        put(data, path.split("."), value, source)
    return Config.from_dict(data, source)


def recipe_value(config: Config, path: str) -> Any:
    """The recipe's value of a setting. None if it has none."""
    if not path.startswith(SECTION):
        raise ConfigError(f"Only settings of the algorithm can be searched, such as {LEARNING_RATES[0]}; got {path!r}.")
    return config.value(path)


def recipe_settings(config: Config, search: Search) -> dict[str, Value] | None:
    """The recipe's settings. None if the space does not contain them all."""
    found = {path: recipe_value(config, path) for path in search}
    return found if all(value in search[path] for path, value in found.items()) else None


def all_settings(search: Search) -> list[Settings] | None:
    """All combinations. None if there are too many to enumerate."""
    values = [dimension.all_values for dimension in search.values()]
    counted = [value for value in values if value is not None]
    if len(counted) < len(values) or math.prod(map(len, counted)) > COUNTABLE:
        return None
    return [dict(zip(search, chosen, strict=True)) for chosen in itertools.product(*counted)]


def _dimension(text: str, whole: bool) -> Range | Choices:
    """A range or choices. `whole`: a range between whole numbers holds whole numbers only."""
    if match := _RANGE.fullmatch(text):
        low, high, scale = match.groups()
        whole = whole and low.isdecimal() and high.isdecimal()
        return Range(float(low), float(high), log=scale == "log", whole=whole)
    return Choices(tuple(map(_value, split_list(re.sub(r"\s*,\s*", ",", text)))))


def _value(text: str) -> Value:
    """The value as TOML, or as text, as in `--set`."""
    value = read_value(text)
    return value if isinstance(value, bool | int | float | str) else text


def uneven(config: Config, search: Search) -> str | None:
    """A warning if trials with different K would have unequal budgets or unequal evaluation intervals."""
    if (sizes := search.get(BUFFER_SIZE)) is None:
        return None
    steps, uploads = config.stop.server_steps, config.stop.uploads
    cures = []
    if steps is not None and (uploads or math.inf) > (least := steps * int(min(sizes.corners))):
        cures.append(f"stop.uploads={least}")
    if config.evaluation.unit == "server_steps":
        cures.append("evaluation.unit=uploads")
    if not cures:
        return None
    return f"a server step is buffer_size uploads, so trials have unequal budgets. Set {' and '.join(cures)}."
