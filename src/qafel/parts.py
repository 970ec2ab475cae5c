"""Parts as settings: a shipped part by name, or a custom one by import path, with or without arguments.

    staleness = "my_package.laws:Halving"
    staleness = { name = "my_package.laws:Halving", every = 10 }
    server_rule = { name = "adam", beta1 = 0.9 }

A setting is text: reading a run's configuration imports no custom code. `make` imports, from the current folder too.
It calls a class, or a function that makes the part, with the arguments. Any other object is the part itself. Every
error names the import path.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, time
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias, final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from qafel.errors import ConfigError, PartFailed, QafelError, plain_number
from qafel.text import did_you_mean, path_of

_NAMES = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PATH = re.compile(rf"{_NAMES}:{_NAMES}")
_OURS = str(Path(__file__).parent)
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


class PartKind(NamedTuple):
    """A kind of part: its name in messages, and the attributes that it must have."""

    what: str
    needs: tuple[str, ...]


class Section(BaseModel):
    """A table of settings: frozen, strict, without unknown keys or infinite numbers. A mistake is a `ConfigError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # else nested sections call it too

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, table: Any) -> Any:
        """Refuse unknown keys and suggest the nearest known one. 1e3 counts as a whole number."""
        if not isinstance(table, Mapping):
            return table
        for key in table:
            if key not in cls.model_fields:
                near = did_you_mean(str(key), cls.model_fields)
                raise PydanticCustomError("unknown_key", "unknown", {"key": str(key), "near": near})
        return {key: plain_number(value) for key, value in table.items()}


def explain(error: ValidationError, tags: Collection[str] = ()) -> str:
    """The first mistake in a table of settings, as a sentence. `tags`: steps of its path that users do not write."""
    first = error.errors()[0]
    context = first.get("ctx", {})
    path = [str(step) for step in first["loc"] if step not in tags]
    where = ".".join(path)
    match first["type"]:
        case "unknown_key":
            return f"unknown key {'.'.join((*path, context['key']))!r}{context['near']}"
        case "union_tag_invalid":
            known = re.findall(r"'(.+?)'", context["expected_tags"])
            return f"unknown {where} {context['tag']!r}{did_you_mean(context['tag'], known)}"
        case "model_type":
            return f"{where} is a section with its settings, found {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] == "value_error" else f", found {first['input']!r}"
    return f"{where + ': ' if where else ''}{message[0].lower()}{message[1:]}{found}"


Arguments: TypeAlias = dict[str, JsonValue]
"""The arguments of a custom part: numbers, texts, booleans, and lists and tables of them."""


@final
class PartTable(BaseModel):
    """A part with arguments. A part without arguments is its name alone."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: Arguments

    name: str

    @property
    def arguments(self) -> Arguments:
        return dict(self.__pydantic_extra__ or {})

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments.items())})"


def read_part(value: Any) -> Any:
    """A part as a recipe names it. A table without arguments becomes a name; an object is the part itself."""
    plain = isinstance(value, int | float | list | date | time)
    if plain or (isinstance(value, Mapping) and not isinstance(value.get("name"), str)):
        raise ValueError(
            f'a part is a name, or a table with name and arguments such as {{name = "…", size = 3}}, found {value!r}'
        )
    if not isinstance(value, Mapping):
        return value
    try:
        return PartTable.model_validate(value) if len(value) > 1 else value["name"]
    except ValidationError:
        raise ValueError(f"arguments are numbers, text, lists and tables, found {dict(value)!r}") from None


PartName: TypeAlias = Annotated[Any, BeforeValidator(read_part)]
"""A part in a table of settings: a text, a `PartTable`, or an object (in Python)."""


def one_of(known: Iterable[str], what: str) -> AfterValidator:
    """A validator: the setting is a `known` name or a custom part. `what` names its kind in messages."""
    names = list(known)

    def check(value: Any) -> Any:
        name = value.name if isinstance(value, PartTable) else value
        if isinstance(name, str) and name not in names and not is_path(name):
            near = did_you_mean(name, names) if names else "; a custom one is package.module:Name"
            raise ValueError(f"unknown {what} {name!r}{near}")
        return value

    return AfterValidator(check)


def custom_path(part: Any, families: Collection[str] = ()) -> str | None:
    """The import path of a custom part; None for a shipped one. `families` are shipped, so qsgd:4 is not a path."""
    name = part.name if isinstance(part, PartTable) else part
    is_own = isinstance(name, str) and is_path(name) and name.partition(":")[0] not in families
    return name if is_own else None


def is_path(text: str) -> bool:
    """Whether the text has the form package.module:Name."""
    return _PATH.fullmatch(text) is not None


def is_custom(part: object) -> bool:
    """Whether the object's class is not one of this package."""
    return type(part).__module__.partition(".")[0] != __name__.partition(".")[0]


def _import(module: str, path: str, known: Iterable[str]) -> ModuleType:
    try:
        with current_folder_first():
            return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(_no_module(path, str(error.name), known)) from None
        raise ConfigError(f"{path}: importing {module} raised {describe_error(error)}") from error


def missing(path: str) -> str | None:
    """Why the part does not exist, as far as known without an import; None if it may exist."""
    package = path.partition(":")[0].partition(".")[0]
    places = [os.getcwd(), *sys.path]
    there = package in sys.builtin_module_names or PathFinder.find_spec(package, places) is not None
    return None if there else _no_module(path, package, ())


def find(path: str, known: Iterable[str] = ()) -> Any:
    """Import the object that the path names. Errors suggest the nearest `known` name."""
    if not is_path(path):
        raise ConfigError(f"an import path is package.module:Name, got {path!r}")
    name, _, attributes = path.partition(":")
    module = _import(name, path, known)
    found: Any = module
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            here = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == name]
            where = f"{name} ({getattr(module, '__file__', None) or 'built in'})"
            raise ConfigError(f"{path}: {where} does not define {attribute!r}{did_you_mean(attribute, here)}") from None
    return found


def make(
    part: Any,
    kind: PartKind,
    *,
    offered: Mapping[str, Any] | None = None,
    known: Mapping[str, Any] | None = None,
) -> Any:
    """Make the part that a setting names.

    part     The name of a `known` part, an import path (package.module:Name), or the object of such a path.
    kind     The kind of part.
    offered  Arguments that are passed if the part has parameters of these names.
    known    The shipped parts, by name.

    A class, or a function that makes the part, is called with the arguments. A function that is the part itself gets
    them with every call.
    """
    name, arguments = (part.name, part.arguments) if isinstance(part, PartTable) else (part, {})
    is_named = isinstance(name, str)
    label = f"{kind.what} {name if is_named else path_of(name)}"
    if is_named and known and name in known:
        return _called(known[name], arguments, offered or {}, label)
    found: Any = find(name, known or ()) if is_named else name
    made = found
    if isinstance(found, type) or (callable(found) and _lacks(found, kind, label)):
        made = _called(found, arguments, offered or {}, label)
    elif arguments and "__call__" not in kind.needs:
        raise ConfigError(f"{label} is an object, which takes no arguments: name its class")
    elif arguments:
        _refuse_unknown(_parameters(found), arguments, label)
        made = partial(found, **arguments)
    if lacking := _lacks(made, kind, label):
        raise ConfigError(f"{label} does not define {', '.join(lacking)}: every {kind.what} does")
    return made


@final
class errors_of:  # noqa: N801  (reads as a function)
    """A context around a call of a custom part: its exceptions become `PartFailed`, which names the part.

    `part`: the object whose `method` is called, or a text. Errors of this package and a lack of memory pass unchanged.
    A class, because a generator costs three times as much at every server step.
    """

    __slots__ = ("_method", "_part")

    def __init__(self, part: object, method: str = "") -> None:
        self._part, self._method = part, method

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, QafelError | MemoryError):
            raise_part_failed(error, self._part, self._method)


def raise_part_failed(error: BaseException, part: object, method: str = "") -> NoReturn:
    """Raise `PartFailed` for an error of a custom part. For hot paths, where a `try` costs nothing."""
    if isinstance(error, QafelError | MemoryError):
        raise error
    words = part if isinstance(part, str) else path_of(part)
    label = f"{words}.{method}" if method else words
    raise PartFailed(f"{label} raised {describe_error(error)}") from error


def _called(maker: Any, arguments: dict[str, Any], offered: Mapping[str, Any], label: str) -> Any:
    parameters = _parameters(maker)
    if parameters is not None:
        arguments = {**{name: value for name, value in offered.items() if name in parameters}, **arguments}
        _refuse_unknown(parameters, arguments, label)
        for name, parameter in parameters.items():
            if parameter.kind in _BY_NAME and parameter.default is parameter.empty and name not in arguments:
                raise ConfigError(f"{label} needs the argument {name!r}: set it")
    try:
        return maker(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise ConfigError(f"{label}({given}) raised {describe_error(error)}") from error


def _parameters(called: Any) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a class or function; None if it is not written in Python."""
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return None


def _refuse_unknown(
    parameters: Mapping[str, inspect.Parameter] | None, arguments: Mapping[str, Any], label: str
) -> None:
    if parameters is None or any(it.kind is it.VAR_KEYWORD for it in parameters.values()):
        return
    by_name = [name for name, parameter in parameters.items() if parameter.kind in _BY_NAME]
    for name in arguments:
        if name not in by_name:
            raise ConfigError(f"{label} does not take {name!r}{did_you_mean(name, by_name) if by_name else ''}")


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _lacks(found: object, kind: PartKind, label: str) -> list[str]:
    """The attributes that an object lacks to be such a part."""
    try:
        return [name for name in kind.needs if not hasattr(found, name)]
    except Exception as error:  # a property's own
        raise ConfigError(f"{label} raised {describe_error(error)}") from error


@contextmanager
def current_folder_first() -> Iterator[None]:
    """A context that imports from the current folder first; afterwards last, for later imports of its modules."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _no_module(path: str, module: str, known: Iterable[str]) -> str:
    names = list(known)
    near = did_you_mean(path.partition(":")[0], names) if names else ""
    return f"{path}: module {module!r} is neither in {os.getcwd()} nor installed{near}"


def describe_error(error: BaseException) -> str:
    """An error of custom code, with the place that raised it."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    others = [frame for frame in frames if not frame[0].startswith(("<frozen", _OURS, str(importlib.__file__)))]
    theirs = [frame for frame in others if not frame[0].startswith(_LIBRARIES)] or others
    where = f" ({theirs[-1][0]}, line {theirs[-1][1]})" if theirs else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
