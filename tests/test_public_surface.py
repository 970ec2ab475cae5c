"""What is exported exists, and what packages say they hold is there."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import qafel

SOURCES = Path(qafel.__file__).parent.parent
FOUND = {".".join(file.relative_to(SOURCES).parent.parts): file.read_text() for file in SOURCES.rglob("__init__.py")}
PACKAGES = sorted(FOUND)
EXPORTING = [name for name in PACKAGES if "\n__all__ = [" in FOUND[name]]


def order(name):
    """Ruff's RUF022: CONSTANTS, then Classes, then the rest, each in natural order."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


@pytest.mark.parametrize("name", EXPORTING)
def test_all_names_exist_and_are_sorted(name):
    package = importlib.import_module(name)
    assert [exported for exported in package.__all__ if not hasattr(package, exported)] == []
    assert list(package.__all__) == sorted(set(package.__all__), key=order)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_says_what_lives_in_it(name):
    package = importlib.import_module(name)
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    assert modules - {"__main__", *re.findall(r"\w+", package.__doc__ or "")} == set()


def test_the_packages_are_found():
    assert {"qafel", "qafel.algorithm", "qafel.quantizers", "qafel.quantizers.kernels", "qafel.cli"} <= set(PACKAGES)
    assert {"qafel", "qafel.algorithm", "qafel.quantizers", "qafel.simulator"} <= set(EXPORTING)
