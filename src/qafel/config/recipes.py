"""Recipes as text and as tables: the ones that ship, files of the user's own, `extends`, and overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qafel.errors import ConfigError
from qafel.text import did_you_mean


@cache
def recipes() -> Mapping[str, str]:
    """The recipes that ship with the package, read once per process: name to TOML text, in order of the names."""
    folder = files("qafel").joinpath("recipes")
    entries = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name
    )
    return MappingProxyType({entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8") for entry in entries})


def find_recipe(name: str) -> tuple[str, str]:
    """The TOML text of the recipe `name`, or of the file at that path; and what to call it in an error."""
    if (text := recipes().get(name)) is not None:
        return text, f"recipe {name}"
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"unknown recipe {name!r}{did_you_mean(name, recipes())}; `qafel recipes` lists them")
    try:
        return path.read_text(encoding="utf-8"), name
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe file {name} cannot be read: {error}") from None


def read_table(text: str, source: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Read TOML `text` as a table: first what it extends, then what it says, then `overrides` such as "stop.uploads=9".

    `source` names the text in errors.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    if (base := table.pop("extends", None)) is not None:
        if base not in recipes():
            raise ConfigError(f"{source} extends the unknown recipe {base!r}{did_you_mean(str(base), recipes())}")
        table = _merged(read_table(recipes()[base], f"recipe {base}"), table)
    for override in overrides:
        _override(table, override)
    return table


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _override(table: dict[str, Any], override: str) -> None:
    """Set one value, `a.b=c`: c as TOML, or as text where it is not."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set takes section.key=value, got {override!r}")
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {key} is a value, not a section")
    try:
        table[keys[-1]] = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        table[keys[-1]] = value.strip()
