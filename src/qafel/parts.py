"""Parts as settings: one of ours by its name, or a custom one by its import path, with arguments or without.

    staleness = "my_package.laws:Halving"
    staleness = { name = "my_package.laws:Halving", every = 10 }
    server_rule = { name = "adam", beta1 = 0.9 }

A setting is text: reading one imports nothing, so reading a run's configuration runs nobody's code. `make` imports,
from the current folder too. A class, or a function that makes the part, is called with the arguments; anything else is
the part itself. Every failure is one sentence that names the path.
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
from types import ModuleType, TracebackType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias, final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from qafel.errors import ConfigError, PartFailed, QafelError, plain_number
from qafel.text import did_you_mean, path_of

_NAMES = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PATH = re.compile(rf"{_NAMES}:{_NAMES}")
_imported: dict[str, None] = {}
_OURS = str(Path(__file__).parent)
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


class Kind(NamedTuple):
    """What a part is called, and the attributes that make an object such a part."""

    what: str
    needs: tuple[str, ...]


class Section(BaseModel):
    """A table of settings: frozen, strict, closed to unknown keys, and all its numbers finite.

    Python makes one with settings by name; a mistake is a `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # else sections within sections call it, too

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, table: Any) -> Any:
        """Refuse unknown keys, with the nearest known one. 1e3 is a way to write a whole number."""
        if not isinstance(table, Mapping):
            return table
        for key in table:
            if key not in cls.model_fields:
                near = did_you_mean(str(key), cls.model_fields)
                raise PydanticCustomError("unknown_key", "unknown", {"key": str(key), "near": near})
        return {key: plain_number(value) for key, value in table.items()}


def explain(error: ValidationError, tags: Collection[str] = ()) -> str:
    """The first mistake in a table of settings, in one sentence; `tags` are steps of its path that nobody writes."""
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
            return f"{where} is a section with settings of its own, found {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] == "value_error" else f", found {first['input']!r}"
    return f"{where + ': ' if where else ''}{message[0].lower()}{message[1:]}{found}"


Arguments: TypeAlias = dict[str, JsonValue]
"""The arguments of a custom part: numbers, text, truth values, and lists and tables of them."""


@final
class PartTable(BaseModel):
    """A part and its arguments, of which there are some: without any it is its name alone."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: Arguments

    name: str

    @property
    def arguments(self) -> Arguments:
        return dict(self.__pydantic_extra__ or {})

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments.items())})"


def read_part(value: Any) -> Any:
    """A part as a recipe names it; a table without arguments is a name, and an object is the part itself."""
    plain = isinstance(value, int | float | list | date | time)
    if plain or (isinstance(value, Mapping) and not isinstance(value.get("name"), str)):
        raise ValueError(f"a part is a name, or a table with name and arguments; found {value!r}")
    if not isinstance(value, Mapping):
        return value
    try:
        return PartTable.model_validate(value) if len(value) > 1 else value["name"]
    except ValidationError:
        raise ValueError(f"arguments are numbers, text, lists and tables, found {dict(value)!r}") from None


PartName: TypeAlias = Annotated[Any, BeforeValidator(read_part)]
"""A part in a table of settings: text, a `PartTable`, or, in Python, an object."""


def one_of(known: Iterable[str], what: str) -> AfterValidator:
    """What a setting must be: a `known` name, or a custom part; `what` is its kind."""
    names = list(known)

    def check(value: Any) -> Any:
        name = value.name if isinstance(value, PartTable) else value
        if isinstance(name, str) and name not in names and not is_path(name):
            near = did_you_mean(name, names) if names else "; a custom one is package.module:Name"
            raise ValueError(f"unknown {what} {name!r}{near}")
        return value

    return AfterValidator(check)


def own_path(part: Any, families: Collection[str] = ()) -> str | None:
    """The import path of a custom part; None of one of ours, whose `families` come first: qsgd:4 stays qsgd:4."""
    name = part.name if isinstance(part, PartTable) else part
    is_own = isinstance(name, str) and is_path(name) and name.partition(":")[0] not in families
    return name if is_own else None


def is_path(text: str) -> bool:
    """Whether the text has the form package.module:Name."""
    return _PATH.fullmatch(text) is not None


def own_modules() -> list[str]:
    """The modules of own parts that this process has imported: another one imports them before it gets such a part."""
    return list(_imported)


def import_module(module: str, path: str = "", known: Iterable[str] = ()) -> ModuleType:
    """The module, with the current folder first on the search path.

    Errors name the import `path` that asks for it; a module that does not exist may be a near miss of a `known` name.
    """
    path = path or module
    try:
        with _current_folder_first():
            found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(_no_module(path, str(error.name), known)) from None
        raise ConfigError(f"{path}: importing {module} raised {told(error)}") from error
    _imported[module] = None
    return found


def missing(path: str) -> str | None:
    """Why the part cannot be found, as far as that shows without importing anything; None if it may be there."""
    package = path.partition(":")[0].partition(".")[0]
    places = [os.getcwd(), *sys.path]
    there = package in sys.builtin_module_names or PathFinder.find_spec(package, places) is not None
    return None if there else _no_module(path, package, ())


def find(path: str, known: Iterable[str] = ()) -> Any:
    """What the import path names; `known` are names that it may be a near miss of."""
    if not is_path(path):
        raise ConfigError(f"an import path is package.module:Name, got {path!r}")
    name, _, attributes = path.partition(":")
    module = import_module(name, path, known)
    found: Any = module
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            here = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == name]
            where = f"{name} ({getattr(module, '__file__', None) or 'built in'})"
            raise ConfigError(f"{path}: {where} has no {attribute!r}{did_you_mean(attribute, here)}") from None
    return found


def make(
    part: Any,
    kind: Kind,
    *,
    offered: Mapping[str, Any] | None = None,
    known: Mapping[str, Any] | None = None,
) -> Any:
    """The part that a setting names, with its arguments.

    part     the name of a `known` part, an import path, package.module:Name, or what such a path would name
    kind     what it must be
    offered  further arguments, for those that have parameters of these names
    known    the parts of ours, by name

    A class, or a function that makes the part, is called with the arguments; a function that is the part itself gets
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
        raise ConfigError(f"{label} is an object already, which takes no arguments: name its class")
    elif arguments:
        _refuse_unknown(_parameters(found), arguments, label)
        made = partial(found, **arguments)
    if lacking := _lacks(made, kind, label):
        raise ConfigError(f"{label} has no {', '.join(lacking)}, as every {kind.what} has")
    return made


@final
class blaming:  # noqa: N801  (reads as a statement: with blaming(task, "train"))
    """A context around a call of a user's part: what it raises becomes one sentence, with the exception as its cause.

    `part` is the object whose `method` is called, or words for it. Errors of this package pass, as does a lack of
    memory, of which the part need not be the cause.
    """

    __slots__ = ("_method", "_part")

    def __init__(self, part: object, method: str = "") -> None:
        self._part, self._method = part, method

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, QafelError | MemoryError):
            raise_blamed(error, self._part, self._method)


def raise_blamed(error: BaseException, part: object, method: str = "") -> NoReturn:
    """What `blaming` does with an error. For hot paths, where a `try` costs nothing."""
    if isinstance(error, QafelError | MemoryError):
        raise error
    words = part if isinstance(part, str) else path_of(part)
    label = f"{words}.{method}" if method else words
    raise PartFailed(f"{label} raised {told(error)}") from error


def _called(maker: Any, arguments: dict[str, Any], offered: Mapping[str, Any], label: str) -> Any:
    parameters = _parameters(maker)
    if parameters is not None:
        arguments = {**{name: value for name, value in offered.items() if name in parameters}, **arguments}
        _refuse_unknown(parameters, arguments, label)
        for name, parameter in parameters.items():
            if parameter.kind in _BY_NAME and parameter.default is parameter.empty and name not in arguments:
                raise ConfigError(f"{label} needs the argument {name!r}: give it a value")
    try:
        return maker(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise ConfigError(f"{label}({given}) raised {told(error)}") from error


def _parameters(called: Any) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a class or function; None of one that is not written in Python."""
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
            raise ConfigError(f"{label} has no argument {name!r}{did_you_mean(name, by_name) if by_name else ''}")


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _lacks(found: object, kind: Kind, label: str) -> list[str]:
    """What an object lacks to be such a part."""
    try:
        return [name for name in kind.needs if not hasattr(found, name)]
    except Exception as error:  # a property's own
        raise ConfigError(f"{label} raised {told(error)}") from error


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """A context in which the current folder is searched first; afterwards last, for what its modules import later."""
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
    return f"{path}: there is no module {module!r} in {os.getcwd()} or among the installed packages{near}"


def told(error: BaseException) -> str:
    """An error of the user's code, and where in it that was raised."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    others = [frame for frame in frames if not frame[0].startswith(("<frozen", _OURS, str(importlib.__file__)))]
    theirs = [frame for frame in others if not frame[0].startswith(_LIBRARIES)] or others
    where = f" ({theirs[-1][0]}, line {theirs[-1][1]})" if theirs else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
