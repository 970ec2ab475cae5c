"""Names that a package loads at their first use (PEP 562), and checks for optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

from qafel.errors import ConfigError


def is_installed(package: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # sys.modules has None for it
        return False


def require_installed(what: str, extra: str, *packages: str, **called: str) -> None:
    """Raise `ConfigError` if a package that `what` needs is missing; `extra` installs it.

    Keywords give a package's usual name: require_installed("a figure", "draw", matplotlib="Matplotlib").
    """
    names = {**dict(zip(packages, packages, strict=True)), **called}
    if missing := [name for package, name in names.items() if not is_installed(package)]:
        raise ConfigError(f"{what} needs {' and '.join(missing)}: pip install 'qafel[{extra}]'")


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that loads the names in `homes` at their first use.

    `homes` maps a name to "package.module:Name", or to "package.module" for a module.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, within = homes[name].partition(":")
        found = importlib.import_module(module)
        value = getattr(found, within) if within else found
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
