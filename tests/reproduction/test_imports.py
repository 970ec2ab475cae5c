"""The reproduction is a client of the package: it imports names that `qafel` exports or docs/reference lists."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

import qafel

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "reproduction").glob("*.py"))


@cache
def documented() -> dict[str, set[str]]:
    """The documented names of each module in docs/reference: those listed as members, else its `__all__`."""
    found: dict[str, set[str]] = {}
    for page in (ROOT / "docs/reference").glob("*.md"):
        for block in re.split(r"^(?=::: )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            module = block.split()[1]
            members = re.search(r"^ +members: \[(.*)\]", block, re.MULTILINE)
            try:
                names = members[1].split(", ") if members else public_names(importlib.import_module(module))
            except ModuleNotFoundError:  # a single object
                continue
            found.setdefault(module, set()).update(names)
    return found | {"qafel": {*qafel.__all__, "errors"}}


def public_names(module) -> list[str]:
    return getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_documented_names_only(path):
    known = documented()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not [name.name for name in node.names if name.name.partition(".")[0] == "qafel"]
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "qafel":
            assert node.module in known, f"{node.module} is not in docs/reference"
            assert {name.name for name in node.names} <= known[node.module], node.module
