"""Sections of a configuration, and `Config`, which reads and writes TOML.

Errors about unknown keys suggest the closest known key.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeAlias

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from qafel.algorithm import AlgorithmSettings
from qafel.config.start import StartConfig
from qafel.config.tasks import CUSTOM, SHIPPED, TASKS, CustomTask, MushroomsConfig, Seed, TaskConfig
from qafel.errors import ConfigError, plain_number
from qafel.params import Vector
from qafel.parts import PartName, Section, explain, is_path, one_of, read_part
from qafel.tasks import Task
from qafel.tasks.protocol import digest_of, initial_model
from qafel.text import did_you_mean

_DEEPEST = 32
_TOO_DEEP = f"its values are nested more than {_DEEPEST} deep"
_MANY_PARTS = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*\.[ \t]*){{{_DEEPEST}}}""")


@cache
def recipes() -> Mapping[str, str]:
    """The recipes that ship with the package: name to TOML text, sorted by name."""
    paths = sorted(files("qafel").joinpath("recipes").iterdir(), key=lambda path: path.name)
    named = {path.name.removesuffix(".toml"): path for path in paths if path.name.endswith(".toml")}
    return MappingProxyType({name: path.read_text(encoding="utf-8") for name, path in named.items()})


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises `ValueError` if it is invalid, or nested more than 32 deep."""
    try:
        if _MANY_PARTS.search(text):  # the parser would need quadratic time
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
    """Parse TOML `text` over the recipe that it extends, then apply `overrides` such as "stop.uploads=9".

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
        if _names_custom_task(table.get("task")):
            del whole["task"]  # these settings belong to another task
        if isinstance(timing := table.get("timing"), Mapping):
            _drop_replaced(whole.get("timing", {}), timing)
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


def _names_custom_task(task: Any) -> bool:
    return isinstance(task, Mapping) and isinstance(name := task.get("name"), str) and is_path(name)


def _override(table: dict[str, Any], override: str) -> None:
    """Set `a.b=c`, with c as TOML if it is valid, else as text. A custom task drops the settings of the task before."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"expected a setting section.key=value, got {override!r}")
    put(table, keys, read_value(value), f"the setting {override}")
    if keys == ["task", "name"] and _names_custom_task(table["task"]):
        table["task"] = {key: kept for key, kept in table["task"].items() if key in ("name", "arguments")}


def read_value(text: str) -> Any:
    """The value of a setting: TOML, or else the text itself."""
    try:
        return parse_toml(f"v = {text}")["v"]
    except ValueError:
        return text.strip()


def put(table: dict[str, Any], keys: Sequence[str], value: object, source: str) -> None:
    """Set a nested value, with new tables where needed. `source` names the setting in errors."""
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            is_part = isinstance(table, str) and key not in ("name", "method")
            hint = f'; a part with arguments is {key}={{name="{table}", {keys[-1]}=…}}' if is_part else ""
            raise ConfigError(f"{source}: {key} is a value, not a section{hint}")
    if keys[:-1] == ["timing"]:
        _drop_replaced(table, {keys[-1]: value})
    table[keys[-1]] = value


def _drop_replaced(timing: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop settings that the changes replace, and those that another law in the changes does not read."""
    for name in list(timing):
        key, laws = _READ_BY.get(name, ("", ()))
        if _INSTEAD.get(name) in changes or (key in changes and changes[key] not in laws):
            del timing[name]


_INSTEAD = {"rate": "concurrency", "concurrency": "rate"}
"""Settings of [timing] that replace each other. The later one counts."""
_WIDEST = 50.0
"""The largest spread: e^(spread·N(0, 1)) stays finite."""
ARRIVALS = ("always-training", "constant", "poisson", "trace", "rounds")
DURATIONS = ("half-normal", "log-normal", "uniform", "constant")
_READ_BY = {
    **dict.fromkeys(("rate", "concurrency", "draw"), ("arrivals", ("constant", "poisson"))),
    **dict.fromkeys(("over_selection", "round_timeout"), ("arrivals", ("rounds",))),
    "trace": ("arrivals", ("trace",)),
    "scale": ("duration", DURATIONS),
    "spread": ("duration", ("log-normal", "uniform")),
}
"""Settings of [timing] that only some laws read: the key of the law, and its names. Custom laws take arguments."""


