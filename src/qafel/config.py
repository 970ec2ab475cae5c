"""Every setting of a run, frozen and validated; TOML in and out; an unknown key is an error that names the nearest one.

[task]        what is learnt
[algorithm]   how: preset, quantizers, buffer, learning rates, staleness
[timing]      when clients train and for how long
[evaluation]  how often, and what counts as reached
[stop]        when it ends
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qafel.algorithm import PRESETS, Algorithm, LocalTraining, PolynomialStaleness, wire
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.quantizers import parse


class Section(BaseModel):
    """A table of settings: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TaskConfig(Section):
    """What is learnt, and by how many clients."""

    name: Literal["mushrooms"] = "mushrooms"
    clients: int = Field(100, ge=1)


class StalenessConfig(Section):
    """1 up to the cut-off, then 1/(1 + τ − cut-off)^exponent; beyond the maximum an update is rejected."""

    exponent: float = Field(0.0, ge=0)
    cutoff: int = Field(0, ge=0)
    maximum: int | None = Field(None, ge=0)


class AlgorithmConfig(Section):
    """A preset and what it leaves open."""

    preset: str = "qafel"
    client_quantizer: str = "none"
    server_quantizer: str = "none"
    buffer_size: int = Field(10, ge=1)
    server_lr: float = Field(0.1, gt=0)
    server_momentum: float = Field(0.0, ge=0, lt=1)
    client_lr: float = Field(2.0, gt=0)
    local_steps: int = Field(10, ge=1)
    aggregation: Literal["mean", "sum", "weighted-mean"] = "mean"
    client_weights: Literal["equal", "samples"] = "equal"
    broadcast: Literal["difference", "model"] = "difference"
    upload: Literal["update", "model"] = "update"
    staleness: StalenessConfig = StalenessConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(name := data.get("preset", "qafel"), str):
            return data
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}{_nearest(name, PRESETS)}")
        return PRESETS[name].resolve(name, data)

    def wire(self, layout: Layout | None = None) -> Algorithm:
        """The pure core's algorithm."""
        return wire(
            self.preset,
            layout=layout,
            client_quantizer=self.client_quantizer,
            server_quantizer=self.server_quantizer,
            buffer_size=self.buffer_size,
            server_lr=self.server_lr,
            server_momentum=self.server_momentum,
            local=LocalTraining(self.client_lr, self.local_steps),
            aggregation=self.aggregation,
            staleness=PolynomialStaleness(self.staleness.exponent, self.staleness.cutoff),
            max_staleness=self.staleness.maximum,
            broadcast=self.broadcast,
            upload=self.upload,
        )


class TimingConfig(Section):
    """When clients train: always, and how long, in virtual time."""

    arrivals: Literal["always-training"] = "always-training"
    duration: Literal["half-normal"] = "half-normal"
    scale: float = Field(1.0, gt=0)


class EvaluationConfig(Section):
    """How often the server model is measured (in server steps), and the value that counts as reached."""

    every: int = Field(1, ge=1)
    target: float | None = None


class StopConfig(Section):
    """When a run ends."""

    server_steps: int = Field(10_000, ge=1)


class Config(Section):
    """A whole run."""

    name: str = "run"
    description: str = ""
    seed: int = 0
    task: TaskConfig = TaskConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    timing: TimingConfig = TimingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    stop: StopConfig = StopConfig()

    @model_validator(mode="after")
    def _quantizers_parse(self) -> Self:
        for spec in (self.algorithm.client_quantizer, self.algorithm.server_quantizer):
            parse(spec)
        return self

    @staticmethod
    def from_dict(data: Mapping[str, Any], source: str = "the configuration") -> Config:
        try:
            return Config.model_validate(data)
        except ValidationError as error:
            raise ConfigError(f"{source}: {_explain(error)}") from None

    @staticmethod
    def from_toml(text: str, source: str, overrides: Iterable[str] = (), seed: int | None = None) -> Config:
        """Read TOML, then apply `a.b=c` overrides (c as TOML, or as text), then the seed."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{source} is not valid TOML: {error}") from None
        for override in overrides:
            _override(data, override)
        if seed is not None:
            data["seed"] = seed
        return Config.from_dict(data, source)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def recipes() -> dict[str, str]:
    """The recipes that ship with the package: name to TOML text."""
    folder = files("qafel").joinpath("recipes")
    return {
        entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def load_recipe(name: str, overrides: Iterable[str] = (), seed: int | None = None) -> Config:
    """A recipe by its name, or any TOML file by its path."""
    known = recipes()
    if name in known:
        return Config.from_toml(known[name], f"recipe {name}", overrides, seed)
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"unknown recipe {name!r}{_nearest(name, known)}; `qafel recipes` lists them")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe file {name} cannot be read: {error}") from None
    return Config.from_toml(text, name, overrides, seed)


def _override(data: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set takes section.key=value, got {override!r}")
    table = data
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {key} is a value, not a section")
    try:
        table[keys[-1]] = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        table[keys[-1]] = value.strip()


def _explain(error: ValidationError) -> str:
    """The first thing that is wrong, in one sentence."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section: type[BaseModel] = Config
        for part in first["loc"][:-1]:
            annotation = section.model_fields[str(part)].annotation
            assert isinstance(annotation, type)
            section = annotation
        return f"unknown key {where!r}{_nearest(str(first['loc'][-1]), section.model_fields)}"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] == "value_error" else f", found {first['input']!r}"
    return f"{where + ': ' if where else ''}{message[0].lower()}{message[1:]}{found}"


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"
