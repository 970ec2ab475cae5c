"""Write docs/reference/recipe-keys.md and docs/reference/commands.md: every key of a recipe, every command and option.

    python scripts/recipe_keys.py

Keys, defaults and ranges come from the sections in `qafel.config`. Meanings come from field descriptions or from the
two-column docstrings of the sections. Commands come from their help texts. A test compares the committed pages with
`page()` and `commands()`.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer.main
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from typer.cli import get_docs_for_click

from qafel.algorithm import AlgorithmSettings
from qafel.algorithm.methods import LAWS, PARTS
from qafel.cli import app
from qafel.config.sections import ARRIVALS, DURATIONS, Config, Evaluation, Limits, Network, Timing
from qafel.config.start import StartConfig
from qafel.config.tasks import TASKS
from qafel.parts import Section

REFERENCE = Path(__file__).parent.parent / "docs/reference"
ROW = re.compile(r"^ *(?P<keys>\w+(?:, \w+)*) {2,}(?P<text>\S.*)$")
BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}
NAMES = {
    "algorithm.staleness": LAWS,
    "timing.arrivals": ARRIVALS,
    "timing.duration": DURATIONS,
    **{f"algorithm.{role}": parts for role, parts in PARTS.items()},
}
"""The values of keys that name a part; an import path is also accepted."""
RANGES = {
    "algorithm.method": "a [method](../simulator.md#methods)",
    "algorithm.client_lr_schedule": "`{cosine = STEPS}` or `{step = STEPS}`",
    "timing.dropout": "0 ≤ … < 1, or a list",
    **dict.fromkeys((f"algorithm.{role}_quantizer" for role in ("client", "server", "snapshot")), "a quantizer"),
}
HEAD = """# Recipe keys

Every key of a recipe, with its default, range and meaning. Set a key in a TOML file or with `--set section.key=value`.
In Python, the keys of `[algorithm]` are arguments of `method`, and those of `[timing]` are arguments of `Timing`. Keys
that name a part also accept an [import path](../custom-parts.md). *none* means that the key is not set.

This page is generated from the configuration by `python scripts/recipe_keys.py`.

A file can also contain `extends = "RECIPE"` and then states only the differences.
"""


def page() -> str:
    """The content of the page."""
    top = [_row("", key, Config.model_fields[key], text) for key, text in TOP.items()]
    parts = [HEAD, "## Top level\n", *_table(top), "\n## task\n\nThe keys depend on `name`.\n"]
    for name, section in TASKS.items():
        rows = [_row("task", key, field) for key, field in section.model_fields.items() if key != "name"]
        parts += [f'### name = "{name}"\n\n{_sentence(inspect.getdoc(section) or "")}\n', *_table(rows), ""]
    parts += [
        '### name = "package.module:Name"\n',
        "A [custom task](../tasks.md#custom-tasks). Its settings are in the table `task.arguments`.",
    ]
    for name, section in SECTIONS.items():
        meanings = _meanings(section)
        fields = {key: field for key, field in section.model_fields.items() if key not in SKIPPED}
        rows = [_row(name, key, field, meanings.get(key, "")) for key, field in fields.items()]
        parts += [f"\n## {name}\n", *_table(rows)]
    return "\n".join(parts) + "\n"


TOP = {
    "name": "name of the run; its folder is runs/NAME-seedN",
    "description": "one line for `qafel recipes` and reports",
    "seed": "seed of all random streams of the run",
}
SECTIONS: dict[str, type[Section]] = {
    "algorithm": AlgorithmSettings,
    "timing": Timing,
    "timing.network": Network,
    "evaluation": Evaluation,
    "stop": Limits,
    "start": StartConfig,
}
SKIPPED = ("network",)


def _meanings(section: type[Section]) -> dict[str, str]:
    """The meanings of keys in the two-column docstring of a section."""
    found: dict[str, str] = {}
    keys: list[str] = []
    for line in (inspect.getdoc(section) or "").splitlines():
        if row := ROW.match(line):
            keys = row["keys"].split(", ")
            found |= dict.fromkeys(keys, row["text"])
        elif keys and line.startswith(" "):
            found |= {key: f"{found[key]} {line.strip()}" for key in keys}
        else:
            keys = []
    return found


def _row(section: str, key: str, field: FieldInfo, text: str = "") -> str:
    path = f"{section}.{key}".lstrip(".")
    meaning = field.description or text
    if not meaning:
        raise SystemExit(f"{path} has no description: add one to its section in qafel.config")
    default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
    return (
        "| "
        + " | ".join(cell.replace("|", "\\|") for cell in (f"`{key}`", default, _range(path, field), meaning))
        + " |"
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "none" if value is None else f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _range(path: str, field: FieldInfo) -> str:
    """The accepted values: named choices, the bounds of a number, or the type."""
    if path in RANGES:
        return RANGES[path]
    if path in NAMES:
        return ", ".join(f"`{name}`" for name in NAMES[path])
    kind = _plain(field.annotation)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    bounds = [f"{BOUNDS[type(each)][0]} {_bound(each)}" for each in field.metadata if type(each) in BOUNDS]
    numbers = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}
    if get_origin(kind) is list:
        return "list with a positive number per client"
    return " ".join([numbers.get(kind, "text"), " and ".join(bounds)]).strip()


def _bound(constraint: Any) -> str:
    value = getattr(constraint, BOUNDS[type(constraint)][1])
    exponent = abs(value).bit_length() - 1 if isinstance(value, int) and value else 0
    return f"{'−' * (value < 0)}2^{exponent}" if exponent > 40 else f"{value:g}"


def _plain(annotation: Any) -> Any:
    """The type without its annotations and without None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    is_optional = len(kinds) == 1 and get_origin(annotation) not in (list, Literal)
    return _plain(kinds[0]) if is_optional else annotation


def _table(rows: list[str]) -> list[str]:
    return ["| key | default | range | meaning |", "|---|---|---|---|", *rows]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def commands() -> str:
    """The page of all commands and options, generated by Typer from the commands' help texts."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="qafel")  # type: ignore[arg-type]
    text = get_docs_for_click(obj=command, ctx=context, name="qafel", title="Commands")
    text = re.sub(r"^Example: (.*)$", r"```text\n\1\n```", text, flags=re.MULTILINE)
    made = "This page is generated from the help texts by `python scripts/recipe_keys.py`."
    return text.replace("```console\n$ ", "```text\n").replace("# Commands\n", f"# Commands\n\n{made}\n", 1)


PAGES = {"recipe-keys.md": page, "commands.md": commands}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make(), encoding="utf-8")