def _as_list(values: Any) -> Any:
    """Convert a sequence or an array to a list of numbers. Return other values unchanged."""
    is_several = hasattr(values, "tolist") or (isinstance(values, Sequence) and not isinstance(values, str))
    return [plain_number(value) for value in values] if is_several else values


def _read_arrivals(value: Any) -> Any:
    if isinstance(value, Iterator):
        raise ValueError("expected a generator function or a list, got a generator, which serves one run only")
    return value if isinstance(value, list | tuple) else read_part(value)


def _read_dropout(value: Any) -> Any:
    shares = value if isinstance(value, list) else [value]
    if callable(value) or all(isinstance(share, int | float) and 0 <= share < 1 for share in shares):
        return float(value) if isinstance(value, int) else value
    raise ValueError(f"expected a share in [0, 1), a list with one share per client, or a function; got {value!r}")


PerClient: TypeAlias = Annotated[list[Annotated[float, Field(gt=0)]], BeforeValidator(_as_list)]
"""One positive factor per client."""


class Network(Section):
    """How long messages take: real bytes over a client's bandwidth. Quantization shortens virtual time.

    upload_rate, download_rate   bytes per unit of virtual time; none: messages take no time
    latency                      additional time per message
    spread                       varies the clients' rates by a factor e^(spread·N(0, 1)), fixed per client and seed
    rate_factors                 additional factor for each client; 2 makes its messages twice as fast
    """

    upload_rate: float | None = Field(None, gt=0)
    download_rate: float | None = Field(None, gt=0)
    latency: float = Field(0.0, ge=0)
    spread: float = Field(0.0, ge=0, le=_WIDEST)
    rate_factors: PerClient | None = None


