"""The sections of a configuration and the whole of it: frozen, validated, from TOML and back.

An unknown key is an error that names the nearest known one. The section [task] is in `config.tasks`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

import tomli_w
from pydantic import Field, ValidationError, model_validator

from qafel.algorithm import AlgorithmSettings
from qafel.algorithm.methods import QUANTIZERS
from qafel.config.start import StartConfig
from qafel.config.tasks import OWN, SHIPPED, TASKS, MushroomsConfig, OwnTask, Seed, TaskConfig
from qafel.errors import ConfigError
from qafel.params import Vector
from qafel.parts import PartName, Section, is_path, one_of, own_path
from qafel.quantizers import parse
from qafel.quantizers.spec import FAMILIES
from qafel.tasks import Task
from qafel.tasks.protocol import initial_model
from qafel.text import did_you_mean

_DEEPEST = 32
_TOO_DEEP = f"its values are nested more than {_DEEPEST} deep"
_MANY_PARTS = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*\.[ \t]*){{{_DEEPEST}}}""")


@cache
def recipes() -> Mapping[str, str]:
    """The recipes that ship with the package, read once per process: name to TOML text, in order of the names."""
    paths = sorted(files("qafel").joinpath("recipes").iterdir(), key=lambda path: path.name)
    named = {path.name.removesuffix(".toml"): path for path in paths if path.name.endswith(".toml")}
    return MappingProxyType({name: path.read_text(encoding="utf-8") for name, path in named.items()})


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text. `ValueError` says why it is none, or that values are nested more than 32 deep."""
    try:
        if _MANY_PARTS.search(text):  # for which the parser would need quadratic time
            raise RecursionError
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    inside: list[Any] = [table]
    for _ in range(_DEEPEST):
        values = (value for one in inside for value in (one.values() if isinstance(one, dict) else one))
        inside = [value for value in values if isinstance(value, dict | list)]
    if inside:
        raise ValueError(_TOO_DEEP)
    return table


def read_table(text: str, source: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Read TOML `text` as a table: first what it extends, then what it says, then `overrides` such as "stop.uploads=9".

    `source` names the text in errors.
    """
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    if (base := table.pop("extends", None)) is not None:
        if base not in recipes():
            raise ConfigError(f"{source} extends the unknown recipe {base!r}{did_you_mean(str(base), recipes())}")
        whole = read_table(recipes()[base], f"recipe {base}")
        if _names_own_task(table.get("task")):
            del whole["task"]  # whose settings are another task's
        table = _merged(whole, table)
    for override in overrides:
        _override(table, override)
    return table


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _names_own_task(task: Any) -> bool:
    return isinstance(task, Mapping) and isinstance(name := task.get("name"), str) and is_path(name)


