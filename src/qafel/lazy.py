"""Names that a package offers before it has loaded them (PEP 562).

What takes long to load is loaded by those who use it: Numba by kernels, PyTorch by neural tasks.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

from qafel.errors import ConfigError


def is_installed(package: str) -> bool:
    """Whether a package is there, without loading it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # it is hidden
        return False


def require_installed(what: str, extra: str, *packages: str, **called: str) -> None:
    """Raise `ConfigError` if one of the packages is missing; `what` needs them, and `extra` brings them.

    A package that people call by another name is given with it:

    require_installed("a figure", "draw", matplotlib="Matplotlib")
    """
    names = {**dict(zip(packages, packages, strict=True)), **called}
    if missing := [name for package, name in names.items() if not is_installed(package)]:
        raise ConfigError(f"{what} needs {' and '.join(missing)}: pip install 'qafel[{extra}]'")


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose names in `homes` are loaded at their first use.

    `homes` says where each is: "package.module:Name", or "package.module" for a module. What was loaded becomes a plain
    attribute of the package, so that a second use costs what any attribute costs.
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