class Timing(Section):
    """When clients train and how long, in virtual time. Random laws use the run's seed.

    arrivals           who starts when: again immediately ("always-training"), at a rate ("constant", "poisson"), from a
                       file ("trace") or in rounds. In Python also an object such as `Poisson(rate=5.0)`, a list of
                       (time, client), or a generator function
    rate               arrivals per unit of time, for constant and poisson
    concurrency        clients that train at the same time on average, instead of rate. The rate is the concurrency
                       divided by the mean of the duration law; per_example, factors and network add to it
    trace              CSV file with the columns time, client and optionally duration
    draw               whether each arrival draws any client, or each client once per pass
    max_concurrency    largest number of clients that train at the same time; further arrivals are ignored
    duration           distribution of training times. In Python also an object with draw(client, number), such as
                       `LogNormal(spread=1.0)`
    scale              scale of the durations
    spread             log-normal: scale·e^(spread·N(0, 1)); uniform: scale·(1 ± spread)
    per_example        additional time per sample that a client holds
    speed_spread       varies the clients' durations by a factor e^(spread·N(0, 1)), fixed per client and seed
    duration_factors   additional factor for each client; 2 makes its training take twice as long
    dropout            share of trainings that never report. A list has a share per client; in Python also a function
    over_selection     rounds: additional clients that start, as a share of K
    round_timeout      rounds: the server steps after this time with the updates that it has
    network            how long messages take; no time by default
    """

    arrivals: Annotated[Any, BeforeValidator(_read_arrivals), one_of(ARRIVALS, "arrival law")] = "always-training"
    rate: float = Field(100.0, gt=0)
    concurrency: float | None = Field(None, gt=0)
    trace: str | None = None
    draw: Literal["with-replacement", "without-replacement"] = "with-replacement"
    max_concurrency: int | None = Field(None, ge=1)
    duration: Annotated[PartName, one_of(DURATIONS, "duration law")] = "half-normal"
    scale: float = Field(1.0, gt=0)
    spread: float = Field(0.5, ge=0, le=_WIDEST)
    per_example: float = Field(0.0, ge=0)
    speed_spread: float = Field(0.0, ge=0, le=_WIDEST)
    duration_factors: PerClient | None = None
    dropout: Annotated[Any, BeforeValidator(_as_list), AfterValidator(_read_dropout)] = 0.0
    over_selection: float = Field(0.0, ge=0)
    round_timeout: float | None = Field(None, gt=0)
    network: Network = Network()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, (key, laws) in _READ_BY.items():
            law = getattr(self, key)
            is_read = isinstance(law, str) and law in laws
            if not is_read and getattr(self, name) != type(self).model_fields[name].default:
                shipped = isinstance(law, str) and law in (*ARRIVALS, *DURATIONS)
                found = law if shipped else "a custom law, which takes arguments itself"
                raise ValueError(f"{name} is for {key} = {' or '.join(laws)}; found {found}")
        if self.arrivals == "trace" and self.trace is None:
            raise ValueError('arrivals = "trace" needs a file: set trace')
        if self.arrivals == "always-training" and self.max_concurrency is not None:
            raise ValueError("max_concurrency would exclude some always-training clients forever: set other arrivals")
        if self.concurrency is not None:
            self._replace_concurrency()
        return self

    def _replace_concurrency(self) -> None:
        """Set the rate that gives the concurrency, so that a configuration states one of both."""
        if "rate" in self.model_fields_set:
            raise ValueError("rate and concurrency exclude each other: give one of them")
        if not isinstance(self.duration, str) or self.duration not in DURATIONS:
            raise ValueError("concurrency needs the mean of a shipped duration law: give the rate")
        widening = math.exp(min(self.spread**2 / 2, 700.0))  # larger ones overflow
        mean = self.scale * {"half-normal": math.sqrt(2 / math.pi), "log-normal": widening}.get(self.duration, 1.0)
        self.__dict__.update(rate=self.__dict__["concurrency"] / mean, concurrency=None)


class Evaluation(Section):
    """How often the server model is evaluated, and the target.

    every    server steps or uploads between two evaluations
    unit     whether `every` counts server steps or uploads
    target   value of the metric that counts as reached; none: no target
    """

    every: int = Field(1, ge=1)
    unit: Literal["server_steps", "uploads"] = "server_steps"
    target: float | None = None


class Limits(Section):
    """When a run ends: at the first limit that it reaches.

    server_steps    number of server steps; 10,000 if a recipe sets no limit
    uploads         number of accepted uploads
    virtual_time    virtual time; deployments have no such limit
    total_bytes     bytes uploaded, broadcast (each broadcast counted once) and received by starting clients
    at_target       whether to stop at the first evaluation that reaches the target
    """

    server_steps: int | None = Field(None, ge=1)
    uploads: int | None = Field(None, ge=1)
    virtual_time: float | None = Field(None, gt=0)
    total_bytes: int | None = Field(None, ge=1)
    at_target: bool = False

    @model_validator(mode="after")
    def _some_end(self) -> Self:
        if not any((self.server_steps, self.uploads, self.virtual_time, self.total_bytes)):
            raise ValueError("set at least one of server_steps, uploads, virtual_time and total_bytes")
        return self

    def reached(self, version: int, uploads: int, total_bytes: int, virtual_time: float = -math.inf) -> bool:
        """Whether a run that has come so far ends now. The target is for `runs.progress.Progress` to know."""
        return (
            (self.server_steps is not None and version >= self.server_steps)
            or (self.uploads is not None and uploads >= self.uploads)
            or (self.virtual_time is not None and virtual_time >= self.virtual_time)
            or (self.total_bytes is not None and total_bytes >= self.total_bytes)
        )

    def share_done(self, version: int, uploads: int, total_bytes: int, virtual_time: float) -> float:
        """How far a run is towards the nearest of its limits, from 0 to 1 and a little beyond."""
        reached = (version, uploads, total_bytes, virtual_time)
        ends = (self.server_steps, self.uploads, self.total_bytes, self.virtual_time)
        return max(now / end for now, end in zip(reached, ends, strict=True) if end is not None)

    def require_target(self, evaluation: Evaluation) -> None:
        """Raise `ConfigError` if a run is to end at a target that it does not have."""
        if self.at_target and evaluation.target is None:
            raise ConfigError("a run that ends at_target needs a target: set evaluation.target")