def _override(table: dict[str, Any], override: str) -> None:
    """Set one value, `a.b=c`: c as TOML, or as text where it is not. An own task takes nothing over from another."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"a setting is section.key=value, got {override!r}")
    try:
        read = parse_toml(f"v = {value}")["v"]
    except ValueError:
        read = value.strip()
    put(table, keys, read, f"the setting {override}")
    if keys == ["task", "name"] and _names_own_task(table["task"]):
        table["task"] = {key: kept for key, kept in table["task"].items() if key in OwnTask.model_fields}


def put(table: dict[str, Any], keys: Sequence[str], value: object, source: str) -> None:
    """Set the value at the end of the `keys`, with tables made on the way; `source` names the setting in errors."""
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {key} is a value, not a section")
    table[keys[-1]] = value


_WIDEST = 50.0
"""The largest spread: e^(spread·N(0, 1)) stays a finite number, and far beyond any fleet."""


class NetworkConfig(Section):
    """How fast messages travel: bytes per unit of virtual time, and a factor e^(spread·N(0,1)) for each client."""

    upload_rate: float | None = Field(None, gt=0)
    download_rate: float | None = Field(None, gt=0)
    latency: float = Field(0.0, ge=0)
    spread: float = Field(0.0, ge=0, le=_WIDEST)


class TimingConfig(Section):
    """When clients train and how long, in virtual time."""

    arrivals: Annotated[
        PartName, one_of(("always-training", "constant", "poisson", "trace", "rounds"), "arrival law")
    ] = "always-training"
    rate: float = Field(100.0, gt=0)
    """Arrivals per unit of time, of constant and Poisson arrivals."""
    trace: str | None = None
    """A CSV file of time, client and, if wanted, duration."""
    draw: Literal["with-replacement", "without-replacement"] = "with-replacement"
    max_concurrency: int | None = Field(None, ge=1)
    """Clients that may train at once; who comes beyond that is turned away."""
    duration: Annotated[PartName, one_of(("half-normal", "log-normal", "uniform", "constant"), "duration law")] = (
        "half-normal"
    )
    scale: float = Field(1.0, gt=0)
    spread: float = Field(0.5, ge=0, le=_WIDEST)
    """Log-normal: scale·e^(spread·N); uniform: scale·(1 ± spread)."""
    per_example: float = Field(0.0, ge=0)
    """Time per sample that a client holds, on top."""
    speed_spread: float = Field(0.0, ge=0, le=_WIDEST)
    """Clients are slower or faster by a factor e^(spread·N(0,1)), each always the same."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """The share of trainings that never report."""
    over_selection: float = Field(0.0, ge=0)
    """Rounds: how many more clients start than are waited for, as a share."""
    round_timeout: float | None = Field(None, gt=0)
    """Rounds: the server steps after this time with what it has."""
    network: NetworkConfig = NetworkConfig()

    @model_validator(mode="after")
    def _trace_has_a_file(self) -> Self:
        if (self.arrivals == "trace") != (self.trace is not None):
            raise ValueError('arrivals = "trace" and the trace file go together')
        return self


class EvaluationConfig(Section):
    """How often the server model is measured, and the value that counts as reached."""

    every: int = Field(1, ge=1)
    unit: Literal["server_steps", "uploads"] = "server_steps"
    target: float | None = None


class StopConfig(Section):
    """When a run ends: at whichever comes first."""

    server_steps: int | None = Field(None, ge=1)
    uploads: int | None = Field(None, ge=1)
    virtual_time: float | None = Field(None, gt=0)
    traffic_bytes: int | None = Field(None, ge=1)
    """Bytes uploaded plus bytes broadcast, each broadcast counted once."""
    at_target: bool = False

    @model_validator(mode="after")
    def _some_end(self) -> Self:
        if not any((self.server_steps, self.uploads, self.virtual_time, self.traffic_bytes)):
            raise ValueError("set at least one of server_steps, uploads, virtual_time and traffic_bytes")
        return self


class Config(Section):
    """A whole run."""

    name: str = "run"
    description: str = ""
    seed: Seed = 0
    task: TaskConfig = MushroomsConfig()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    timing: TimingConfig = TimingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    stop: StopConfig = StopConfig(server_steps=10_000)
    start: StartConfig | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        for quantizer in (getattr(self.algorithm, role) for role in QUANTIZERS):
            if quantizer is not None and own_path(quantizer, FAMILIES) is None:
                parse(str(quantizer))
        if self.algorithm.rounds and self.timing.arrivals != "rounds":
            raise ValueError(f'{self.algorithm.method} goes in rounds: it needs timing.arrivals = "rounds"')
        if self.stop.at_target and self.evaluation.target is None:
            raise ValueError("stop.at_target needs evaluation.target")
        return self

    @staticmethod
    def from_dict(table: Mapping[str, Any], source: str = "the configuration") -> Config:
        """Validate a `table` of sections; `source` names it in errors."""
        if table.get("made_in") == "python":
            raise ConfigError(f"{source} describes a run that Python made: go on with simulate(…, out=…, resume=True)")
        try:
            return Config.model_validate(table)
        except ValidationError as error:
            raise ConfigError(f"{source}: {_explain(error)}") from None

    @staticmethod
    def from_toml(text: str, source: str, overrides: Iterable[str] = (), seed: int | None = None) -> Config:
        """Read TOML `text`, apply `overrides` such as "stop.uploads=9", then set `seed` unless it is None.

        If it says `extends = "RECIPE"`, it holds only what differs from that recipe. `source` names it in errors.
        """
        table = read_table(text, source, overrides)
        return Config.from_dict(table if seed is None else {**table, "seed": seed}, source)

    def custom_parts_of_clients(self) -> list[str]:
        """The import paths that a deployed client must name: a task and quantizers of the user's own."""
        task = [self.task.name] if isinstance(self.task, OwnTask) else []
        return list(dict.fromkeys([*task, *self.algorithm.custom_parts_at_client().values()]))

    def initial_model(self, task: Task) -> Vector:
        """x⁰: the model that [start] names, or the task's own of this seed."""
        if self.start is not None:
            return self.start.read(task.layout)
        return initial_model(task, self.seed)

    def value(self, path: str) -> Any:
        """What it says of the setting `path`, such as "stop.uploads"; None if it says nothing."""
        value: Any = self
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
        return value

    def to_toml(self) -> str:
        """All settings, those by default included, as TOML that `from_toml` reads back."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def load_recipe(name: str, overrides: Iterable[str] = (), seed: int | None = None) -> Config:
    """The configuration of the recipe `name`, or of the TOML file at that path.

    `overrides` are settings such as "stop.uploads=9"; `seed` replaces the recipe's own.
    """
    if name in recipes():
        return _pinned(Config.from_toml(recipes()[name], f"recipe {name}", overrides, seed))
    if Path(name).suffix != ".toml":
        raise ConfigError(f"unknown recipe {name!r}{did_you_mean(name, recipes())}; `qafel recipes` lists them")
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe file {name} cannot be read: {error}") from None
    return _pinned(Config.from_toml(text, name, overrides, seed))


def _pinned(config: Config) -> Config:
    """With the digest of the model to start from. Only a user's own recipe is pinned: a peer's names no files here."""
    return config if config.start is None else config.model_copy(update={"start": config.start.pinned()})


def _explain(error: ValidationError) -> str:
    """The first thing that is wrong, in one sentence."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    while path[0:1] == ["task"] and path[1:2] and path[1] in (*TASKS, SHIPPED, OWN):
        del path[1]  # a task's settings are found under who made it and its name, which the user does not write
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}{did_you_mean(path[-1], _keys_beside(first['loc']))}"
    if first["type"] == "union_tag_invalid":
        return f"unknown task {first['ctx']['tag']!r}{did_you_mean(str(first['ctx']['tag']), TASKS)}"
    if first["type"] == "model_type":
        return f"{where} is a section with settings of its own, found {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] == "value_error" else f", found {first['input']!r}"
    return f"{where + ': ' if where else ''}{message[0].lower()}{message[1:]}{found}"


def _keys_beside(location: tuple[int | str, ...]) -> Iterable[str]:
    """The keys that would have been known where an unknown one was found."""
    section: Any = Config
    for part in location[:-1]:
        if part not in ("task", SHIPPED):
            own_or_shipped = {**TASKS, OWN: OwnTask}.get(str(part))
            section = own_or_shipped or _section(section.model_fields[part].annotation)
    return list(section.model_fields)


def _section(annotation: Any) -> Any:
    """The section of an annotation, which may be left out: `StartConfig | None`."""
    return next(part for part in (*get_args(annotation), annotation) if part is not type(None))
