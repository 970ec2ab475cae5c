"""A user's own parts, named by import path: "package.module:Name", found in the current folder too.

What is found there is called with the arguments if it is a class, or a function that makes the part; anything else is
the part itself. Whatever goes wrong on the way is one sentence that names the path.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, final

from qafel.errors import ConfigError, PartFailed, QafelError
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
    path: str,
    kind: Kind,
    arguments: Mapping[str, Any] | None = None,
    *,
    offered: Mapping[str, Any] | None = None,
    known: Iterable[str] = (),
) -> Any:
    """The part that the import path names.

    path       package.module:Name
    kind       what it must be
    arguments  what a class, or a function that makes the part, is called with; a function that is the part itself gets
               them with every call
    offered    further arguments, for those that have parameters of these names
    known      names that the path may be a near miss of
    """
    found, arguments = find(path, known), dict(arguments or {})
    label = f"{kind.what} {path}"
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
            words = self._part if isinstance(self._part, str) else path_of(self._part)
            label = f"{words}.{self._method}" if self._method else words
            raise PartFailed(f"{label} raised {told(error)}") from error


def _called(maker: Any, arguments: dict[str, Any], offered: Mapping[str, Any], label: str) -> Any:
    parameters = _parameters(maker)
    if parameters is not None:
        arguments = {**{name: value for name, value in offered.items() if name in parameters}, **arguments}
        _refuse_unknown(parameters, arguments, label)
        for name, parameter in parameters.items():
            if parameter.kind in _BY_NAME and parameter.default is parameter.empty and name not in arguments:
                raise ConfigError(f"{label} needs the argument {name!r}: give it in the table `arguments`")
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