class Config(Section):
    """A whole run."""

    name: str = "run"
    description: str = ""
    seed: Seed = 0
    task: TaskConfig = MushroomsConfig()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    timing: Timing = Timing()
    evaluation: Evaluation = Evaluation()
    stop: Limits = Limits(server_steps=10_000)
    start: StartConfig | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self.stop.require_target(self.evaluation)
        return self

    @staticmethod
    def from_dict(table: Mapping[str, Any], source: str = "the configuration") -> Config:
        """Validate a `table` of sections. `source` names it in errors."""
        if table.get("made_in") == "python":
            raise ConfigError(
                f"{source} is of a run started from Python: resume it with simulate(…, out=…, resume=True)"
            )
        try:
            return Config.model_validate(table)
        except ValidationError as error:
            raise ConfigError(f"{source}: {explain(error, (*TASKS, SHIPPED, CUSTOM))}") from None
        except ConfigError as error:
            raise type(error)(f"{source}: {error}") from None

    @staticmethod
    def from_toml(text: str, source: str, overrides: Iterable[str] = (), seed: int | None = None) -> Config:
        """Read TOML `text`, apply `overrides` such as "stop.uploads=9", then set `seed` unless it is None.

        With `extends = "RECIPE"`, the text holds only changes to that recipe. `source` names it in errors.
        """
        table = read_table(text, source, overrides)
        return Config.from_dict(table if seed is None else {**table, "seed": seed}, source)

    def with_task(self, task: Task) -> Config:
        """Add the digest of its task's frozen parameters, if the task is custom and has some."""
        if not isinstance(self.task, CustomTask) or not (digest := digest_of(task)):
            return self
        return self.model_copy(update={"task": self.task.model_copy(update={"digest": digest})})

    def custom_parts_of_clients(self) -> list[str]:
        """Import paths of the custom task and quantizers, which a deployed client must allow."""
        task = [self.task.name] if isinstance(self.task, CustomTask) else []
        return list(dict.fromkeys([*task, *self.algorithm.custom_parts_at_client().values()]))

    def arguments(self, task: Task | None = None) -> dict[str, Any]:
        """Arguments of `simulate` for this configuration. `task`: the task, if it exists already."""
        task = task or self.task.make()
        return {
            "task": task,
            "algorithm": self.algorithm.compose(task.layout),
            "timing": self.timing,
            "limits": self.stop,
            "evaluation": self.evaluation,
            "seed": self.seed,
            "start_from": self.start,
            "recipe": self,
        }

    def initial_model(self, task: Task) -> Vector:
        """x⁰: the model that [start] names, or the task's initial model for this seed."""
        if self.start is not None:
            return self.start.read(task.layout)
        return initial_model(task, self.seed)

    def value(self, path: str) -> Any:
        """The value of the setting `path`, such as "stop.uploads"; None if it is not set."""
        value: Any = self
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
        return value

    def to_toml(self) -> str:
        """All settings, including defaults, as TOML for `from_toml`."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def load_recipe(name: str, overrides: Iterable[str] = (), seed: int | None = None) -> Config:
    """Load the recipe `name`, or the TOML file at that path.

    `overrides` are settings such as "stop.uploads=9". `seed` replaces the recipe's seed.
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
    """Add the digest of the start model. Only local recipes may name files, so a peer's recipe is not pinned."""
    return config if config.start is None else config.model_copy(update={"start": config.start.pinned()})
